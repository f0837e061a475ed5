package middleware_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry/memory"
)

// instrument is one metric of the table, or one that is emitted.
type instrument struct {
	name, kind, unit string
	attrs            []string // keys, sorted
}

func (i instrument) String() string {
	return fmt.Sprintf("%s %s %s %v", i.name, i.kind, i.unit, i.attrs)
}

var (
	metricLine    = regexp.MustCompile(`^(graylane\.\S+) +(counter|gauge|histogram), (\S+)$`)
	attributeLine = regexp.MustCompile(`^    ([a-z]+) +.*: (.*)$`)
	statusValue   = regexp.MustCompile(`^([1-5]\d\d|[A-Z_]+|aborted|hijacked)$`)
)

// metrics reads the table of metrics; values are those of metric and attribute.
func metrics(t *testing.T) (all []instrument, values map[string][]string) {
	values = map[string][]string{}
	for _, line := range table(t, "Metrics") {
		if m := metricLine.FindStringSubmatch(line); m != nil {
			all = append(all, instrument{name: m[1], kind: m[2], unit: m[3]})
			continue
		}
		require.NotEmpty(t, all, line)
		last := &all[len(all)-1]
		if m := attributeLine.FindStringSubmatch(line); m != nil {
			last.attrs = append(last.attrs, m[1])
			values[last.name+" "+m[1]] = strings.Split(m[2], ", ")
			continue
		}
		require.Regexp(t, `^    [A-Z1].*\.$`, line, "neither a metric, an attribute nor what it means")
	}
	for i := range all {
		slices.Sort(all[i].attrs)
	}
	return all, values
}

// fits tells whether the table allows a value.
func fits(allowed []string, value string) bool {
	for _, a := range allowed {
		switch {
		case a == "STATUS":
			if statusValue.MatchString(value) {
				return true
			}
		case a == strings.ToUpper(a) && a != `""`:
			if value != "" {
				return true
			}
		case strings.Trim(a, `"`) == value:
			return true
		}
	}
	return false
}

// places reads the table of what is elsewhere: "gray.version server" and the like.
func places(t *testing.T) (all []string) {
	for _, line := range table(t, "Spans, log lines, profiles") {
		parts := regexp.MustCompile(` {2,}`).Split(line, 3)
		require.Len(t, parts, 3, line)
		for _, where := range strings.Split(parts[1], ", ") {
			all = append(all, parts[0]+" "+where)
		}
	}
	slices.Sort(all)
	return all
}

// TestTheTablesSayWhatIsEmitted runs a chain over real sockets in which everything
// happens that is counted, and compares what is emitted with the page, both ways.
func TestTheTablesSayWhatIsEmitted(t *testing.T) {
	all, labelled := chain(t)

	want, values := metrics(t)
	got := map[string]instrument{}
	for _, s := range all {
		for _, p := range s.points(t) {
			i := instrument{p.metric, p.kind, p.unit, slices.Sorted(maps.Keys(p.attrs))}
			if i.attrs == nil {
				i.attrs = []string{}
			}
			got[i.String()] = i
			for k, v := range p.attrs {
				assert.True(t, fits(values[p.metric+" "+k], v), "%s %s=%q is not on the page: %q", p.metric, k, v, values[p.metric+" "+k])
			}
		}
	}
	var table []string
	for _, i := range want {
		table = append(table, i.String())
	}
	assert.ElementsMatch(t, table, slices.Collect(maps.Keys(got)))

	found := map[string]bool{}
	if labelled {
		found[telemetry.SpanVersion+" profile"] = true
	}
	note := func(where string, attrs []attribute.KeyValue) {
		for _, a := range attrs {
			if strings.HasPrefix(string(a.Key), "gray.") {
				found[string(a.Key)+" "+where] = true
			}
		}
	}
	for _, s := range all {
		for _, span := range s.spans.Ended() {
			where := map[trace.SpanKind]string{trace.SpanKindServer: "server", trace.SpanKindClient: "client"}[span.SpanKind()]
			note(where, span.Attributes())
			for _, e := range span.Events() {
				if strings.HasPrefix(e.Name, "gray.") {
					assert.Equal(t, telemetry.SpanEvent, e.Name)
					note("event", e.Attributes)
				}
			}
		}
		for _, l := range s.log.with(t, "served") {
			for k := range l {
				if strings.HasPrefix(k, "gray.") {
					found[k+" log"] = true
				}
			}
		}
	}
	assert.Equal(t, places(t), slices.Sorted(maps.Keys(found)))
}

// chain makes everything happen once; labelled tells whether a handler had the label
// of CPU profiles.
func chain(t *testing.T) (all []*seen, labelled bool) {
	reg := memory.New()
	see := func() *seen { s := newSeen(t); all = append(all, s); return s }
	add := func(n *node) *node { all = append(all, n.seen); n.register(t, reg); return n }

	// entrance -> order over HTTP, stable and v2 -> inventory over gRPC, and user over
	// HTTP, both stable alone.
	add(serveGRPC(t, instance("inventory", ""), nil))
	user := add(serveHTTP(t, instance("user", ""), nil))
	caller := see()
	inventory, users := dial(t, reg, "inventory", caller), client(t, reg, caller)
	var once sync.Once
	for _, version := range []string{"", "v2"} {
		add(serveHTTP(t, instance("order", version), func(_ http.ResponseWriter, r *http.Request) {
			once.Do(func() {
				var b bytes.Buffer // goroutines have the labels of CPU profiles
				assert.NoError(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
				labelled = strings.Contains(b.String(), `"`+telemetry.SpanVersion+`":"v2"`)
			})
			_, err := call(r.Context(), inventory)
			assert.NoError(t, err)
			_, err = get(r.Context(), users, "http://user/")
			assert.NoError(t, err)
		}, grayhttp.WithProfileLabels()))
	}
	s := see()
	store := rule.NewMemoryStore()
	revision := put(t, store, everybodyGray, 0)
	e := engine(t, s, `{}`)
	follow(t, e, store)
	inForce(t, e, revision)
	gw := entrance(t, e, reg, s)
	// forged, and in the service that is called outside of the entrance malformed
	visit(t, gw.url, "7", graytag.Header, "version=v3", "Baggage", "gray.version=v3", "X-Gray-Trace", "1")
	visit(t, user.url, "", graytag.Header, "no tag")
	// without an instance of the version: event at the entrance
	put(t, store, strings.Replace(everybodyGray, "v2", "v9", 1), revision)
	require.Eventually(t, func() bool { return e.Status().Revision > revision }, wait, time.Millisecond)
	visit(t, gw.url, "7")

	outsider := see()
	_, err := get(context.Background(), client(t, reg, outsider), "http://user/") // orphan
	require.NoError(t, err)
	c := client(t, reg, outsider, grayhttp.WithBalancer(httplb.WithBase(outside(user.self.Address))))
	_, err = get(gray(), c, "http://shop.example.com/") // withheld
	require.NoError(t, err)
	require.Eventually(t, func() bool { // spans end after the answer
		n := 0
		for _, s := range all {
			n += len(s.spans.Started()) - len(s.spans.Ended())
		}
		return n == 0
	}, wait, time.Millisecond)
	return all, labelled
}
