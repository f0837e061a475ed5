package promsource

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/graylane/graylane/graytag/rollout"
)

// stable is how the labels wanted and version show stable.
const stable = "stable"

// outcome is what a status means.
type outcome int

const (
	fine outcome = iota
	failed
	leftOut
)

// grpcFailures are the codes of gRPC by which a server is at fault, by number and
// name.
var grpcFailures = map[string]bool{
	"2": true, "UNKNOWN": true, "4": true, "DEADLINEEXCEEDED": true, "12": true, "UNIMPLEMENTED": true,
	"13": true, "INTERNAL": true, "14": true, "UNAVAILABLE": true, "15": true, "DATALOSS": true,
}

// meaning returns what a status means. "aborted" and "other" are of graylane: an
// answer that broke off, and a code that HTTP does not know.
func meaning(status string) outcome {
	switch status {
	case "aborted", "other":
		return failed
	case "1", "499": // gRPC's Canceled; 499 as of nginx
		return leftOut
	}
	if len(status) == 3 && status[0] >= '1' && status[0] <= '5' {
		if status[0] == '5' {
			return failed
		}
		return fine
	}
	name := strings.ToUpper(strings.ReplaceAll(status, "_", ""))
	switch {
	case name == "CANCELLED" || name == "CANCELED":
		return leftOut
	case grpcFailures[name]:
		return failed
	}
	return fine
}

type key struct{ wanted, served string }

// counted gathers what belongs to one sample.
type counted struct {
	requests, errors float64
	buckets          map[float64]float64 // cumulative, by their upper bound in seconds
}

// samples makes samples of the rows of the queries.
func samples(requests, latency, unserved []row) ([]rollout.Sample, error) {
	all := map[key]*counted{}
	at := func(r row, served string) *counted {
		k := key{version(r.labels["wanted"]), version(served)}
		if all[k] == nil {
			all[k] = &counted{buckets: map[float64]float64{}}
		}
		return all[k]
	}
	for _, r := range requests {
		status, ok := r.labels["status"]
		if !ok {
			return nil, badAnswer("requests without the label status")
		}
		m := meaning(status)
		if m == leftOut {
			continue
		}
		c := at(r, r.labels["version"])
		c.requests += r.value
		if m == failed {
			c.errors += r.value
		}
	}
	for _, r := range latency {
		le, err := strconv.ParseFloat(r.labels["le"], 64)
		if err != nil || math.IsNaN(le) {
			return nil, badAnswer("a bucket whose le is %q, want a number of seconds", shorten(r.labels["le"]))
		}
		at(r, r.labels["version"]).buckets[le] += r.value
	}
	for _, r := range unserved {
		c := at(r, rollout.ServedNone)
		c.requests += r.value
		c.errors += r.value
	}
	list := make([]rollout.Sample, 0, len(all))
	for k, c := range all {
		n := round(c.requests)
		if n > 0 {
			list = append(list, rollout.Sample{
				Wanted: k.wanted, Served: k.served, Requests: n, Errors: min(round(c.errors), n), Latency: histogram(c.buckets),
			})
		}
	}
	slices.SortFunc(list, func(a, b rollout.Sample) int {
		return cmp.Or(cmp.Compare(a.Wanted, b.Wanted), cmp.Compare(a.Served, b.Served))
	})
	return list, nil
}

func version(label string) string {
	if label == stable {
		return ""
	}
	return label
}

func round(v float64) uint64 { return uint64(math.Round(v)) }

// histogram returns nil where there are no buckets with a bound. What is above the
// last one counts as that bound, as in histogram_quantile of Prometheus.
func histogram(buckets map[float64]float64) *rollout.Histogram {
	bounds := make([]float64, 0, len(buckets))
	for le := range buckets {
		bounds = append(bounds, le)
	}
	slices.Sort(bounds)
	if len(bounds) == 0 || math.IsInf(bounds[0], 1) {
		return nil
	}
	h := &rollout.Histogram{}
	var low time.Duration
	done := uint64(0)
	for _, le := range bounds {
		high := low
		if !math.IsInf(le, 1) {
			high = time.Duration(min(max(le, 0)*float64(time.Second), float64(rollout.MaxLatency)))
		}
		// Extrapolated buckets need not grow.
		if upTo := round(buckets[le]); upTo > done {
			h.AddRange(low, high, upTo-done)
			done = upTo
		}
		low = high
	}
	return h
}
