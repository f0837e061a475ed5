package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/internal/race"
)

// clock is a time that a test sets.
type clock struct{ ns atomic.Int64 }

func newClock(t time.Time) *clock {
	c := &clock{}
	c.ns.Store(t.UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

func newRecorder(t testing.TB, c *clock, opts ...rollout.RecorderOption) *rollout.Recorder {
	t.Helper()
	if c != nil {
		opts = append(opts, rollout.WithRecorderClock(c.now))
	}
	r, err := rollout.NewRecorder(opts...)
	require.NoError(t, err)
	return r
}

// good is a request that went well.
func good(service, wanted, served string) rollout.Request {
	return rollout.Request{Service: service, Wanted: wanted, Served: served, Outcome: "matched", Status: 200, GRPCStatus: -1, Duration: time.Millisecond}
}

func failed(service, wanted, served string) rollout.Request {
	q := good(service, wanted, served)
	q.Status = 500
	return q
}

// counts are requests and errors by what was wanted and what served.
type counts map[[2]string][2]uint64

func samples(t testing.TB, src rollout.Source, service, version string, from, to time.Time) counts {
	t.Helper()
	list, err := src.Samples(context.Background(), rollout.Query{Service: service, Version: version, From: from, To: to})
	require.NoError(t, err)
	got := counts{}
	for _, s := range list {
		n := got[[2]string{s.Wanted, s.Served}]
		got[[2]string{s.Wanted, s.Served}] = [2]uint64{n[0] + s.Requests, n[1] + s.Errors}
		assert.Equal(t, s.Requests, s.Latency.Count(), "the latencies are those of the same requests")
	}
	return got
}

func TestRecorderCountsByWhatWasWantedAndServed(t *testing.T) {
	c := newClock(t0)
	r := newRecorder(t, c)
	for _, q := range []rollout.Request{
		good("order", "", ""), good("order", "v2", "v2"), failed("order", "v2", "v2"), good("order", "v2", ""),
		good("order", "v3", "v3"), good("stock", "v2", "v2"),
		{Service: "order", Wanted: "v2", Outcome: "unavailable", Status: 503, Err: errors.New("nobody")},
	} {
		r.Record(q)
	}
	c.advance(10 * time.Second)
	assert.Equal(t, counts{{"", ""}: {1, 0}, {"v2", "v2"}: {2, 1}, {"v2", ""}: {1, 0}, {"v2", rollout.ServedNone}: {1, 1}},
		samples(t, r, "order", "v2", t0, c.now()))
	assert.Equal(t, counts{{"v2", "v2"}: {1, 0}}, samples(t, r, "stock", "v2", t0, c.now()))
	assert.Equal(t, counts{{"", ""}: {1, 0}, {"v2", "v2"}: {3, 1}, {"v2", ""}: {1, 0}, {"v2", rollout.ServedNone}: {1, 1}},
		samples(t, r, "", "v2", t0, c.now()), "all services together")
	assert.Empty(t, samples(t, r, "nobody", "v2", t0, c.now()))
}

func TestRecorderWhatIsAnError(t *testing.T) {
	broken := errors.New("the answer broke off")
	for name, c := range map[string]struct {
		change           func(*rollout.Request)
		requests, errors uint64
	}{
		"200":                          {func(*rollout.Request) {}, 1, 0},
		"404":                          {func(q *rollout.Request) { q.Status = 404 }, 1, 0},
		"a body that is too long":      {func(q *rollout.Request) { q.Status, q.Err = 413, broken }, 1, 0},
		"a tunnel":                     {func(q *rollout.Request) { q.Status = 101 }, 1, 0},
		"500":                          {func(q *rollout.Request) { q.Status = 500 }, 1, 1},
		"502":                          {func(q *rollout.Request) { q.Status, q.Err = 502, broken }, 1, 1},
		"no answer":                    {func(q *rollout.Request) { q.Status = 0 }, 1, 1},
		"half an answer":               {func(q *rollout.Request) { q.Err = broken }, 1, 1},
		"the client is gone":           {func(q *rollout.Request) { q.Canceled, q.Err, q.Status = true, broken, 0 }, 0, 0},
		"the client is gone, 499":      {func(q *rollout.Request) { q.Status = 499 }, 0, 0},
		"no decision":                  {func(q *rollout.Request) { q.Outcome, q.Status, q.Err = "", 400, broken }, 0, 0},
		"gRPC: OK":                     {func(q *rollout.Request) { q.GRPCStatus = 0 }, 1, 0},
		"gRPC: Canceled":               {func(q *rollout.Request) { q.GRPCStatus = 1 }, 0, 0},
		"gRPC: Unknown":                {func(q *rollout.Request) { q.GRPCStatus = 2 }, 1, 1},
		"gRPC: InvalidArgument":        {func(q *rollout.Request) { q.GRPCStatus = 3 }, 1, 0},
		"gRPC: DeadlineExceeded":       {func(q *rollout.Request) { q.GRPCStatus = 4 }, 1, 1},
		"gRPC: NotFound":               {func(q *rollout.Request) { q.GRPCStatus = 5 }, 1, 0},
		"gRPC: ResourceExhausted":      {func(q *rollout.Request) { q.GRPCStatus = 8 }, 1, 0},
		"gRPC: Unimplemented":          {func(q *rollout.Request) { q.GRPCStatus = 12 }, 1, 1},
		"gRPC: Internal":               {func(q *rollout.Request) { q.GRPCStatus = 13 }, 1, 1},
		"gRPC: Unavailable":            {func(q *rollout.Request) { q.GRPCStatus = 14 }, 1, 1},
		"gRPC: DataLoss":               {func(q *rollout.Request) { q.GRPCStatus = 15 }, 1, 1},
		"gRPC: Unauthenticated":        {func(q *rollout.Request) { q.GRPCStatus = 16 }, 1, 0},
		"gRPC: none, over HTTP a 503":  {func(q *rollout.Request) { q.Status, q.GRPCStatus = 503, -1 }, 1, 1},
		"an answer that took no time":  {func(q *rollout.Request) { q.Duration = 0 }, 1, 0},
		"an answer that took all time": {func(q *rollout.Request) { q.Duration = time.Hour }, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			at := newClock(t0)
			r := newRecorder(t, at)
			q := good("order", "v2", "v2")
			c.change(&q)
			r.Record(q)
			at.advance(10 * time.Second)
			want := counts{}
			if c.requests > 0 {
				want[[2]string{"v2", "v2"}] = [2]uint64{c.requests, c.errors}
			}
			assert.Equal(t, want, samples(t, r, "order", "v2", t0, at.now()))
		})
	}
}

func TestRecorderNeverAnswersWithARequestFromOutside(t *testing.T) {
	c := newClock(t0)
	r := newRecorder(t, c)
	for range 60 { // one a second
		r.Record(good("order", "", ""))
		c.advance(time.Second)
	}
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	n := func(from, to time.Time) uint64 { return samples(t, r, "order", "v2", from, to)[[2]string{}][0] }
	assert.EqualValues(t, 60, n(t0, at(60)))
	assert.EqualValues(t, 50, n(at(1), at(60)), "the slot that begins before From is left out")
	assert.EqualValues(t, 50, n(t0, at(59)), "and so is the one that ends after To")
	assert.EqualValues(t, 10, n(at(10), at(20)))
	assert.EqualValues(t, 10, n(at(5), at(25)))
	assert.EqualValues(t, 10, n(at(50), at(1000)), "what has not happened yet is not there")
	for range 5 {
		r.Record(good("order", "", ""))
		c.advance(time.Second)
	}
	assert.EqualValues(t, 10, n(at(50), c.now()), "nor is the slot that is running")
}

func TestRecorderSaysWhatItCannotKnow(t *testing.T) {
	c := newClock(t0.Add(3 * time.Second))
	r := newRecorder(t, c, rollout.WithKeep(time.Minute))
	r.Record(good("order", "", ""))
	c.advance(10 * time.Minute)
	for name, q := range map[string]struct {
		from, to time.Time
		want     string
	}{
		"before it was made": {t0, c.now(), "nobody recorded before 2026-12-01T08:00:03Z"},
		"too long ago":       {c.now().Add(-90 * time.Second), c.now(), "kept for 1m0s"},
		"too short":          {c.now().Add(-9 * time.Second), c.now(), "no slot of 10s"},
		"backwards":          {c.now(), c.now().Add(-30 * time.Second), "no slot of 10s"},
		"to come":            {c.now().Add(time.Hour), c.now().Add(2 * time.Hour), "no slot of 10s"},
	} {
		list, err := r.Samples(context.Background(), rollout.Query{Service: "order", From: q.from, To: q.to})
		assert.Nil(t, list, name)
		var incomplete *rollout.IncompleteError
		require.ErrorAs(t, err, &incomplete, name)
		assert.Contains(t, err.Error(), q.want, name)
		assert.Equal(t, q.from, incomplete.From, name)
		assert.Equal(t, q.to, incomplete.To, name)
	}
	assert.Empty(t, samples(t, r, "order", "v2", c.now().Add(-time.Minute), c.now()), "all that is kept: there was nothing")
}

// TestRecorderIsAsAListOfRequests compares with one that keeps every request.
func TestRecorderIsAsAListOfRequests(t *testing.T) {
	type entry struct {
		at time.Time
		q  rollout.Request
	}
	random := rand.New(rand.NewPCG(1, 2))
	const slot, keep = 7 * time.Second, 100 * time.Second
	for range 20 {
		c := newClock(t0.Add(time.Duration(random.Int64N(int64(time.Hour)))))
		started := c.now()
		r := newRecorder(t, c, rollout.WithSlot(slot), rollout.WithKeep(keep))
		var all []entry
		for range 2000 {
			switch random.IntN(10) {
			case 0:
				c.advance(time.Duration(random.Int64N(int64(3 * slot))))
			case 1:
				c.advance(time.Duration(random.Int64N(int64(keep / 10))))
			case 2:
				to := c.now().Add(-time.Duration(random.Int64N(int64(keep))))
				from := to.Add(-time.Duration(random.Int64N(int64(keep))))
				version := [...]string{"v2", "v3"}[random.IntN(2)]
				service := [...]string{"order", "stock", ""}[random.IntN(3)]
				list, err := r.Samples(context.Background(), rollout.Query{Service: service, Version: version, From: from, To: to})
				// In whole slots of the calendar.
				first, end := from.Add(slot-1).UnixNano()/int64(slot), to.UnixNano()/int64(slot)
				kept := c.now().UnixNano()/int64(slot) - 15 // 100 s are 15 slots
				if from.Before(started) || first < kept || end <= first {
					require.Error(t, err)
					continue
				}
				require.NoError(t, err)
				want := map[[2]string]*rollout.Sample{}
				for _, e := range all {
					n := e.at.UnixNano() / int64(slot)
					if n < first || n >= end || service != "" && e.q.Service != service || e.q.Wanted != "" && e.q.Wanted != version {
						continue
					}
					k := [2]string{e.q.Wanted, e.q.Served}
					if want[k] == nil {
						want[k] = &rollout.Sample{Wanted: k[0], Served: k[1], Latency: &rollout.Histogram{}}
					}
					want[k].Requests++
					want[k].Latency.Add(e.q.Duration)
					if e.q.Status == 500 {
						want[k].Errors++
					}
				}
				got := map[[2]string]*rollout.Sample{}
				for _, s := range list {
					k := [2]string{s.Wanted, s.Served}
					if got[k] == nil {
						got[k] = &rollout.Sample{Wanted: k[0], Served: k[1], Latency: &rollout.Histogram{}}
					}
					got[k].Requests += s.Requests
					got[k].Errors += s.Errors
					got[k].Latency.Merge(s.Latency)
				}
				require.Equal(t, want, got)
			default:
				q := good([...]string{"order", "stock"}[random.IntN(2)], [...]string{"", "v2", "v3"}[random.IntN(3)], [...]string{"", "v2"}[random.IntN(2)])
				q.Duration = time.Duration(random.Int64N(int64(time.Second)))
				if random.IntN(5) == 0 {
					q.Status = 500
				}
				r.Record(q)
				all = append(all, entry{c.now(), q})
			}
		}
	}
}

// TestRecorderRotation lets writers go round a small ring many times. The duration
// of each request names its slot, so that one in a wrong slot is seen.
func TestRecorderRotation(t *testing.T) {
	const slot, slots, writers, each = time.Second, 8, 8, 4000
	named := func(at time.Time) time.Duration { return time.Duration(1<<17) << (at.Unix() % 16) }
	c := newClock(t0)
	r := newRecorder(t, c, rollout.WithSlot(slot), rollout.WithKeep(slots*slot))
	var counted [4096]atomic.Int64 // by slot
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for range each {
				c.advance(slot / 50) // 640 slots, 80 laps
				at := c.now()
				q := good("order", "v2", "v2")
				q.Duration = named(at)
				r.RecordAt(q, at)
				counted[at.Unix()-t0.Unix()].Add(1)
			}
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	seen := 0
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		end := c.now().Truncate(slot)
		for at := end.Add(-(slots - 2) * slot); at.Before(end); at = at.Add(slot) {
			list, err := r.Samples(context.Background(), rollout.Query{Service: "order", Version: "v2", From: at, To: at.Add(slot)})
			if err != nil {
				continue // before the beginning, or time went faster than this loop
			}
			for _, s := range list {
				seen++
				bucket := named(at)
				assert.Equal(t, s.Latency.Count(), s.Latency.Above(bucket-1)-s.Latency.Above(2*bucket), "requests of another slot")
				assert.LessOrEqual(t, s.Errors, s.Requests)
			}
		}
	}
	assert.Positive(t, seen)
	// When all is quiet nothing is missing either.
	c.advance(slot)
	end := c.now().Truncate(slot)
	for at := end.Add(-(slots - 2) * slot); at.Before(end); at = at.Add(slot) {
		got := samples(t, r, "order", "v2", at, at.Add(slot))[[2]string{"v2", "v2"}][0]
		assert.EqualValues(t, counted[at.Unix()-t0.Unix()].Load(), got)
	}
}

