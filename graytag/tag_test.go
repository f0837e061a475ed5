package graytag_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/race"
)

type vectors struct {
	OK []struct {
		In    string
		Pairs map[string]string
		Out   string
	}
	Error []struct{ In, Why string }
}

func loadVectors(t testing.TB) vectors {
	t.Helper()
	data, err := os.ReadFile("testdata/tag.json")
	require.NoError(t, err)
	var v vectors
	require.NoError(t, json.Unmarshal(data, &v))
	require.NotEmpty(t, v.OK)
	require.NotEmpty(t, v.Error)
	return v
}

func TestVectors(t *testing.T) {
	v := loadVectors(t)
	for i, c := range v.OK {
		t.Run("ok/"+strconv.Itoa(i), func(t *testing.T) {
			tag, err := graytag.Parse(c.In)
			require.NoError(t, err, "%q", c.In)
			assert.Equal(t, c.Out, tag.String())
			assert.Equal(t, c.Pairs, maps.Collect(tag.All()))
			assert.Equal(t, len(c.Pairs) == 0, tag.IsZero())
			assert.Equal(t, len(c.Pairs), tag.Len())

			again, err := graytag.Parse(tag.String())
			require.NoError(t, err)
			assert.Equal(t, c.Out, again.String())
			assert.True(t, again.Equal(tag))

			made, err := graytag.New(c.Pairs)
			require.NoError(t, err)
			assert.Equal(t, c.Out, made.String(), "New of the same pairs")
			for k, want := range c.Pairs {
				assert.Equal(t, want, tag.Get(k))
			}
		})
	}
	for _, c := range v.Error {
		t.Run("error/"+c.Why, func(t *testing.T) {
			tag, err := graytag.Parse(c.In)
			var pe *graytag.ParseError
			require.ErrorAs(t, err, &pe, "%q", c.In)
			assert.True(t, tag.IsZero())
			assert.True(t, pe.Offset >= 0 && pe.Offset <= len(c.In), "offset %d", pe.Offset)
			assert.True(t, strings.HasPrefix(err.Error(), "graytag: "), err.Error())
		})
	}
}

func TestParseErrorOffset(t *testing.T) {
	for in, offset := range map[string]int{
		"version=v2;x":           11,
		"version=v2; version=v3": 12,
		"a=1;note=ab%zz":         11,
		`a=1;note="`:             9,
	} {
		_, err := graytag.Parse(in)
		var pe *graytag.ParseError
		require.ErrorAs(t, err, &pe, in)
		assert.Equal(t, offset, pe.Offset, "%q: %v", in, err)
	}
}

func TestLimitsHoldInNewAndWith(t *testing.T) {
	many := map[string]string{}
	for i := range graytag.MaxPairs {
		many["k"+strconv.Itoa(i)] = "1"
	}
	full, err := graytag.New(many)
	require.NoError(t, err)

	var pe *graytag.PairError
	_, err = full.With("one-more", "1")
	require.ErrorAs(t, err, &pe)
	kept, _ := full.With("one-more", "1")
	assert.True(t, kept.Equal(full), "what was good before stays")
	many["one-more"] = "1"
	_, err = graytag.New(many)
	require.ErrorAs(t, err, &pe)
	many["one-more"] = ""
	_, err = graytag.New(many)
	require.NoError(t, err, "a pair with an empty value counts towards no limit")

	for name, pairs := range map[string]map[string]string{
		"bad key":          {"ver sion": "1"},
		"bad absent key":   {"ver sion": ""},
		"empty key":        {"": "1"},
		"control":          {"a": "x\r\ny"},
		"tab":              {"a": "x\ty"},
		"C1":               {"a": "\u0085"},
		"not UTF-8":        {"a": "\xff"},
		"surrogate":        {"a": "\xed\xa0\x80"},
		"long value":       {"a": strings.Repeat("x", 257)},
		"long canonical":   {"a": strings.Repeat("%", 256), "b": strings.Repeat("%", 256)},
		"key over 64":      {strings.Repeat("k", 65): "1"},
		"key starts wrong": {"-a": "1"},
	} {
		tag, err := graytag.New(pairs)
		assert.ErrorAs(t, err, &pe, name)
		assert.True(t, tag.IsZero(), name)
		for k, v := range pairs {
			if len(pairs) == 1 {
				_, err = graytag.MustParse("x=1").With(k, v)
				assert.ErrorAs(t, err, &pe, "With: "+name)
			}
		}
	}
}

