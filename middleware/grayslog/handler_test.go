package grayslog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/trace"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayslog"
	"github.com/graylane/graylane/propagation"
)

func TestVersionOfTheRequest(t *testing.T) {
	members, err := baggage.Parse("gray.version=v2,other=1")
	require.NoError(t, err)
	foreign, err := baggage.Parse("other=1")
	require.NoError(t, err)
	lane := grayslog.WithPolicy(subset.Policy{Key: "lane", Stable: []string{"prod"}, FoldCase: true})
	for name, c := range map[string]struct {
		ctx  context.Context
		opts []grayslog.Option
		want any
	}{
		"no scope":              {context.Background(), nil, nil},
		"foreign baggage":       {baggage.ContextWithBaggage(context.Background(), foreign), nil, nil},
		"untagged":              {graytag.NewContext(context.Background(), graytag.Tag{}), nil, "stable"},
		"a tag with no version": {tagged("uid=1"), nil, "stable"},
		"stable by name":        {tagged("version=stable"), nil, "stable"},
		"version":               {tagged("version=v2"), nil, "v2"},
		"only OTel baggage":     {baggage.ContextWithBaggage(context.Background(), members), nil, "v2"},
		"detached":              {propagation.Detach(tagged("version=v2")), nil, "v2"},

		"of this service":           {tagged("version=v2;version.order=v3"), []grayslog.Option{grayslog.WithService("order")}, "v3"},
		"of another service":        {tagged("version=v2;version.order=v3"), []grayslog.Option{grayslog.WithService("pay")}, "v2"},
		"of another service only":   {tagged("version.order=v3"), []grayslog.Option{grayslog.WithService("pay")}, "stable"},
		"this service is stable":    {tagged("version=v2;version.order=stable"), []grayslog.Option{grayslog.WithService("order")}, "stable"},
		"service without a name":    {tagged("version=v2;version.order=v3"), []grayslog.Option{grayslog.WithService("order"), grayslog.WithService("")}, "v3"},
		"no service":                {tagged("version=v2;version.order=v3"), nil, "v2"},
		"another key":               {tagged("version=v2;lane=Blue"), []grayslog.Option{lane}, "blue"},
		"another key, stable":       {tagged("version=v2;lane=PROD"), []grayslog.Option{lane}, "stable"},
		"another key, this service": {tagged("lane=a;lane.order=b"), []grayslog.Option{lane, grayslog.WithService("order"), nil}, "b"},
	} {
		buf, h := newJSON()
		l := slog.New(grayslog.NewHandler(h, c.opts...))
		l.InfoContext(c.ctx, "x")
		assert.Equal(t, c.want, fields(t, buf)[grayslog.VersionKey], name)
		l.WithGroup("g").InfoContext(c.ctx, "x", "a", 1)
		m := fields(t, buf)
		assert.Equal(t, c.want, m[grayslog.VersionKey], name)
		assert.Equal(t, map[string]any{"a": 1.0}, m["g"], name)
	}
}

func TestARefusedPolicyIsLogged(t *testing.T) {
	buf, h := newJSON()
	l := slog.New(grayslog.NewHandler(h, grayslog.WithPolicy(subset.Policy{Key: "no key"}), grayslog.WithService("order")))
	assert.Contains(t, line(t, buf), `key \"no key\"`)
	l.InfoContext(tagged("version=v2;version.order=v3"), "x")
	assert.Equal(t, "v3", fields(t, buf)[grayslog.VersionKey])
}

func TestWholeTag(t *testing.T) {
	const tag = "uid=10086;uid.order=4711;uidx=5;channel=小程序;version=v2;version.order=v3"
	for name, c := range map[string]struct {
		opts []grayslog.Option
		uids [2]string
	}{
		"hashed": {nil, [2]string{"#9646f275", "#de650d61"}},
		"keyed":  {[]grayslog.Option{grayslog.WithUIDKey([]byte("key"))}, [2]string{"#f6a9bd12", "#3f64db98"}},
		"clear":  {[]grayslog.Option{grayslog.WithUIDKey([]byte("key")), grayslog.WithClearUID()}, [2]string{"10086", "4711"}},
		"no key": {[]grayslog.Option{grayslog.WithUIDKey(nil)}, [2]string{"#9646f275", "#de650d61"}},
	} {
		buf, h := newJSON()
		l := slog.New(grayslog.NewHandler(h, append(c.opts, grayslog.WithService("order"), grayslog.WithTag())...))
		want := map[string]any{
			"uid": c.uids[0], "uid.order": c.uids[1], "uidx": "5", "channel": "小程序", "version": "v2", "version.order": "v3",
		}
		for _, l := range []*slog.Logger{l, l.WithGroup("g")} {
			l.InfoContext(tagged(tag), "x", "a", 1)
			m := fields(t, buf)
			assert.Equal(t, "v3", m[grayslog.VersionKey], name)
			assert.Equal(t, want, m[grayslog.TagKey], name)
		}
		l.InfoContext(graytag.NewContext(context.Background(), graytag.Tag{}), "x")
		assert.NotContains(t, fields(t, buf), grayslog.TagKey, "untagged")
	}
}

