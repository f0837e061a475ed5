package rollout

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Recorder is a [Source] of the requests that this process saw. It is safe for
// concurrent use. gateway.WithRecorder has a gateway fill it; others call [Recorder.Record].
//
// Of several gateways each sees its own share, and the one that runs the rollout
// judges by that; package promsource sees all.
//
// It counts in slots of time, and answers with those slots that lie wholly within a
// window: never with a request from outside it, and without those of up to one slot
// at each end. What it cannot know is an [*IncompleteError]: requests from before it
// was made, or from before what it keeps, and those of a service that has had more
// combinations than it has room for. A combination that nobody used for as long as
// slots are kept makes room for others.
//
// A slot of a combination takes 1.4 KB where there was a request in it: half a
// megabyte for each combination that is in use all the time, with the defaults.
type Recorder struct {
	slot    int64 // in nanoseconds
	slots   int64 // how many are kept, beside the spare ones
	series  int
	now     func() time.Time
	started time.Time

	index   atomic.Pointer[recorded]
	beyond  loss // of services that have no series
	dropped atomic.Uint64

	// mu is for changes of index, which readers find whole without it, and for new
	// cells: a series must not be taken out while somebody begins to use it again.
	mu sync.Mutex
}

type seriesKey struct{ service, wanted, served string }

// recorded is immutable; what it points to is not.
type recorded struct {
	series   map[seriesKey]*series
	services map[string]*service
}

type service struct {
	since int64 // the slot in which it came
	loss
}

// loss remembers the newest slot in which a request was not counted, by its number
// plus one; 0 is never.
type loss struct{ slot atomic.Int64 }

func (l *loss) in(slot int64) bool    { return l.slot.Load() == slot+1 }
func (l *loss) since(slot int64) bool { return l.slot.Load() > slot }
func (l *loss) mark(slot int64)       { l.slot.Store(slot + 1) }

// spare slots are the one that is running, and one for readers that are slow.
const spare = 2

// series is a ring of slots.
type series struct {
	cells  []atomic.Pointer[cell]
	latest int64 // slot; guarded by the mu of the recorder
}

// cell counts one slot. A new lap of the ring brings new cells: whoever is late adds
// to one that nobody reads any more.
type cell struct {
	slot    int64
	errors  atomic.Uint32
	latency [HistogramBuckets]atomic.Uint32
}

// NewRecorder returns a recorder that begins now. It needs no end.
func NewRecorder(opts ...RecorderOption) (*Recorder, error) {
	c := recorderConfig{slot: DefaultSlot, keep: DefaultKeep, series: DefaultMaxSeries, now: time.Now}
	for _, o := range opts {
		if o != nil {
			o.applyRecorder(&c)
		}
	}
	switch {
	case c.slot < time.Millisecond:
		return nil, fmt.Errorf("rollout: recorder: a slot of %s, want at least 1ms", c.slot)
	case c.keep < 2*c.slot:
		return nil, fmt.Errorf("rollout: recorder: keep %s, want at least two slots of %s", c.keep, c.slot)
	case (c.keep-1)/c.slot+1 > MaxSlots:
		return nil, fmt.Errorf("rollout: recorder: keep %s in slots of %s, want at most %d slots", c.keep, c.slot, MaxSlots)
	case c.series < 1:
		return nil, fmt.Errorf("rollout: recorder: %d series, want at least 1", c.series)
	}
	r := &Recorder{slot: int64(c.slot), slots: int64((c.keep-1)/c.slot + 1), series: c.series, now: c.now, started: c.now()}
	r.index.Store(&recorded{})
	return r, nil
}

// Record counts a request that has just ended. A client that hung up, and a request
// without a routing decision, are left out. It allocates once for each slot of a
// combination, and takes a lock then; else it does neither.
func (r *Recorder) Record(q Request) { r.record(&q, r.now()) }

func (r *Recorder) record(q *Request, now time.Time) {
	if q.leftOut() {
		return
	}
	key := seriesKey{q.Service, q.Wanted, q.served()}
	slot := r.number(now)
	s := r.index.Load().series[key]
	var c *cell
	if s != nil {
		c = s.cells[slot%int64(len(s.cells))].Load()
	}
	if c == nil || c.slot != slot {
		if c = r.cell(key, slot); c == nil {
			return
		}
	}
	// Readers go the other way round: they never see an error without its request.
	c.latency[BucketOf(q.Duration)].Add(1)
	if q.failed() {
		c.errors.Add(1)
	}
}

// number returns the slot that a time is in.
func (r *Recorder) number(t time.Time) int64 { return max(t.UnixNano(), 0) / r.slot }

