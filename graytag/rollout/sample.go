package rollout

import (
	"context"
	"time"
)

// Source knows how requests went. Implementations are safe for concurrent use.
// One that keeps nothing of its own can be made of a function, see [SourceFunc].
type Source interface {
	// Samples returns what is known of the requests that ended from q.From on and
	// before q.To. A combination of wanted and served may come in several samples;
	// what is not about q may come, too, and is left out. No samples is no traffic.
	// An error means that it is not known how requests went; so does anything that
	// is not complete, such as a gap in what was recorded: return an error then.
	Samples(ctx context.Context, q Query) ([]Sample, error)
}

// SourceFunc is a function as a [Source].
type SourceFunc func(ctx context.Context, q Query) ([]Sample, error)

// Samples calls f.
func (f SourceFunc) Samples(ctx context.Context, q Query) ([]Sample, error) { return f(ctx, q) }

// Query asks for the requests to one service.
type Query struct {
	// Service is the service that was called; "" is all of them together.
	Service string
	// Version is the gray version. Requests that wanted it are asked for, and those
	// that wanted stable.
	Version string
	// From is in the window, To is not.
	From, To time.Time
}

// Sample counts requests that wanted one version and were served by one.
type Sample struct {
	// Wanted is the version that the request wanted, "" for stable. A request
	// belongs to what it wanted, whatever served it.
	Wanted string
	// Served is the version that answered, "" for stable and ServedNone where
	// nothing did.
	Served string
	// Requests ended in the window; Errors is how many of them failed by the fault
	// of a server: of HTTP 5xx, of gRPC Unknown, DeadlineExceeded, Unimplemented,
	// Internal, Unavailable and DataLoss. A client that hung up is no error.
	Requests uint64
	Errors   uint64
	// Latency counts the same requests by how long they took; nil where that is
	// not known.
	Latency *Histogram
}

// ServedNone is what served a request that no instance could be found for.
const ServedNone = "none"

// Window is what happened between two times.
type Window struct {
	From, To time.Time
	// Gray holds the requests that wanted the gray version and were not served by a
	// fallback: those that failed because nothing was there are among them.
	Gray Group
	// Stable holds the requests that wanted stable and were served by it.
	Stable Group
	// Wanted is how many requests wanted gray, Matched how many of them gray served.
	Wanted, Matched uint64
}

// Group is requests that are judged together.
type Group struct {
	Requests uint64
	Errors   uint64
	// Latency is empty where it is not known.
	Latency Histogram
}

func (g *Group) add(s *Sample) {
	g.Requests += s.Requests
	g.Errors += min(s.Errors, s.Requests)
	g.Latency.Merge(s.Latency)
}

func (g *Group) merge(o *Group) {
	g.Requests += o.Requests
	g.Errors += o.Errors
	g.Latency.Merge(&o.Latency)
}

// rate is the share of requests that failed.
func (g *Group) rate() float64 {
	if g.Requests == 0 {
		return 0
	}
	return float64(g.Errors) / float64(g.Requests)
}

// NewWindow gathers the samples of a window for a version.
func NewWindow(version string, from, to time.Time, samples []Sample) *Window {
	w := &Window{From: from, To: to}
	for i := range samples {
		s := &samples[i]
		switch {
		case s.Wanted == "" && s.Served == "":
			w.Stable.add(s)
		case s.Wanted == version && version != "":
			w.Wanted += s.Requests
			switch s.Served {
			case version:
				w.Matched += s.Requests
				w.Gray.add(s)
			case ServedNone:
				w.Gray.add(s)
			}
		}
	}
	return w
}

// merge adds the window before w.
func (w *Window) merge(o *Window) {
	w.From = o.From
	w.Gray.merge(&o.Gray)
	w.Stable.merge(&o.Stable)
	w.Wanted += o.Wanted
	w.Matched += o.Matched
}
