package propagation_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"
	otelprop "go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/propagation"
)

var tag = graytag.MustParse("uid=10086;channel=app;version=v2.1.0")

// counted makes a propagator and a func that sums up one of its counters.
func counted(t testing.TB, opts ...propagation.Option) (*propagation.Propagator, func(name string) int64) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	p, err := propagation.New(append(opts, propagation.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))...)
	require.NoError(t, err)
	return p, func(name string) (sum int64) {
		var rm metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(context.Background(), &rm))
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				if m.Name == name {
					for _, dp := range m.Data.(metricdata.Sum[int64]).DataPoints {
						sum += dp.Value
					}
				}
			}
		}
		return sum
	}
}

const malformed = "graylane.propagation.malformed"

func header(kv ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(kv); i += 2 {
		h.Add(kv[i], kv[i+1])
	}
	return h
}

func members(t testing.TB, line string) map[string]string {
	t.Helper()
	b, err := baggage.Parse(line)
	require.NoError(t, err, line)
	m := map[string]string{}
	for _, x := range b.Members() {
		m[x.Key()] = x.Value()
	}
	return m
}

func withBaggage(t testing.TB, ctx context.Context, kv ...string) context.Context {
	t.Helper()
	b := baggage.FromContext(ctx)
	for i := 0; i < len(kv); i += 2 {
		m, err := baggage.NewMemberRaw(kv[i], kv[i+1])
		require.NoError(t, err)
		b, err = b.SetMember(m)
		require.NoError(t, err)
	}
	return baggage.ContextWithBaggage(ctx, b)
}

// plain is a carrier that can neither delete nor list several values.
type plain map[string]string

func (p plain) Get(k string) string { return p[strings.ToLower(k)] }
func (p plain) Set(k, v string)     { p[strings.ToLower(k)] = v }
func (p plain) Keys() []string      { return nil }

func carriers() map[string]otelprop.TextMapCarrier {
	type pair struct{ k, v string }
	return map[string]otelprop.TextMapCarrier{
		"header":      propagation.HeaderCarrier{},
		"otel header": otelprop.HeaderCarrier{},
		"map":         propagation.MapCarrier{},
		"otel map":    otelprop.MapCarrier{},
		"plain":       plain{},
		"slice": propagation.NewSliceCarrier(&[]pair{{"Other", "1"}},
			func(p pair) (string, string) { return p.k, p.v },
			func(k, v string) pair { return pair{k, v} }),
	}
}

func TestRoundTripOnEveryCarrier(t *testing.T) {
	p, _ := counted(t)
	for name, c := range carriers() {
		t.Run(name, func(t *testing.T) {
			ctx := withBaggage(t, graytag.NewContext(context.Background(), tag), "tenant", "a;b")
			p.Inject(ctx, c)
			p.Inject(ctx, c)
			assert.Equal(t, tag.String(), c.Get("X-Gray-Tag"))

			got := p.Extract(context.Background(), c)
			assert.True(t, graytag.FromContext(got).Equal(tag))
			assert.Equal(t, "v2.1.0", baggage.FromContext(got).Member("gray.version").Value())
			assert.Equal(t, "a;b", baggage.FromContext(got).Member("tenant").Value(), "baggage of others travels")

			p.Inject(graytag.NewContext(context.Background(), graytag.Tag{}), c)
			assert.Empty(t, c.Get("X-Gray-Tag"), "a stale header goes")
			got = p.Extract(context.Background(), c)
			assert.True(t, graytag.FromContext(got).IsZero())
			assert.False(t, graytag.InScope(got), "a bare Extract does not mark")
			assert.Equal(t, "a;b", baggage.FromContext(got).Member("tenant").Value())
		})
	}
}

