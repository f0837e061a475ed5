package telemetry

import (
	"context"
	"runtime/pprof"
)

// Unlabel takes the labels of CPU profiles from the goroutine that runs it. A goroutine
// has those of the one that has started it: what a request happens to be the first to
// need, a connection or a watch, would burn in its name as long as the program runs.
func Unlabel() { pprof.SetGoroutineLabels(context.Background()) }
