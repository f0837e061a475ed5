// Package rollout moves the percentage of rules through stages while it compares
// gray with stable, and takes it back when gray is worse.
package rollout