func TestWithAndWithout(t *testing.T) {
	tag := graytag.MustParse("uid=1;version=v2")
	next, err := tag.With("channel", "灰度 a+b%")
	require.NoError(t, err)
	assert.Equal(t, "channel=%E7%81%B0%E5%BA%A6%20a+b%25;uid=1;version=v2", next.String())
	assert.Equal(t, "uid=1;version=v2", tag.String(), "immutable")
	next, err = next.With("uid", "2")
	require.NoError(t, err)
	assert.Equal(t, "2", next.Get("uid"))
	next, err = next.With("uid", "")
	require.NoError(t, err)
	assert.Equal(t, "", next.Get("uid"))
	assert.True(t, next.Without("channel", "version", "nobody").IsZero())
	assert.Equal(t, "version=v2", tag.Without("uid").String())
	zero, err := graytag.Tag{}.With("version", "v2")
	require.NoError(t, err)
	assert.Equal(t, "version=v2", zero.String())
	assert.True(t, graytag.Tag{}.Without("x").IsZero())
}

func TestRoute(t *testing.T) {
	tag := graytag.MustParse("version=v2;version.inventory=v3;version.shop.order=v4;gray=true")
	assert.Equal(t, "v3", tag.Route("version", "inventory"))
	assert.Equal(t, "v2", tag.Route("version", "order"))
	assert.Equal(t, "v4", tag.Route("version", "shop.order"))
	assert.Equal(t, "v2", tag.Route("version", ""))
	assert.Equal(t, "true", tag.Route("gray", "inventory"))
	assert.Equal(t, "", graytag.Tag{}.Route("version", "inventory"))
}

func TestText(t *testing.T) {
	var doc struct{ Tag graytag.Tag }
	require.NoError(t, json.Unmarshal([]byte(`{"Tag":"version=v2;uid=1"}`), &doc))
	out, err := json.Marshal(doc)
	require.NoError(t, err)
	assert.JSONEq(t, `{"Tag":"uid=1;version=v2"}`, string(out))
	require.Error(t, json.Unmarshal([]byte(`{"Tag":"version"}`), &doc))
	assert.Equal(t, "uid=1;version=v2", doc.Tag.String(), "a bad text changes nothing")
}

func TestLogValueHidesUID(t *testing.T) {
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, nil))
	log.Info("m", "tag", graytag.MustParse("uid=10086;version=v2"))
	assert.Contains(t, buf.String(), "tag.version=v2")
	assert.Contains(t, buf.String(), "tag.uid=#")
	assert.NotContains(t, buf.String(), "10086")
	buf.Reset()
	log.Info("m", "tag", graytag.Tag{})
	assert.NotContains(t, buf.String(), "tag")
}

func TestContext(t *testing.T) {
	ctx := context.Background()
	assert.False(t, graytag.InScope(ctx))
	assert.True(t, graytag.FromContext(ctx).IsZero())

	tagged := graytag.NewContext(ctx, graytag.MustParse("uid=1;version=v2"))
	assert.True(t, graytag.InScope(tagged))
	assert.Equal(t, "v2", graytag.FromContext(tagged).Get("version"))
	assert.Equal(t, "v2", baggage.FromContext(tagged).Member("gray.version").Value())

	untagged := graytag.NewContext(tagged, graytag.Tag{})
	assert.True(t, graytag.InScope(untagged), "untagged is in scope")
	assert.True(t, graytag.FromContext(untagged).IsZero())
	assert.Zero(t, baggage.FromContext(untagged).Len(), "stale gray.* members go")
}