func TestRecorderLosesNothingOfManyWriters(t *testing.T) {
	const writers, each = 8, 5000
	c := newClock(t0)
	r := newRecorder(t, c)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				c.advance(time.Millisecond)
				q := good("order", "v"+strconv.Itoa(i%3), "")
				if i%4 == w%4 {
					q.Status = 500
				}
				r.Record(q)
			}
		})
	}
	group.Wait()
	c.advance(10 * time.Second)
	total, bad := uint64(0), uint64(0)
	for v := range 3 {
		n := samples(t, r, "order", "v"+strconv.Itoa(v), t0, c.now())[[2]string{"v" + strconv.Itoa(v), ""}]
		total, bad = total+n[0], bad+n[1]
	}
	assert.EqualValues(t, writers*each, total)
	assert.EqualValues(t, writers*each/4, bad)
	assert.Zero(t, r.Dropped())
}

func TestRecorderIsBounded(t *testing.T) {
	c := newClock(t0)
	r := newRecorder(t, c, rollout.WithKeep(time.Minute), rollout.WithMaxSeries(40))
	for i := range 1000 { // somebody invents versions
		r.Record(good("lanes", "user"+strconv.Itoa(i), ""))
	}
	r.Record(good("order", "v2", "v2"))
	assert.EqualValues(t, 990, r.Dropped(), "a quarter is for one service")
	c.advance(10 * time.Second)
	assert.Equal(t, counts{{"v2", "v2"}: {1, 0}}, samples(t, r, "order", "v2", t0, c.now()), "the others go on")
	for _, service := range []string{"lanes", ""} {
		_, err := r.Samples(context.Background(), rollout.Query{Service: service, Version: "v2", From: t0, To: c.now()})
		var incomplete *rollout.IncompleteError
		require.ErrorAs(t, err, &incomplete, "%q", service)
		assert.Contains(t, err.Error(), "too many combinations")
	}

	// Services, too, are bounded.
	for i := range 100 {
		r.Record(good(fmt.Sprint("service", i), "", ""))
	}
	assert.EqualValues(t, 990+100-29, r.Dropped())
	c.advance(10 * time.Second)
	r.Record(good("service1", "", ""))
	r.Record(good("service99", "", ""))
	c.advance(10 * time.Second)
	_, err := r.Samples(context.Background(), rollout.Query{Service: "service99", Version: "v2", From: t0, To: c.now()})
	assert.ErrorContains(t, err, "too many combinations", "one that is not told apart")
	assert.Equal(t, counts{{"", ""}: {1, 0}}, samples(t, r, "service1", "v2", t0.Add(20*time.Second), c.now()), "one that was there in time")

	// What nobody uses any more makes room.
	c.advance(90 * time.Second)
	from := c.now()
	r.Record(good("lanes", "v2", "v2"))
	r.Record(good("service99", "", ""))
	c.advance(20 * time.Second)
	assert.Equal(t, counts{{"v2", "v2"}: {1, 0}}, samples(t, r, "lanes", "v2", from, c.now()))
	assert.Equal(t, counts{{"", ""}: {1, 0}}, samples(t, r, "service99", "v2", from, c.now()))
	assert.EqualValues(t, 990+100-29+1, r.Dropped())
}