// cell returns where to count in a slot, nil where there is no room.
func (r *Recorder) cell(key seriesKey, slot int64) *cell {
	index := r.index.Load()
	if index.series[key] == nil {
		lost := &r.beyond
		if at := index.services[key.service]; at != nil {
			lost = &at.loss
		}
		if lost.in(slot) { // there was no room in this slot already
			r.dropped.Add(1)
			return nil
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.index.Load().series[key]
	if s == nil {
		if s = r.add(key, slot); s == nil {
			r.dropped.Add(1)
			return nil
		}
	}
	at := &s.cells[slot%int64(len(s.cells))]
	c := at.Load()
	switch {
	case c == nil || c.slot < slot:
		c = &cell{slot: slot}
		at.Store(c)
		s.latest = max(s.latest, slot)
	case c.slot > slot: // a lap behind: nobody asks for that any more
		return nil
	}
	return c
}

// add makes a series, where there is room or a series that is not used any more. r.mu
// is held.
func (r *Recorder) add(key seriesKey, slot int64) *series {
	old := r.index.Load()
	index := &recorded{series: maps.Clone(old.series), services: map[string]*service{}}
	if index.series == nil {
		index.series = map[seriesKey]*series{}
	}
	own := 0
	maps.DeleteFunc(index.series, func(k seriesKey, s *series) bool {
		if s.latest < slot-r.slots {
			return true
		}
		index.services[k.service] = old.services[k.service]
		if k.service == key.service {
			own++
		}
		return false
	})
	for name, at := range old.services {
		if at.loss.since(slot - r.slots) { // remembered for as long as it matters
			index.services[name] = at
		}
	}
	at := index.services[key.service]
	if len(index.series) >= r.series || own >= max(1, r.series/4) {
		if at != nil {
			at.mark(slot)
		} else {
			r.beyond.mark(slot)
		}
		return nil
	}
	// The strings may be pieces of a header that would be kept with them.
	key = seriesKey{strings.Clone(key.service), strings.Clone(key.wanted), strings.Clone(key.served)}
	if at == nil {
		index.services[key.service] = &service{since: slot}
	}
	s := &series{cells: make([]atomic.Pointer[cell], r.slots+spare), latest: slot}
	index.series[key] = s
	r.index.Store(index)
	return s
}

// Dropped returns how many requests were not counted because there were too many
// combinations. Their services have no samples then.
func (r *Recorder) Dropped() uint64 { return r.dropped.Load() }

var _ Source = (*Recorder)(nil)

// Samples implements [Source]. The error is an [*IncompleteError].
func (r *Recorder) Samples(_ context.Context, q Query) ([]Sample, error) {
	read := r.now()
	now, to := r.number(read), q.To
	if to.After(read) {
		to = read
	}
	first, end := r.number(q.From.Add(time.Duration(r.slot-1))), r.number(to)
	index := r.index.Load()
	if why := r.missing(&q, index, first, end, now); why != "" {
		e := &IncompleteError{From: q.From, To: q.To, Reason: why}
		if q.From.Before(r.started) {
			e.Since = r.started
		}
		return nil, e
	}
	var all []Sample
	for k, s := range index.series {
		if q.Service != "" && k.service != q.Service || k.wanted != "" && k.wanted != q.Version {
			continue
		}
		sample := Sample{Wanted: k.wanted, Served: k.served, Latency: &Histogram{}}
		for slot := first; slot < end; slot++ {
			if c := s.cells[slot%int64(len(s.cells))].Load(); c != nil && c.slot == slot {
				c.addTo(&sample)
			}
		}
		if sample.Requests = sample.Latency.Count(); sample.Requests > 0 {
			all = append(all, sample)
		}
	}
	if first <= r.number(r.now())-r.slots-spare {
		return nil, &IncompleteError{From: q.From, To: q.To, Reason: "they were overwritten meanwhile"}
	}
	return all, nil
}

// missing says what is not known of the slots from first to end.
func (r *Recorder) missing(q *Query, index *recorded, first, end, now int64) string {
	switch {
	case q.From.Before(r.started):
		return "nobody recorded before " + r.started.UTC().Format(time.RFC3339)
	case first < now-r.slots:
		return fmt.Sprintf("they are kept for %s, see WithKeep", time.Duration(r.slots*r.slot))
	case end <= first:
		return fmt.Sprintf("no slot of %s lies wholly in between, see WithSlot", time.Duration(r.slot))
	}
	const full = "there are too many combinations of service and version"
	if q.Service == "" && r.beyond.since(first) {
		return full
	}
	at := index.services[q.Service]
	if q.Service != "" && r.beyond.since(first) && (at == nil || at.since >= first) {
		return full
	}
	for name, at := range index.services {
		if (q.Service == "" || name == q.Service) && at.loss.since(first) {
			return full
		}
	}
	return ""
}

func (c *cell) addTo(s *Sample) {
	s.Errors += uint64(c.errors.Load())
	for b := range c.latency {
		if n := c.latency[b].Load(); n > 0 {
			s.Latency.AddBucket(b, uint64(n))
		}
	}
}