func TestInjectIntoACarrierWithTheBaggageOfOthers(t *testing.T) {
	p, _ := counted(t)
	h := header("Baggage", "a=1;p=x,gray.version=v9", "Baggage", "gray.uid=7, b = 2", "X-Gray-Tag", "version=v9", "X-Gray-Tag", "version=v8")
	ctx := withBaggage(t, graytag.NewContext(context.Background(), graytag.MustParse("version=v2")), "b", "3")
	p.Inject(ctx, propagation.HeaderCarrier(h))
	assert.Equal(t, []string{"version=v2"}, h["X-Gray-Tag"])
	require.Len(t, h["Baggage"], 1)
	assert.Equal(t, map[string]string{"a": "1", "b": "3", "gray.version": "v2"}, members(t, h.Get("Baggage")))
	assert.Contains(t, h.Get("Baggage"), "a=1;p=x", "properties stay")

	p.Inject(graytag.NewContext(context.Background(), graytag.Tag{}), propagation.HeaderCarrier(h))
	assert.Equal(t, map[string]string{"a": "1", "b": "3"}, members(t, h.Get("Baggage")))
	h = header("Baggage", "gray.version=v9")
	p.Inject(graytag.NewContext(context.Background(), graytag.Tag{}), propagation.HeaderCarrier(h))
	assert.Empty(t, h)
}

func TestInjectLeavesOutMembersThatW3CDoesNotAllow(t *testing.T) {
	p, _ := counted(t)
	odd, err := baggage.NewMemberRaw("租户", "acme")
	require.NoError(t, err)
	fine, err := baggage.NewMemberRaw("tenant", "acme")
	require.NoError(t, err)
	bag, err := baggage.New(odd, fine)
	require.NoError(t, err)
	ctx := graytag.NewContext(baggage.ContextWithBaggage(context.Background(), bag), graytag.MustParse("version=v2"))
	h := http.Header{}
	p.Inject(ctx, propagation.HeaderCarrier(h))
	assert.Equal(t, []string{"tenant=acme,gray.version=v2"}, h["Baggage"])
}

func TestInjectOutOfScopeLeavesTheCarrier(t *testing.T) {
	p, _ := counted(t)
	h := header("X-Gray-Tag", "version=v2", "Baggage", "gray.version=v2")
	want := h.Clone()
	p.Inject(context.Background(), propagation.HeaderCarrier(h))
	assert.Equal(t, want, h)
	got, ok := p.Tag(context.Background(), propagation.HeaderCarrier(h))
	assert.True(t, ok)
	assert.Equal(t, "version=v2", got.String())
}

func TestReceiveMarksWhatAConsumerGets(t *testing.T) {
	p, _ := counted(t)
	tagged := p.Receive(context.Background(), propagation.MapCarrier{"x-gray-tag": "version=v2"})
	assert.Equal(t, "version=v2", graytag.FromContext(tagged).String())
	for _, c := range []propagation.MapCarrier{{}, {"x-gray-tag": "v2"}, {"baggage": "a=1"}} {
		ctx := p.Receive(context.Background(), c)
		assert.True(t, graytag.InScope(ctx), "an untagged message is known to be untagged")
		assert.True(t, graytag.FromContext(ctx).IsZero())
		assert.Equal(t, len(c["baggage"])/3, baggage.FromContext(ctx).Len())
	}
	twice := p.Receive(tagged, propagation.MapCarrier{})
	assert.Equal(t, "version=v2", graytag.FromContext(twice).String(), "what the context knows stays")
}

func TestTheContextIsTheTruthOverItsBaggage(t *testing.T) {
	p, _ := counted(t)
	// OTel middleware inside ours reads the old members back.
	ctx := withBaggage(t, graytag.NewContext(context.Background(), graytag.MustParse("version=v2")), "gray.version", "v9", "gray.lane", "x")
	h := http.Header{}
	p.Inject(ctx, propagation.HeaderCarrier(h))
	assert.Equal(t, map[string]string{"gray.version": "v2"}, members(t, h.Get("Baggage")))
}

func TestT1_MembersOfOtherLanguages(t *testing.T) {
	p, _ := counted(t)
	for _, line := range []string{
		"gray.uid=10086,gray.channel=app,gray.version=v2.1.0,gray.note=a%3Db%3Bc",
		"gray.uid=10086, gray.channel = app ,gray.version=v2.1.0;prop=1,gray.note=a=b%3Bc",
	} {
		ctx := p.Extract(context.Background(), propagation.HeaderCarrier(header("Baggage", line)))
		assert.Equal(t, "channel=app;note=a%3Db%3Bc;uid=10086;version=v2.1.0", graytag.FromContext(ctx).String(), line)
	}
	h := http.Header{}
	p.Inject(graytag.NewContext(context.Background(), tag), propagation.HeaderCarrier(h))
	assert.Equal(t, map[string]string{"gray.uid": "10086", "gray.channel": "app", "gray.version": "v2.1.0"}, members(t, h.Get("Baggage")))
}

