// Package race tells tests whether the race detector is on: it allocates, so
// that allocation guards have nothing to compare there.
package race