// A tag of a rule goes into the context of one request after the other.
func TestOneTagInManyContexts(t *testing.T) {
	type key struct{}
	tag, parent := graytag.MustParse("uid=1;version=v2"), context.WithValue(context.Background(), key{}, "kept")
	first := graytag.NewContext(parent, tag)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				parent, cancel := context.WithCancel(parent)
				ctx := graytag.NewContext(parent, tag)
				assert.True(t, graytag.InScope(ctx))
				assert.True(t, graytag.FromContext(ctx).Equal(tag))
				assert.Equal(t, baggage.FromContext(first), baggage.FromContext(ctx))
				assert.Equal(t, "v2", baggage.FromContext(ctx).Member("gray.version").Value())
				assert.Equal(t, "kept", ctx.Value(key{}))
				cancel()
				assert.ErrorIs(t, ctx.Err(), context.Canceled)
				child, cancel := context.WithCancel(ctx)
				assert.Error(t, child.Err())
				cancel()

				over := baggage.ContextWithBaggage(ctx, foreignBaggage(t, 1))
				assert.Zero(t, baggage.FromContext(over).Member("gray.version").Key(), "what stands above counts")
				assert.True(t, graytag.FromContext(over).Equal(tag))
				both := graytag.NewContext(over, tag)
				assert.Equal(t, 3, baggage.FromContext(both).Len())
				untagged := graytag.NewContext(ctx, graytag.Tag{})
				assert.True(t, graytag.FromContext(untagged).IsZero())
				assert.Zero(t, baggage.FromContext(untagged).Len())
				other := graytag.NewContext(ctx, graytag.MustParse("version=v3"))
				assert.Equal(t, "gray.version=v3", baggage.FromContext(other).String())
			}
		})
	}
	wg.Wait()
	if !race.Enabled {
		assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { graytag.NewContext(parent, tag) }), 1.0)
	}
	empty := baggage.ContextWithoutBaggage(context.Background()) // where OTel may have hooks
	assert.Equal(t, baggage.FromContext(first), baggage.FromContext(graytag.NewContext(empty, tag)))
}

func foreignBaggage(t testing.TB, n int) baggage.Baggage {
	t.Helper()
	var list []baggage.Member
	for i := range n {
		m, err := baggage.NewMemberRaw("tenant"+strconv.Itoa(i), "a;b=c,"+strconv.Itoa(i))
		require.NoError(t, err)
		list = append(list, m)
	}
	b, err := baggage.New(list...)
	require.NoError(t, err)
	return b
}

func TestContextKeepsForeignBaggage(t *testing.T) {
	ctx := baggage.ContextWithBaggage(context.Background(), foreignBaggage(t, 2))
	assert.False(t, graytag.InScope(ctx))
	ctx = graytag.NewContext(ctx, graytag.MustParse("lane=l1;version=v1"))
	ctx = graytag.NewContext(ctx, graytag.MustParse("version=v2"))
	b := baggage.FromContext(ctx)
	assert.Equal(t, 3, b.Len())
	assert.Equal(t, "a;b=c,1", b.Member("tenant1").Value())
	assert.Equal(t, "v2", b.Member("gray.version").Value())
}

func TestT4_FullBaggageKeepsForeignMembers(t *testing.T) {
	tag := graytag.MustParse("uid=10086;channel=app;version=v2.1.0")
	for _, n := range []int{61, 62, 64} {
		ctx := graytag.NewContext(baggage.ContextWithBaggage(context.Background(), foreignBaggage(t, n)), tag)
		assert.True(t, graytag.FromContext(ctx).Equal(tag), "the tag itself does not depend on baggage")
		b := baggage.FromContext(ctx)
		for i := range n {
			assert.NotEmpty(t, b.Member("tenant"+strconv.Itoa(i)).Key())
		}
		_, fits := tag.IntoBaggage(foreignBaggage(t, n))
		assert.Equal(t, n == 61, fits)
		assert.Equal(t, fits, b.Member("gray.version").Key() != "")
	}
}

func TestBaggageOverTheByteLimitKeepsForeignMembers(t *testing.T) {
	m, err := baggage.NewMemberRaw("big", strings.Repeat("x", 8150))
	require.NoError(t, err)
	b, err := baggage.New(m)
	require.NoError(t, err)
	next, fits := graytag.MustParse("uid=10086;channel=app;version=v2.1.0").IntoBaggage(b)
	assert.False(t, fits)
	assert.Equal(t, 1, next.Len())
}