func TestALargestTagGoesThroughBaggageAlone(t *testing.T) {
	largest := graytag.MustParse("a=" + strings.Repeat("a", 256) + ";b=" + strings.Repeat("b", 256) + ";c=" + strings.Repeat("c", 256) +
		";d=" + strings.Repeat("d", graytag.MaxBytes-3*(256+3)-2))
	require.Len(t, largest.String(), graytag.MaxBytes)
	p, count := counted(t)
	h := http.Header{}
	p.Inject(graytag.NewContext(context.Background(), largest), propagation.HeaderCarrier(h))
	h.Del("X-Gray-Tag")
	got := graytag.FromContext(p.Extract(context.Background(), propagation.HeaderCarrier(h)))
	assert.True(t, got.Equal(largest))
	assert.Zero(t, count(malformed))
}

func TestT2_TheSameBytesOnEveryHop(t *testing.T) {
	p, count := counted(t)
	special, err := tag.With("channel", "灰度 a+b%")
	require.NoError(t, err)
	all := otelprop.NewCompositeTextMapPropagator(otelprop.TraceContext{}, otelprop.Baggage{})
	ctx := graytag.NewContext(context.Background(), special)
	var firstTag string
	var firstMembers []string
	for hop := range 6 {
		h := http.Header{}
		if hop == 3 { // a service with nothing but OTel
			all.Inject(ctx, otelprop.HeaderCarrier(h))
			ctx = all.Extract(context.Background(), otelprop.HeaderCarrier(h))
		} else {
			p.Inject(ctx, propagation.HeaderCarrier(h))
			ctx = p.Extract(context.Background(), propagation.HeaderCarrier(h))
			if hop == 0 {
				firstTag = h.Get("X-Gray-Tag")
			}
			assert.Equal(t, firstTag, h.Get("X-Gray-Tag"))
		}
		lines := strings.Split(h.Get("Baggage"), ",")
		if hop == 0 {
			firstMembers = lines
		}
		assert.ElementsMatch(t, firstMembers, lines, "hop %d", hop)
		assert.NotContains(t, h.Get("Baggage"), "%25E7")
	}
	assert.Equal(t, "灰度 a+b%", graytag.FromContext(ctx).Get("channel"))

	for _, h := range []http.Header{header("X-Gray-Tag", "channel=%ff"), header("Baggage", "gray.channel=%ff")} {
		before := count(malformed)
		// OTel's propagator in front makes U+FFFD of it: that is no tag either.
		ctx := p.Extract(all.Extract(context.Background(), otelprop.HeaderCarrier(h)), propagation.HeaderCarrier(h))
		assert.True(t, graytag.FromContext(ctx).IsZero())
		assert.Zero(t, baggage.FromContext(ctx).Len())
		assert.Equal(t, before+1, count(malformed))
	}
}