// Lines of this handler and those that log a tag by hand are joined by the hash.
func TestTheHashIsThatOfTheTag(t *testing.T) {
	buf, h := newJSON()
	tag := graytag.MustParse("uid=10086;version=v2")
	slog.New(grayslog.NewHandler(h, grayslog.WithTag())).InfoContext(graytag.NewContext(context.Background(), tag), "x", "tag", tag)
	m := fields(t, buf)
	assert.Equal(t, m["tag"], m[grayslog.TagKey])
}

func TestWithoutTheOptionNoUIDIsWritten(t *testing.T) {
	buf, h := newJSON()
	slog.New(grayslog.NewHandler(h, grayslog.WithClearUID())).InfoContext(tagged("uid=10086;version=v2"), "x")
	assert.JSONEq(t, `{"level":"INFO","msg":"x","gray.version":"v2"}`, line(t, buf))
}

func TestLinesAreBoundedAndWhole(t *testing.T) {
	many := map[string]string{"version": "v", "uid": "1"}
	for i := range graytag.MaxPairs - len(many) {
		many[fmt.Sprintf("key-%020d", i)] = "\\"
	}
	for name, pairs := range map[string]map[string]string{
		"many":      many,
		"long":      {"version": strings.Repeat("v", 256), "a": strings.Repeat(`'`, 256), "b": strings.Repeat("/", 256), "c": strings.Repeat("x", 237)},
		"quotes":    {"version": strings.Repeat(`"`, 80), "a": strings.Repeat(`\`, 80), "b": strings.Repeat("<", 80), "c": strings.Repeat("=", 80)},
		"no print":  {"version": strings.Repeat("\u2028", 37), "a": strings.Repeat("\u202e", 30), "b": strings.Repeat("\U000e0001", 30)},
		"separated": {"version": `v2" level=ERROR msg="gray.version=v3 {}`, "a": "a b=c"},
	} {
		tag, err := graytag.New(pairs)
		require.NoError(t, err, name)
		ctx := graytag.NewContext(context.Background(), tag)
		var text, json, bare bytes.Buffer
		slog.New(slog.NewTextHandler(&bare, noTime)).Info("x")
		for _, group := range []string{"", "g"} {
			slog.New(grayslog.NewHandler(slog.NewTextHandler(&text, noTime), grayslog.WithTag())).WithGroup(group).InfoContext(ctx, "x")
			slog.New(grayslog.NewHandler(slog.NewJSONHandler(&json, noTime), grayslog.WithTag())).WithGroup(group).InfoContext(ctx, "x")
			t.Log(name, "text", text.Len()-bare.Len(), "json", json.Len()-bare.Len())
			assert.Less(t, text.Len()-bare.Len(), 2048, name)
			assert.Less(t, json.Len()-bare.Len(), 2048, name)
			m := textFields(t, line(t, &text))
			assert.Len(t, m, 3+len(pairs), "nothing of a value is taken for a field: %v", m)
			assert.Equal(t, pairs["version"], m[grayslog.VersionKey], name)
			m = fields(t, &json)
			assert.Equal(t, pairs["version"], m[grayslog.VersionKey], name)
			assert.Len(t, m[grayslog.TagKey], len(pairs), name)
		}
	}
}

func TestWhatTheProgramSaysItselfStands(t *testing.T) {
	ctx := tagged("uid=1;version=v2")
	for name, log := range map[string]func(l *slog.Logger){
		"record":       func(l *slog.Logger) { l.InfoContext(ctx, "x", grayslog.VersionKey, "mine") },
		"With":         func(l *slog.Logger) { l.With(grayslog.VersionKey, "mine").InfoContext(ctx, "x") },
		"inline group": func(l *slog.Logger) { l.InfoContext(ctx, "x", slog.Group("", grayslog.VersionKey, "mine")) },
		"With, then a group": func(l *slog.Logger) {
			l.With(grayslog.VersionKey, "mine").With("a", 1).WithGroup("g").InfoContext(ctx, "x", "b", 1)
		},
	} {
		for _, opts := range [][]grayslog.Option{nil, {grayslog.WithTag()}} {
			buf, h := newJSON()
			log(slog.New(grayslog.NewHandler(h, opts...)))
			l := line(t, buf)
			assert.Contains(t, l, `"gray.version":"mine"`, name)
			assert.Equal(t, 1, strings.Count(l, `"gray.version"`), "%s: %s", name, l)
			assert.Equal(t, len(opts), strings.Count(l, `"gray.tag"`), "%s: %s", name, l)
		}
	}
	buf, h := newJSON()
	l := slog.New(grayslog.NewHandler(h, grayslog.WithTag()))
	l.With(grayslog.TagKey, "mine").InfoContext(ctx, "x")
	assert.JSONEq(t, `{"level":"INFO","msg":"x","gray.tag":"mine","gray.version":"v2"}`, line(t, buf))
	l.With(grayslog.TagKey, "mine", grayslog.VersionKey, "mine").WithGroup("g").InfoContext(ctx, "x")
	assert.JSONEq(t, `{"level":"INFO","msg":"x","gray.tag":"mine","gray.version":"mine"}`, line(t, buf))
	// In a group it is another attribute.
	l.WithGroup("g").InfoContext(tagged("version=v2"), "x", grayslog.VersionKey, "mine")
	assert.JSONEq(t, `{"level":"INFO","msg":"x","gray.version":"v2","gray.tag":{"version":"v2"},"g":{"gray.version":"mine"}}`, line(t, buf))
}

func TestAHandlerAroundAnotherAddsNothingTwice(t *testing.T) {
	ctx := tagged("version=v2")
	buf, h := newJSON()
	inner := grayslog.NewHandler(h)
	for name, l := range map[string]*slog.Logger{
		"straight":             slog.New(grayslog.NewHandler(inner)),
		"with one in between":  slog.New(grayslog.NewHandler(traceIDs{inner})),
		"around an open group": slog.New(grayslog.NewHandler(slog.New(inner).WithGroup("g").Handler())),
	} {
		for _, l := range []*slog.Logger{l, l.With("a", 1), l.WithGroup("h"), l.WithGroup("h").With("a", 1)} {
			l.InfoContext(ctx, "x", "b", 1)
			out := line(t, buf)
			assert.Equal(t, 1, strings.Count(out, "gray.version"), "%s: %s", name, out)
			assert.True(t, strings.HasPrefix(out, `{"level":"INFO","msg":"x",`), out)
		}
	}
	// The options of both hold.
	l := slog.New(grayslog.NewHandler(grayslog.NewHandler(h, grayslog.WithService("order")), grayslog.WithTag()))
	l.InfoContext(tagged("version.order=v3"), "x")
	assert.JSONEq(t, `{"level":"INFO","msg":"x","gray.version":"v3","gray.tag":{"version.order":"v3"}}`, line(t, buf))
}

// traceIDs adds the span of the context, as handlers in the wild do it.
type traceIDs struct{ slog.Handler }

func (h traceIDs) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()))
	}
	return h.Handler.Handle(ctx, r)
}
func (h traceIDs) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traceIDs{h.Handler.WithAttrs(attrs)}
}
func (h traceIDs) WithGroup(name string) slog.Handler { return traceIDs{h.Handler.WithGroup(name)} }

func TestBesideOtherHandlers(t *testing.T) {
	ctx := trace.ContextWithSpanContext(tagged("version=v2"), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1},
	}))
	buf, h := newJSON()
	for name, wrapped := range map[string]slog.Handler{
		"inside":  grayslog.NewHandler(traceIDs{h}),
		"outside": traceIDs{grayslog.NewHandler(h)},
		"many":    slog.NewMultiHandler(grayslog.NewHandler(h)),
		"of many": grayslog.NewHandler(slog.NewMultiHandler(traceIDs{h})),
	} {
		l := slog.New(wrapped)
		l.InfoContext(ctx, "x", "a", 1)
		m := fields(t, buf)
		assert.Equal(t, "v2", m[grayslog.VersionKey], name)
		assert.Equal(t, name == "many", m["trace_id"] == nil, name)
		l.WithGroup("g").InfoContext(ctx, "x", "a", 1)
		assert.Equal(t, "v2", fields(t, buf)[grayslog.VersionKey], name)
	}
}

func TestEnabledAndErrorsAreThoseOfTheHandler(t *testing.T) {
	h := grayslog.NewHandler(slog.NewJSONHandler(failing{}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	ctx := tagged("version=v2")
	var none context.Context // of a careless handler outside ours
	for _, h := range []slog.Handler{h, h.WithGroup("g"), h.WithAttrs([]slog.Attr{slog.Int("a", 1)})} {
		assert.False(t, h.Enabled(ctx, slog.LevelInfo))
		assert.True(t, h.Enabled(ctx, slog.LevelWarn))
		assert.ErrorIs(t, h.Handle(ctx, slog.Record{}), errWrite)
		assert.ErrorIs(t, h.Handle(none, slog.Record{}), errWrite, "without a context")
	}
}

var errWrite = errors.New("no room")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errWrite }

func TestEmptyCallsChangeNothing(t *testing.T) {
	_, h := newJSON()
	h = grayslog.NewHandler(h)
	assert.Same(t, h, h.WithGroup(""))
	assert.Same(t, h, h.WithAttrs(nil))
}

// A handler owns the attributes that it is given, and may change them.
func TestTheHandlerInsideMayKeepAndChangeAttributes(t *testing.T) {
	buf, h := newJSON()
	l := slog.New(grayslog.NewHandler(greedy{h})).WithGroup("g").With("a", 1)
	for _, v := range []string{"v1", "v2", "v1"} {
		l.InfoContext(tagged("version="+v), "x")
		assert.JSONEq(t, `{"level":"INFO","msg":"x","gray.version":"`+v+`","g":{"a":1}}`, line(t, buf))
	}
}

type greedy struct{ slog.Handler }

func (h greedy) WithGroup(name string) slog.Handler { return greedy{h.Handler.WithGroup(name)} }
func (h greedy) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := greedy{h.Handler.WithAttrs(attrs)}
	clear(attrs)
	return next
}

// A LogValuer that is given to a logger is asked once, and then: what it reads may
// belong to another goroutine when a line is written.
func TestValuersAreResolvedWhenGiven(t *testing.T) {
	buf, h := newJSON()
	var asked atomic.Int32
	v := counting{&asked}
	l := slog.New(grayslog.NewHandler(h)).WithGroup("g").With("a", v, slog.Group("in", "b", v))
	assert.EqualValues(t, 2, asked.Load())
	for _, version := range []string{"v1", "v2"} {
		l.InfoContext(tagged("version="+version), "x")
		assert.Contains(t, line(t, buf), `"g":{"a":1,"in":{"b":2}}`)
	}
	l.Info("x")
	assert.Contains(t, line(t, buf), `"g":{"a":1,"in":{"b":2}}`)
	assert.EqualValues(t, 2, asked.Load())
}

type counting struct{ n *atomic.Int32 }

func (c counting) LogValue() slog.Value { return slog.IntValue(int(c.n.Add(1))) }

func TestRecordsAreNotChanged(t *testing.T) {
	buf, h := newJSON()
	handlers := []slog.Handler{grayslog.NewHandler(h), grayslog.NewHandler(h, grayslog.WithTag())}
	r := slog.NewRecord(time.Time{}, slog.LevelInfo, "x", 0)
	for i := range 8 { // beyond what a record holds itself, and with room for more behind
		r.Add(fmt.Sprint("k", i), i)
	}
	for range 3 {
		for _, h := range handlers {
			require.NoError(t, h.Handle(tagged("uid=1;version=v2"), r))
			out := line(t, buf)
			assert.Equal(t, 1, strings.Count(out, "gray.version"), out)
			assert.NotContains(t, out, "!BUG")
		}
	}
	assert.Equal(t, 8, r.NumAttrs())
}

// Loggers that are made of one another share nothing that the next one could change.
func TestLoggersOfOneLoggerDoNotMix(t *testing.T) {
	buf, h := newJSON()
	ctx := tagged("version=v2")
	base := slog.New(grayslog.NewHandler(h))
	for i := range 6 {
		base = base.WithGroup(fmt.Sprint("g", i))
		with, group, other, last := base.With("a", 1), base.WithGroup("h"), base.With("b", 2), base.WithGroup("k")
		for _, c := range []struct {
			l    *slog.Logger
			want string
		}{{with, `{"a":1,"x":1}`}, {group, `{"h":{"x":1}}`}, {other, `{"b":2,"x":1}`}, {last, `{"k":{"x":1}}`}} {
			c.l.InfoContext(ctx, "m", "x", 1)
			assert.Contains(t, line(t, buf), fmt.Sprintf(`"g%d":%s`, i, c.want))
		}
		base.InfoContext(ctx, "m", "x", 1)
		assert.Contains(t, line(t, buf), fmt.Sprintf(`"g%d":{"x":1}`, i))
	}
}

// Lines of many versions at once, through one logger with an open group.
func TestConcurrentRequestsDoNotMix(t *testing.T) {
	var mu sync.Mutex
	var buf bytes.Buffer
	for _, opts := range [][]grayslog.Option{nil, {grayslog.WithTag()}} {
		l := slog.New(grayslog.NewHandler(slog.NewTextHandler(writer{&mu, &buf}, noTime), opts...)).WithGroup("g").With("a", 1)
		var wg sync.WaitGroup
		for g := range 30 {
			wg.Go(func() {
				for i := range 50 {
					v := fmt.Sprint("v", (g+i)%12)
					l.InfoContext(tagged("uid="+v+";version="+v), "x", "want", v)
				}
			})
		}
		wg.Wait()
		lines := strings.Split(strings.TrimSpace(buf.String()), "\n")
		buf.Reset()
		assert.Len(t, lines, 1500)
		for _, l := range lines {
			m := textFields(t, l)
			assert.Equal(t, m["g"].(map[string]any)["want"], m[grayslog.VersionKey])
		}
	}
}

type writer struct {
	mu *sync.Mutex
	*bytes.Buffer
}

func (w writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Buffer.Write(p)
}

// The handler that slog starts with, inside one that becomes the default, deadlocks.
func TestTheDefaultHandlerCanBeWrapped(t *testing.T) {
	before, out, flags := slog.Default(), log.Writer(), log.Flags()
	restore := func() {
		slog.SetDefault(before)
		log.SetOutput(out)
		log.SetFlags(flags)
	}
	defer restore()
	for name, given := range map[string]func() slog.Handler{
		"nil":   func() slog.Handler { return nil },
		"given": func() slog.Handler { return slog.Default().Handler() },
	} {
		restore()
		var mu sync.Mutex
		var buf bytes.Buffer
		log.SetOutput(writer{&mu, &buf})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 2 { // the second finds the first
				slog.SetDefault(slog.New(grayslog.NewHandler(given())))
			}
			slog.InfoContext(tagged("version=v2"), "by slog")
			log.Print("by log")
		}()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatal(name, "deadlock")
		}
		lines := strings.Split(strings.TrimSpace(buf.String()), "\n")
		require.Len(t, lines, 2, name)
		assert.Equal(t, "v2", textFields(t, lines[0])[grayslog.VersionKey], name)
		assert.Equal(t, "by log", textFields(t, lines[1])[slog.MessageKey], name)
	}
	// One that was made of it has attributes, which must not go.
	restore()
	var buf bytes.Buffer
	log.SetOutput(&buf)
	for name, h := range map[string]slog.Handler{"given": slog.Default().With("a", 1).Handler(), "nil": nil} {
		slog.SetDefault(slog.Default().With("a", 1))
		slog.New(grayslog.NewHandler(h)).InfoContext(tagged("version=v2"), "x")
		assert.Contains(t, line(t, &buf), " a=1 gray.version=v2", name)
		restore()
		log.SetOutput(&buf)
	}
}

// A logger with an open group is made again for a version, not for a line; and
// whoever chooses versions does not choose how many are kept.
func TestVariantsAreKeptAndBounded(t *testing.T) {
	_, h := newJSON()
	var made atomic.Int32
	l := slog.New(grayslog.NewHandler(counted{h, &made})).WithGroup("g")
	log := func(from, to int) int32 {
		made.Store(0)
		for i := from; i < to; i++ {
			l.InfoContext(tagged(fmt.Sprint("version=v", i)), "x")
		}
		return made.Load()
	}
	assert.EqualValues(t, 8, log(0, 8))
	assert.EqualValues(t, 0, log(0, 8))
	assert.EqualValues(t, 1, log(8, 9), "the oldest goes")
	assert.EqualValues(t, 0, log(1, 9))
	assert.EqualValues(t, 1000, log(9, 1009))
	assert.EqualValues(t, 8, log(0, 8), "one that was pushed out is made again")
	assert.EqualValues(t, 0, log(0, 8), "and kept")
}

// counted counts the handlers that are made with a version.
type counted struct {
	slog.Handler
	made *atomic.Int32
}

func (h counted) WithGroup(name string) slog.Handler {
	return counted{h.Handler.WithGroup(name), h.made}
}

func (h counted) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.made.Add(1)
	return counted{h.Handler.WithAttrs(attrs), h.made}
}