func TestIsBaggage(t *testing.T) {
	tag := graytag.MustParse("uid=10086;version=v2.1.0")
	own, ok := tag.IntoBaggage(baggage.Baggage{})
	require.True(t, ok)
	assert.True(t, tag.IsBaggage(own))
	assert.True(t, graytag.Tag{}.IsBaggage(baggage.Baggage{}))
	both, ok := tag.IntoBaggage(foreignBaggage(t, 1))
	require.True(t, ok)
	assert.False(t, tag.IsBaggage(both))
	assert.False(t, tag.IsBaggage(foreignBaggage(t, 2)))
	assert.False(t, tag.IsBaggage(baggage.Baggage{}))
	assert.False(t, graytag.Tag{}.IsBaggage(own))
	assert.False(t, graytag.MustParse("uid=10086;version=v3").IsBaggage(own))
	assert.False(t, graytag.MustParse("lane=10086;version=v2.1.0").IsBaggage(own))
}

func TestT1_BaggageAndBack(t *testing.T) {
	tag, err := graytag.New(map[string]string{"uid": "10086", "channel": "a;b=c,d%", "version": "v2.1.0", "note": "灰度 a+b%"})
	require.NoError(t, err)
	b, ok := tag.IntoBaggage(baggage.Baggage{})
	require.True(t, ok)
	assert.Equal(t, 4, b.Len())
	wire, err := baggage.Parse(b.String())
	require.NoError(t, err)
	back, err := graytag.FromBaggage(wire)
	require.NoError(t, err)
	assert.True(t, back.Equal(tag), back.String())
	fromHeader, err := baggage.Parse(tag.BaggageHeader())
	require.NoError(t, err)
	back, err = graytag.FromBaggage(fromHeader)
	require.NoError(t, err)
	assert.True(t, back.Equal(tag), tag.BaggageHeader())

	for _, wire := range []string{"gray.note=a%3Db,gray.version=v2,x=1", "gray.note=a=b,gray.version=v2"} {
		b, err := baggage.Parse(wire)
		require.NoError(t, err)
		got := graytag.FromContext(baggage.ContextWithBaggage(context.Background(), b))
		assert.Equal(t, "note=a%3Db;version=v2", got.String(), wire)
		assert.True(t, graytag.InScope(baggage.ContextWithBaggage(context.Background(), b)))
	}
}

func TestFromBaggageRefusesWhatIsNoTag(t *testing.T) {
	m, err := baggage.NewMemberRaw("gray.a", "x\ty")
	require.NoError(t, err)
	b, err := baggage.New(m)
	require.NoError(t, err)
	tag, err := graytag.FromBaggage(b)
	require.Error(t, err)
	assert.True(t, tag.IsZero())
	assert.True(t, graytag.FromContext(baggage.ContextWithBaggage(context.Background(), b)).IsZero())
}

func FuzzParse(f *testing.F) {
	v := loadVectors(f)
	for _, c := range v.OK {
		f.Add(c.In)
	}
	for _, c := range v.Error {
		f.Add(c.In)
	}
	f.Fuzz(func(t *testing.T, in string) {
		tag, err := graytag.Parse(in)
		if err != nil {
			if !tag.IsZero() {
				t.Fatalf("error and a tag: %q", in)
			}
			return
		}
		out := tag.String()
		again, err := graytag.Parse(out)
		if err != nil || again.String() != out || !again.Equal(tag) {
			t.Fatalf("%q -> %q -> %q, %v", in, out, again.String(), err)
		}
		pairs := maps.Collect(tag.All())
		made, err := graytag.New(pairs)
		if err != nil || made.String() != out {
			t.Fatalf("New(%v) = %q, %v; want %q", pairs, made.String(), err, out)
		}
		if b, ok := tag.IntoBaggage(baggage.Baggage{}); ok {
			wire, err := baggage.Parse(b.String())
			if err != nil {
				t.Fatalf("baggage %q: %v", b.String(), err)
			}
			back, err := graytag.FromBaggage(wire)
			if err != nil || !back.Equal(tag) {
				t.Fatalf("through baggage: %q -> %q, %v", out, back.String(), err)
			}
		}
	})
}