func TestT3_SeveralValues(t *testing.T) {
	for name, c := range map[string]struct {
		header    http.Header
		want      string
		malformed int64
	}{
		"two lines that differ":            {header("X-Gray-Tag", "version=v1", "X-Gray-Tag", "version=v2"), "", 1},
		"the next carrier is asked":        {header("X-Gray-Tag", "version=v1", "X-Gray-Tag", "version=v2", "Baggage", "gray.version=v3"), "version=v3", 1},
		"joined with a comma":              {header("X-Gray-Tag", "version=v1, version=v2", "Baggage", "gray.version=v3"), "version=v3", 1},
		"joined with a comma, equal":       {header("X-Gray-Tag", "version=v1, version=v1"), "", 1},
		"two lines that are equal":         {header("X-Gray-Tag", "version=v1", "X-Gray-Tag", "version=v1"), "version=v1", 0},
		"an empty line counts as absent":   {header("X-Gray-Tag", "", "X-Gray-Tag", "version=v1"), "version=v1", 0},
		"baggage on two lines":             {header("Baggage", "gray.version=v1,a=1", "Baggage", "gray.uid=7,b=2"), "uid=7;version=v1", 0},
		"members twice and equal":          {header("Baggage", "gray.version=v1, gray.uid=7", "Baggage", "gray.uid=7;p=1,a=1,gray.version=v1"), "uid=7;version=v1", 0},
		"equal, but not quite":             {header("Baggage", "gray.version=v1,gray.version=v10"), "", 1},
		"twice without end":                {header("Baggage", strings.Repeat("gray.version=v1,", 500)), "", 1},
		"members that differ":              {header("Baggage", "gray.version=v1,gray.version=v2"), "", 1},
		"both malformed":                   {header("X-Gray-Tag", "v2", "Baggage", "gray.version=%zz"), "", 2},
		"a tag without pairs is no winner": {header("X-Gray-Tag", " ; ", "Baggage", "gray.version=v1"), "version=v1", 0},
		"members over the limit":           {header("Baggage", "gray.a="+strings.Repeat("x", 1100)), "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, count := counted(t)
			ctx := p.Extract(context.Background(), propagation.HeaderCarrier(c.header))
			assert.Equal(t, c.want, graytag.FromContext(ctx).String())
			assert.Equal(t, c.malformed, count(malformed))
			if c.header.Get("Baggage") == "gray.version=v1,a=1" {
				assert.Equal(t, "1", baggage.FromContext(ctx).Member("a").Value())
				assert.Equal(t, "2", baggage.FromContext(ctx).Member("b").Value())
			}
		})
	}
}

func TestT4_FullBaggage(t *testing.T) {
	p, count := counted(t)
	ctx := context.Background()
	var kv []string
	for i := range 64 {
		kv = append(kv, "k"+strconv.Itoa(i), "v")
	}
	ctx = graytag.NewContext(withBaggage(t, ctx, kv...), tag)
	h := http.Header{}
	p.Inject(ctx, propagation.HeaderCarrier(h))
	assert.Equal(t, tag.String(), h.Get("X-Gray-Tag"))
	assert.Len(t, members(t, h.Get("Baggage")), 64)
	assert.EqualValues(t, 1, count("graylane.propagation.withheld"))
	got := p.Extract(context.Background(), propagation.HeaderCarrier(h))
	assert.True(t, graytag.FromContext(got).Equal(tag))
	assert.Equal(t, 64, baggage.FromContext(got).Len())

	ctx = graytag.NewContext(withBaggage(t, context.Background(), "big", strings.Repeat("x", 8180)), tag)
	h = http.Header{}
	p.Inject(ctx, propagation.HeaderCarrier(h))
	assert.Len(t, members(t, h.Get("Baggage")), 1)
	assert.EqualValues(t, 2, count("graylane.propagation.withheld"))
}

func TestComposesWithOTelInAnyOrder(t *testing.T) {
	p, _ := counted(t)
	for _, all := range []otelprop.TextMapPropagator{
		otelprop.NewCompositeTextMapPropagator(otelprop.TraceContext{}, otelprop.Baggage{}, p),
		otelprop.NewCompositeTextMapPropagator(p, otelprop.Baggage{}, otelprop.TraceContext{}),
	} {
		ctx := graytag.NewContext(withBaggage(t, context.Background(), "a", "1"), tag)
		for range 3 {
			h := http.Header{}
			all.Inject(ctx, otelprop.HeaderCarrier(h))
			assert.Equal(t, []string{tag.String()}, h["X-Gray-Tag"])
			assert.Equal(t, map[string]string{"a": "1", "gray.uid": "10086", "gray.channel": "app", "gray.version": "v2.1.0"}, members(t, h.Get("Baggage")))
			ctx = all.Extract(context.Background(), otelprop.HeaderCarrier(h))
			assert.True(t, graytag.FromContext(ctx).Equal(tag))
		}
	}
}

