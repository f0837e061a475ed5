package rollout

import (
	"math/bits"
	"time"
)

// HistogramBuckets is the number of buckets of a [Histogram]: one for what is
// below 65.536 µs, 16 for each power of two up to 137 s, and one for the rest.
const HistogramBuckets = 2 + (maxExponent-minExponent)*perOctave

const (
	minExponent = 16 // 2^16 ns is 65.536 µs
	maxExponent = 37 // 2^37 ns is 137.4 s
	perOctave   = 16
)

// MaxLatency is where a Histogram ends: what took longer counts as that.
const MaxLatency = time.Duration(1 << maxExponent)

// Histogram counts requests by how long they took. Buckets are 1/16 to 1/31 of
// their lower bound wide, so that a quantile between 65 µs and 137 s is at most 3.2 %
// off. The zero Histogram is empty. It is not safe for concurrent use; a source that
// counts from many goroutines keeps HistogramBuckets atomic counters, finds the
// one to raise with [BucketOf], and makes a Histogram of them with AddBucket.
// Nothing here but the Histogram itself is allocated.
type Histogram struct {
	count  uint64
	counts [HistogramBuckets]uint64
}

// BucketOf returns the bucket of a duration, 0 to HistogramBuckets-1.
func BucketOf(d time.Duration) int {
	switch {
	case d < 1<<minExponent:
		return 0
	case d >= MaxLatency:
		return HistogramBuckets - 1
	}
	exponent := bits.Len64(uint64(d)) - 1
	sub := int(uint64(d)>>(exponent-4)) & (perOctave - 1)
	return 1 + (exponent-minExponent)*perOctave + sub
}

// bounds returns where a bucket begins and ends.
func bounds(bucket int) (low, high time.Duration) {
	switch {
	case bucket <= 0:
		return 0, 1 << minExponent
	case bucket >= HistogramBuckets-1:
		return MaxLatency, MaxLatency
	}
	bucket--
	width := time.Duration(1) << (bucket/perOctave + minExponent - 4)
	low = width * time.Duration(perOctave+bucket%perOctave)
	return low, low + width
}

// Add counts a request that took d.
func (h *Histogram) Add(d time.Duration) { h.AddBucket(BucketOf(d), 1) }

// AddBucket counts n requests in a bucket; one that does not exist counts nothing.
func (h *Histogram) AddBucket(bucket int, n uint64) {
	if bucket >= 0 && bucket < HistogramBuckets {
		h.counts[bucket] += n
		h.count += n
	}
}

// AddRange counts n requests that took between low and high, spread evenly: a
// bucket of another histogram, such as one of Prometheus, whose quantiles are
// interpolated in the same way. A high that is not above low means low.
func (h *Histogram) AddRange(low, high time.Duration, n uint64) {
	low, high = max(low, 0), min(high, MaxLatency)
	first := BucketOf(low)
	if high <= low {
		h.AddBucket(first, n)
		return
	}
	width, done := float64(high-low), uint64(0)
	for b := first; b < HistogramBuckets && done < n; b++ {
		upTo := n
		if _, end := bounds(b); end < high {
			upTo = min(n, uint64(float64(n)*float64(end-low)/width+0.5))
		}
		if upTo > done {
			h.AddBucket(b, upTo-done)
			done = upTo
		}
	}
}

// Merge adds what o counts; nil adds nothing.
func (h *Histogram) Merge(o *Histogram) {
	if o == nil {
		return
	}
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.count += o.count
}

// Count returns how many requests are counted.
func (h *Histogram) Count() uint64 {
	if h == nil {
		return 0
	}
	return h.count
}

// Quantile returns the duration that a share q of the requests did not exceed, by
// the middle of its bucket; 0 where nothing was counted. Quantile(0.99) is the
// 99th percentile.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.Count() == 0 {
		return 0
	}
	left := uint64(q * float64(h.count))
	if float64(left) < q*float64(h.count) {
		left++
	}
	left = min(max(left, 1), h.count)
	for b, n := range h.counts {
		if n >= left {
			low, high := bounds(b)
			return low + (high-low)/2
		}
		left -= n
	}
	return MaxLatency
}

// Above returns how many requests took longer than d, to the share of the bucket
// that d lies in.
func (h *Histogram) Above(d time.Duration) (n uint64) {
	if h == nil {
		return 0
	}
	at := BucketOf(d)
	for _, k := range h.counts[at+1:] {
		n += k
	}
	if low, high := bounds(at); high > low {
		d = max(d, low)
		n += uint64(float64(h.counts[at])*float64(high-d)/float64(high-low) + 0.5)
	}
	return n
}