func TestRecorderRefusesBadOptions(t *testing.T) {
	for _, o := range []rollout.RecorderOption{
		rollout.WithSlot(0), rollout.WithSlot(-time.Second), rollout.WithSlot(time.Microsecond), rollout.WithSlot(time.Hour),
		rollout.WithKeep(0), rollout.WithKeep(15 * time.Second), rollout.WithKeep(1000 * time.Hour), rollout.WithMaxSeries(0),
	} {
		r, err := rollout.NewRecorder(o)
		assert.Nil(t, r)
		assert.ErrorContains(t, err, "rollout: recorder: ")
	}
	_, err := rollout.NewRecorder(nil, rollout.WithKeep(20*time.Second))
	assert.NoError(t, err)
}

func TestRecorderAllocatesNothing(t *testing.T) {
	c := newClock(t0)
	r := newRecorder(t, c)
	q := failed("order", "v2", "v2")
	allocs := testing.AllocsPerRun(1000, func() { r.Record(q) })
	if !race.Enabled {
		assert.Zero(t, allocs)
	}
	full := newRecorder(t, c, rollout.WithMaxSeries(1))
	full.Record(good("order", "", ""))
	allocs = testing.AllocsPerRun(1000, func() { full.Record(q) })
	if !race.Enabled {
		assert.Zero(t, allocs, "where there is no room")
	}
}