func TestCompatibilityFormats(t *testing.T) {
	p, count := counted(t, propagation.WithVersionHeader("X-Gray-Version"), propagation.WithFlagHeader("gray"), propagation.WithCanaryHeader("X-Canary"))
	assert.Equal(t, []string{"X-Gray-Tag", "baggage", "X-Gray-Version", "Gray", "X-Canary"}, p.Fields())
	for _, c := range []struct {
		name, value, want string
		malformed         int64
	}{
		{"X-Gray-Version", "v2.1.0", "version=v2.1.0", 0},
		{"X-Gray-Version", " v2 ", "version=v2", 0},
		{"X-Gray-Version", "v2, v3", "", 1},
		{"X-Gray-Version", "v2\tx", "", 1},
		{"gray", "True", "gray=true", 0},
		{"gray", "FALSE", "gray=false", 0},
		{"gray", "yes", "", 1},
		{"X-Canary", "canary", "version=canary", 0},
		{"X-Canary", "TRUE", "version=canary", 0},
		{"X-Canary", "stable", "version=stable", 0},
		{"X-Canary", "false", "version=stable", 0},
		{"X-Canary", "always", "", 1},
	} {
		before := count(malformed)
		ctx := p.Extract(context.Background(), propagation.HeaderCarrier(header(c.name, c.value)))
		assert.Equal(t, c.want, graytag.FromContext(ctx).String(), "%s: %s", c.name, c.value)
		assert.Equal(t, c.malformed, count(malformed)-before, "%s: %s", c.name, c.value)
	}
	for in, want := range map[string]http.Header{
		"version=canary;gray=TRUE": header("X-Gray-Version", "canary", "gray", "true", "X-Canary", "canary"),
		"version=v2":               header("X-Gray-Version", "v2"),
		"version=stable":           header("X-Gray-Version", "stable", "X-Canary", "stable"),
		"version=灰度":               {}, // grpc-go would fail a call with it
		"version=a%2Cb":            {},
		"lane=x":                   {},
	} {
		h := header("X-Gray-Version", "old", "gray", "false", "X-Canary", "stable")
		p.Inject(graytag.NewContext(context.Background(), graytag.MustParse(in)), propagation.HeaderCarrier(h))
		delete(h, "X-Gray-Tag")
		delete(h, "Baggage")
		assert.Equal(t, want, h, in)
	}
	h := header("X-Gray-Tag", "version=v1", "X-Gray-Version", "v2", "gray", "true")
	assert.Equal(t, "version=v1", graytag.FromContext(p.Extract(context.Background(), propagation.HeaderCarrier(h))).String(), "the first carrier wins")
	assert.True(t, p.Remove(propagation.HeaderCarrier(h)))
	assert.Empty(t, h)
	assert.False(t, p.Remove(propagation.HeaderCarrier(h)))
}

// OTel's own MapCarrier, and most carriers of its instrumentations for message
// brokers, compare keys byte by byte.
func TestCarriersThatTellKeysApartByCase(t *testing.T) {
	p, _ := counted(t)
	ctx := graytag.NewContext(withBaggage(t, context.Background(), "a", "1"), tag)
	ours := otelprop.MapCarrier{}
	p.Inject(ctx, ours)
	read := otelprop.Baggage{}.Extract(context.Background(), ours)
	assert.True(t, graytag.FromContext(read).Equal(tag), "a service with nothing but OTel reads it: %v", ours)

	theirs := otelprop.MapCarrier{}
	otelprop.Baggage{}.Inject(ctx, theirs)
	got := p.Extract(context.Background(), theirs)
	assert.True(t, graytag.FromContext(got).Equal(tag), "%v", theirs)
	assert.Equal(t, "1", baggage.FromContext(got).Member("a").Value())

	p.Inject(graytag.NewContext(context.Background(), graytag.Tag{}), theirs)
	assert.Equal(t, otelprop.MapCarrier{"baggage": "a=1"}, theirs, "what is stale goes")
	assert.False(t, p.Remove(theirs))
	assert.True(t, p.Remove(ours))
	assert.Equal(t, "a=1", ours["baggage"])
}

