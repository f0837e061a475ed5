package grayslog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/slogtest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayslog"
)

func TestConformance(t *testing.T) {
	contexts := map[string]struct {
		ctx     context.Context
		version any // of every line
	}{
		"no scope": {context.Background(), nil},
		"untagged": {graytag.NewContext(context.Background(), graytag.Tag{}), "stable"},
		"tagged":   {tagged("uid=10086;channel=app;version=v2.1.0"), "v2.1.0"},
	}
	options := map[string][]grayslog.Option{
		"":      nil,
		"/tag":  {grayslog.WithTag()},
		"/twin": {grayslog.WithTag(), grayslog.WithUIDKey([]byte("key"))},
	}
	for name, c := range contexts {
		for suffix, opts := range options {
			wrap := func(h slog.Handler) slog.Handler {
				h = grayslog.NewHandler(h, opts...)
				if suffix == "/twin" { // one around another, with something between that hides it
					h = grayslog.NewHandler(inContext{h, c.ctx}, opts...)
				}
				return inContext{h, c.ctx}
			}
			t.Run("json/"+name+suffix, func(t *testing.T) {
				var buf bytes.Buffer
				slogtest.Run(t, func(*testing.T) slog.Handler {
					buf.Reset()
					return wrap(slog.NewJSONHandler(&buf, nil))
				}, func(t *testing.T) map[string]any {
					m := fields(t, &buf)
					assert.Equal(t, c.version, m[grayslog.VersionKey])
					assert.Equal(t, suffix != "" && name == "tagged", m[grayslog.TagKey] != nil)
					return m
				})
			})
			t.Run("text/"+name+suffix, func(t *testing.T) {
				var buf bytes.Buffer
				slogtest.Run(t, func(*testing.T) slog.Handler {
					buf.Reset()
					return wrap(slog.NewTextHandler(&buf, nil))
				}, func(t *testing.T) map[string]any {
					m := textFields(t, line(t, &buf))
					assert.Equal(t, c.version, m[grayslog.VersionKey])
					return m
				})
			})
			t.Run("one handler/"+name+suffix, func(t *testing.T) {
				var buf bytes.Buffer
				assert.NoError(t, slogtest.TestHandler(wrap(slog.NewJSONHandler(&buf, nil)), func() []map[string]any {
					var all []map[string]any
					for d := json.NewDecoder(&buf); d.More(); {
						var m map[string]any
						require.NoError(t, d.Decode(&m))
						all = append(all, m)
					}
					return all
				}))
			})
		}
	}
}

// Whatever is done to a logger: without our attribute its lines are, byte for byte,
// those that it would write without us.
func TestOnlyOneAttributeIsAdded(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	attrs := func() []slog.Attr {
		var all []slog.Attr
		for range rnd.IntN(8) {
			k := fmt.Sprint("k", rnd.IntN(100))
			all = append(all, []slog.Attr{
				slog.Int(k, rnd.IntN(100)), slog.String(k, "a b\n=\""), {}, slog.Group(k),
				slog.Group("", slog.Int(k, 1)), slog.Group(k, slog.Any("x", valuer{slog.GroupValue()}), slog.Group("y", slog.Bool("z", true))),
				slog.Any(k, valuer{slog.AnyValue(valuer{slog.GroupValue(slog.Int("in", 1))})}), slog.Any(k, nil), slog.Int("", 7),
				slog.Any("", valuer{slog.GroupValue(slog.Int(k, 3))}), slog.Int("removed", 1), slog.Any(k, []string{"a"}),
			}[rnd.IntN(12)])
		}
		return all
	}
	replace := func(groups []string, a slog.Attr) slog.Attr {
		switch {
		case a.Key == slog.TimeKey, a.Key == "removed":
			return slog.Attr{}
		case a.Key == "x":
			a.Value = slog.StringValue(strings.Join(groups, "/"))
		}
		return a
	}
	for _, version := range []string{"", "stable", "v2"} {
		ctx, added := context.Background(), []string{"", ""}
		switch version {
		case "stable":
			ctx = graytag.NewContext(ctx, graytag.Tag{})
		case "v2":
			ctx = tagged("version=v2")
		}
		if version != "" {
			added = []string{`,"gray.version":"` + version + `"`, " gray.version=" + version}
		}
		for range 2000 {
			var bare, ours [2]bytes.Buffer
			opts := &slog.HandlerOptions{ReplaceAttr: replace}
			plain := []slog.Handler{slog.NewJSONHandler(&bare[0], opts), slog.NewTextHandler(&bare[1], opts)}
			wrapped := []slog.Handler{
				grayslog.NewHandler(slog.NewJSONHandler(&ours[0], opts)), grayslog.NewHandler(slog.NewTextHandler(&ours[1], opts)),
			}
			var did []string
			for range rnd.IntN(6) {
				if rnd.IntN(2) == 0 {
					name := fmt.Sprint("G", rnd.IntN(3))
					did = append(did, name)
					for i := range plain {
						plain[i], wrapped[i] = plain[i].WithGroup(name), wrapped[i].WithGroup(name)
					}
					continue
				}
				with := attrs()
				did = append(did, fmt.Sprint(with))
				for i := range plain {
					plain[i], wrapped[i] = plain[i].WithAttrs(with), wrapped[i].WithAttrs(with)
				}
			}
			record := attrs()
			for i := range plain {
				slog.New(plain[i]).LogAttrs(ctx, slog.LevelInfo, "msg", record...)
				slog.New(wrapped[i]).LogAttrs(ctx, slog.LevelInfo, "msg", record...)
				got := line(t, &ours[i])
				if version != "" {
					require.Equal(t, 1, strings.Count(got, added[i]), "%s after %v", got, did)
					got = strings.Replace(got, added[i], "", 1)
				}
				require.Equal(t, line(t, &bare[i]), got, "after %v, %v", did, record)
			}
		}
	}
}

type valuer struct{ v slog.Value }

func (v valuer) LogValue() slog.Value { return v.v }
