package edge_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/edge"
)

func TestMembersOfATag(t *testing.T) {
	for key, want := range map[string]bool{
		"gray.version": true, "gray.": true, "Gray.Version": true, "GRAY.uid": true,
		"gray%2Eversion": true, "gray%2eversion": true, "%67ray.version": true, "%47ray.x": true,
		"+gray.version": true, "%20gray.version": true, "%09gray.x": true, "\u00a0gray.x": true, "\ufeffgray.x": true,
		"\xa0gray.x": true, "\x85gray.x": true, "%A0gray.x": true, "\u200agray.x": true,
		"gray%2Eversion%": true, "%zzgray.x": false,
		"gray": false, "grayish": false, "gray-version": false, "x.gray.version": false, "graylane.x": false, "": false,
		"tenant": false, "gray%252Eversion": false,
	} {
		assert.Equal(t, want, edge.IsForged(key), "%q", key)
	}
}

func TestBaggageWithoutMembersOfATag(t *testing.T) {
	for _, c := range []struct{ lines, want []string }{
		{nil, nil},
		{[]string{"gray.version=v2"}, nil},
		{[]string{"tenant=acme,gray.version=v2;p=1 , a = b;p"}, []string{"tenant=acme, a = b;p"}},
		{[]string{"gray.version=v2", "tenant=acme"}, []string{"tenant=acme"}},
		{[]string{"tenant=acme", " \tGRAY.version\t = v2,b=c"}, []string{"tenant=acme", "b=c"}},
		{[]string{"a=gray.version=v2", "b=1;gray.version=v2"}, []string{"a=gray.version=v2", "b=1;gray.version=v2"}},
		{[]string{"gray.version", "gray.version;x"}, nil},
		{[]string{"a=b,,c"}, []string{"a=b,,c"}},
	} {
		assert.Equal(t, c.want, edge.WithoutForged(c.lines), "%q", c.lines)
	}
	// Readers have limits, each its own: none protects what is behind it.
	long := "a=" + strings.Repeat("x", 10_000)
	many := strings.Repeat("k=v,", 500)
	assert.True(t, edge.HasForged([]string{long + ",gray.version=v2"}))
	assert.Equal(t, []string{long}, edge.WithoutForged([]string{long + ",gray.version=v2"}))
	assert.True(t, edge.HasForged([]string{many + "gray.version=v2"}))
	assert.Equal(t, []string{strings.TrimSuffix(many, ",")}, edge.WithoutForged([]string{many + "gray.version=v2"}))
}

func TestCleanContext(t *testing.T) {
	ctx := context.Background()
	got, forged := edge.CleanContext(ctx)
	assert.False(t, forged)
	assert.Equal(t, ctx, got)

	b, err := baggage.Parse("tenant=acme,gray.version=v2,Gray.uid=1,gray%2Elane=x")
	require.NoError(t, err)
	got, forged = edge.CleanContext(baggage.ContextWithBaggage(ctx, b))
	assert.True(t, forged)
	assert.Equal(t, "tenant=acme", baggage.FromContext(got).String())

	// As many members as W3C allows: none of the others is lost.
	var members []string
	for i := range 63 {
		members = append(members, "k"+strings.Repeat("x", i)+"=v")
	}
	b, err = baggage.Parse(strings.Join(append(members, "gray.version=v2"), ","))
	require.NoError(t, err)
	got, _ = edge.CleanContext(baggage.ContextWithBaggage(ctx, b))
	assert.Equal(t, 63, baggage.FromContext(got).Len())
}

func FuzzBaggageWithoutMembersOfATag(f *testing.F) {
	f.Add("tenant=acme,gray.version=v2", "gray.uid=1")
	f.Add("gray%2Eversion=v2;a=b", ",,=;")
	f.Fuzz(func(t *testing.T, one, two string) {
		lines := []string{one, two}
		kept := edge.WithoutForged(lines)
		if edge.HasForged(kept) {
			t.Fatalf("%q of %q", kept, lines)
		}
		if !edge.HasForged(lines) && (len(kept) != 2 || kept[0] != one || kept[1] != two) {
			t.Fatalf("%q of %q", kept, lines)
		}
		for _, line := range kept {
			b, _ := baggage.Parse(line)
			if tag, _ := graytag.FromBaggage(b); !tag.IsZero() {
				t.Fatalf("%v of %q", tag, lines)
			}
		}
	})
}

func TestVersionOf(t *testing.T) {
	for _, c := range []struct{ tag, key, service, want string }{
		{"", "version", "", "stable"},
		{"uid=1", "version", "", "stable"},
		{"version=v2.1.0", "version", "", "v2.1.0"},
		{"version=v2.1.0", "", "", "v2.1.0"},
		{"version=stable", "version", "", "stable"},
		{"version=v2;version.order=v3", "version", "order", "v3"},
		{"version=v2;version.order=v3", "version", "user", "v2"},
		{"lane=blue", "lane", "", "blue"},
		{"version=%E7%81%B0 a", "version", "", "%E7%81%B0%20a"},
		{"version=a%25b", "version", "", "a%25b"},
	} {
		assert.Equal(t, c.want, edge.VersionOf(graytag.MustParse(c.tag), c.key, c.service), "%+v", c)
	}
	gray := graytag.MustParse("version=v2.1.0")
	assert.Zero(t, testing.AllocsPerRun(100, func() { edge.VersionOf(gray, "version", "order") }))
}