// What we may read is bounded; what must not leave, or must not get lost, is not.
func TestBaggageOverTheLimitOnTheWayOut(t *testing.T) {
	big := "big=" + strings.Repeat("x", 8200)
	for name, lines := range map[string][]string{
		"behind":       {big + ",gray.uid=10086,last=1"},
		"on a line":    {big, "gray.uid=10086", "last=1"},
		"in many":      {"a=" + strings.Repeat("x", 8000), "b=" + strings.Repeat("x", 8000), "gray.uid=10086,last=1"},
		"at the front": {"gray.uid=10086," + big + ",last=1"},
	} {
		t.Run(name, func(t *testing.T) {
			p, count := counted(t)
			foreign := strings.Replace(strings.Join(lines, ","), "gray.uid=10086,", "", 1)
			h := http.Header{"Baggage": slices.Clone(lines)}
			assert.True(t, p.Remove(propagation.HeaderCarrier(h)))
			assert.Equal(t, []string{foreign}, h["Baggage"])

			h = http.Header{"Baggage": slices.Clone(lines)}
			p.Inject(graytag.NewContext(context.Background(), graytag.Tag{}), propagation.HeaderCarrier(h))
			assert.Equal(t, []string{foreign}, h["Baggage"], "untagged")

			h = http.Header{"Baggage": slices.Clone(lines)}
			p.Inject(graytag.NewContext(context.Background(), tag), propagation.HeaderCarrier(h))
			assert.Equal(t, []string{foreign}, h["Baggage"], "no room for ours")
			assert.Equal(t, tag.String(), h.Get("X-Gray-Tag"))
			assert.EqualValues(t, 1, count("graylane.propagation.withheld"))
		})
	}
}

func TestRemoveKeepsTheBaggageOfOthers(t *testing.T) {
	p, _ := counted(t)
	h := header("Baggage", "gray.version=v2,a=1", "Baggage", "b=2;p", "X-Gray-Tag", "", "X-Gray-Tag", "version=v2")
	assert.True(t, p.Remove(propagation.HeaderCarrier(h)))
	assert.Equal(t, http.Header{"Baggage": {"a=1,b=2;p"}}, h)

	h = header("Baggage", "\u00a0gray.version\u2003=v2,a=1")
	assert.True(t, p.Remove(propagation.HeaderCarrier(h)), "OTel takes all that Unicode calls space for space")
	assert.Equal(t, http.Header{"Baggage": {"a=1"}}, h)
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []propagation.Option{
		propagation.WithVersionHeader(""), propagation.WithVersionHeader("a b"), propagation.WithFlagHeader("x-gray-tag"),
		propagation.WithCanaryHeader("baggage"), propagation.WithFlagHeader("grau\r\n"), propagation.WithVersionHeader("x-version-bin"),
	} {
		_, err := propagation.New(nil, o)
		require.Error(t, err)
		assert.True(t, strings.HasPrefix(err.Error(), "propagation: "), err.Error())
	}
	_, err := propagation.New(propagation.WithFlagHeader("gray"), propagation.WithVersionHeader("Gray"))
	require.Error(t, err)
}

type key struct{}

func TestT7_Detach(t *testing.T) {
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), key{}, "request"), time.Minute)
	ctx = trace.ContextWithSpanContext(withBaggage(t, graytag.NewContext(ctx, tag), "a", "1"), sc)

	got := make(chan context.Context, 2)
	propagation.Go(ctx, func(ctx context.Context) { got <- ctx })
	bound := propagation.Bind(ctx, func(ctx context.Context) { got <- ctx })
	cancel()
	bound()
	for range 2 {
		d := <-got
		assert.NoError(t, d.Err())
		_, has := d.Deadline()
		assert.False(t, has)
		assert.True(t, graytag.FromContext(d).Equal(tag))
		assert.Equal(t, "1", baggage.FromContext(d).Member("a").Value())
		assert.Equal(t, sc, trace.SpanContextFromContext(d))
		assert.Nil(t, d.Value(key{}))
	}
	d := propagation.Detach(context.Background())
	assert.False(t, graytag.InScope(d), "lost stays lost")
	d = propagation.Detach(graytag.NewContext(context.Background(), graytag.Tag{}))
	assert.True(t, graytag.InScope(d), "untagged stays untagged")
}

