// Package gateway is the entrance.
package gateway
