//go:build race

package race

// Enabled tells whether the binary was built with -race.
const Enabled = true