func TestInternalHost(t *testing.T) {
	for host, want := range map[string]bool{
		"inventory": true, "inventory:8080": true, "localhost": true, "127.0.0.1:80": true, "[::1]:80": true, "::1": true, "[::1]": true,
		"10.1.2.3": true, "172.16.0.1": true, "192.168.1.1:443": true, "[fd00::1]:80": true, "[::ffff:10.0.0.1]:80": true,
		"a.local": true, "a.internal": true, "a.ns.svc": true, "a.ns.svc.cluster.local": true, "A.NS.SVC.": true,
		"": false, "example.com": false, "example.com:80": false, "8.8.8.8": false, "169.254.169.254": false, "[2001:db8::1]:80": false,
		"10.0.0.1.example.com": false, "svc.example.com": false, "local.com": false, "134744072": false, "0x08080808": false, "a.notlocal": false,
		"inventory-v2_1": true, "1inventory": true, "10.0.0.1.": true, "0xinventory": true,
		// What a resolver may take for an address.
		"8.8": false, "0x8.8": false, "134744072.": false, "99999999999999999999": false, "8.0x080808": false, "1.2.3.4.internal": true,
		// Dots by IDNA, which net/http makes ASCII of before it dials, and what no host name holds.
		"evil。com": false, "evil．com": false, "evil｡com": false, "évil": false, "evil。com.internal": false,
		"evil.com/.internal": false, "evil.com?.internal": false, "evil.com@x.internal": false, "evil.com\\.internal": false,
		"evil.com%2einternal": false, "a b": false, "evil.com\x00.internal": false, ".internal": false, "a..internal": false, "..": false,
	} {
		assert.Equal(t, want, propagation.InternalHost(host), "%q", host)
	}
}

func TestOutboundScopeWithholds(t *testing.T) {
	var log bytes.Buffer
	p, count := counted(t)
	s := p.NewOutboundScope(func(host string) bool { return host == "partner.example" }, slog.New(slog.NewTextHandler(&log, nil)))
	assert.True(t, s.Allows("partner.example:443"))
	assert.True(t, s.Allows("inventory"))
	assert.False(t, s.Allows("other.example"))

	ctx := graytag.NewContext(withBaggage(t, context.Background(), "a", "1"), tag)
	for range 5 {
		got := s.Withhold(ctx, "other.example:443", false)
		assert.True(t, graytag.FromContext(got).IsZero())
		assert.Equal(t, 1, baggage.FromContext(got).Len())
	}
	s.Withhold(context.Background(), "other.example", true)
	s.Withhold(context.Background(), "other.example", false)
	assert.EqualValues(t, 6, count("graylane.propagation.withheld"))
	assert.Equal(t, 1, strings.Count(log.String(), "other.example"), "one line per host")
	for i := range 1000 {
		s.Withhold(ctx, "h"+strconv.Itoa(i)+".example", false)
	}
	assert.LessOrEqual(t, strings.Count(log.String(), "\n"), 300, "the log is bounded")
}

func FuzzExtract(f *testing.F) {
	f.Add("version=v2", "gray.version=v3;p=1,a=b", "gray.uid=7")
	f.Add("version=%ff", "gray.=,=,;,gray.a", "\x00")
	f.Add("TRUE", "canary", "v2.1.0")
	f.Add("", "\u00a0gray.version=v2", "a=1")
	p, err := propagation.New(propagation.WithVersionHeader("X-Gray-Version"), propagation.WithFlagHeader("gray"), propagation.WithCanaryHeader("X-Canary"))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, tagLine, b1, b2 string) {
		in := http.Header{"X-Gray-Tag": {tagLine}, "Baggage": {b1, b2}, "X-Gray-Version": {b2}, "Gray": {tagLine}, "X-Canary": {b1}}
		ctx := p.Extract(context.Background(), propagation.HeaderCarrier(in))
		got := graytag.FromContext(ctx)
		out := http.Header{}
		p.Inject(ctx, propagation.HeaderCarrier(out))
		back := graytag.FromContext(p.Extract(context.Background(), propagation.HeaderCarrier(out)))
		if !back.Equal(got) {
			t.Fatalf("%q became %q", got, back)
		}
		p.Remove(propagation.HeaderCarrier(in))
		if _, ok := p.Tag(context.Background(), propagation.HeaderCarrier(in)); ok {
			t.Fatalf("Remove left a tag in %q", in)
		}
		ctx = otelprop.Baggage{}.Extract(context.Background(), otelprop.HeaderCarrier(in))
		if graytag.InScope(ctx) {
			t.Fatalf("Remove left something that OTel takes for a tag in %q", in)
		}
	})
}