// BenchmarkRecorderWithoutTheClock leaves out what time.Now costs, which is most of it.
func BenchmarkRecorderWithoutTheClock(b *testing.B) {
	r := newRecorder(b, nil)
	q, now := good("order", "v2", "v2"), time.Now()
	b.ReportAllocs()
	for b.Loop() {
		r.RecordAt(q, now)
	}
}

func BenchmarkRecorder(b *testing.B) {
	for _, parallel := range []bool{false, true} {
		b.Run(fmt.Sprintf("parallel=%t", parallel), func(b *testing.B) {
			r := newRecorder(b, nil)
			requests := []rollout.Request{good("order", "", ""), good("order", "v2", "v2"), good("order", "v2", "")}
			for i := range requests {
				requests[i].Duration = time.Duration(i+1) * 3 * time.Millisecond
			}
			b.ReportAllocs()
			if !parallel {
				for i := 0; b.Loop(); i++ {
					r.Record(requests[i%3])
				}
				return
			}
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					r.Record(requests[i%3])
				}
			})
		})
	}
}

func BenchmarkRecorderSamples(b *testing.B) {
	c := newClock(t0)
	r := newRecorder(b, c)
	for range 360 {
		r.Record(good("order", "", ""))
		r.Record(good("order", "v2", "v2"))
		c.advance(10 * time.Second)
	}
	b.ReportAllocs()
	for b.Loop() {
		samples(b, r, "order", "v2", c.now().Add(-5*time.Minute), c.now())
	}
}
