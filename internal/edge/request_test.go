package edge_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/edge"
)

type header http.Header

func (h header) Values(name string) []string { return h[name] }

// see returns what rules see under an attribute of a request.
func see(t testing.TB, attr string, h http.Header, f edge.Fields) (string, bool) {
	t.Helper()
	return seeBy(engineOf(t, attr), h, f)
}

func seeBy(engine *rule.Engine, h http.Header, f edge.Fields) (string, bool) {
	var q edge.Request
	q.Bind(nil)
	q.Set(header(h), f)
	return edge.Value(&q, engine)
}

func TestWhatRulesSee(t *testing.T) {
	h := http.Header{
		"X-User-Id": {"1", "2"}, "X-Empty": {""},
		"Cookie": {`a=1; b="quoted"; bad=ä; =x; (a)=2; a=2; flag`, "c=3"},
	}
	f := edge.Fields{
		Host: "Shop.Example.com:8080", Path: "/a/b", Method: "GET", RawQuery: "q=1&q=2&plus=a+b&k%65y=v%20w&semi=1;x=2&bad=%zz&empty=",
		Client: netip.MustParseAddr("10.1.2.3"), Source: "order",
	}
	for attr, want := range map[string]string{
		"header:x-user-id": "1", "header:Host": "Shop.Example.com:8080",
		"cookie:a": "1", "cookie:b": "quoted", "cookie:c": "3",
		"query:q": "1", "query:plus": "a b", "query:key": "v w",
		"ip": "10.1.2.3", "host": "shop.example.com", "path": "/a/b", "method": "GET", "source": "order",
	} {
		got, ok := see(t, attr, h, f)
		assert.True(t, ok, attr)
		assert.Equal(t, want, got, attr)
	}
	for _, attr := range []string{"header:X-Empty", "cookie:flag", "query:empty"} {
		got, ok := see(t, attr, h, f)
		assert.True(t, ok, "%s is there, and empty", attr)
		assert.Empty(t, got)
	}
	for _, attr := range []string{"header:X-None", "cookie:none", "cookie:bad", "cookie:A", "query:none", "query:semi", "query:x", "query:bad"} {
		_, ok := see(t, attr, h, f)
		assert.False(t, ok, attr)
	}
	_, ok := see(t, "header:Host", h, edge.Fields{})
	assert.False(t, ok)
}

func TestStickyGroupsAreBounded(t *testing.T) {
	for value, ok := range map[string]bool{
		"A1-_.z": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "a b": false, "a,b": false, "a%0d": false, "<b>": false, "a=b": false,
	} {
		_, got := see(t, "cookie:gray_group", http.Header{"Cookie": {"gray_group=" + value}}, edge.Fields{})
		assert.Equal(t, ok, got, value)
	}
	seen := map[string]bool{}
	for range 1000 {
		g := edge.NewGroup()
		seen[g] = true
		_, ok := see(t, "group", http.Header{"Cookie": {"gray_group=" + g}}, edge.Fields{})
		require.True(t, ok, g)
	}
	assert.Len(t, seen, 1000)
}

// Whoever has a page under a sibling domain can put a cookie in front of ours; one
// that is no group must not make its holder draw anew with each request.
func TestABadGroupInFrontHidesNoGoodOne(t *testing.T) {
	v, ok := see(t, "group", http.Header{"Cookie": {"gray_group=a|b; gray_group=good", "gray_group=other"}}, edge.Fields{})
	assert.True(t, ok)
	assert.Equal(t, "good", v)
}

// A pooled request keeps nothing of the one before, and no room for floods.
func TestARequestIsForgotten(t *testing.T) {
	var q edge.Request
	q.Bind(nil)
	engine, err := rule.NewEngine(&rule.Set{Rules: []rule.Rule{
		{ID: "c", Match: []rule.Condition{{Attr: "cookie:c", Op: rule.OpExists}}, Tag: "version=c"},
	}})
	require.NoError(t, err)
	var flood strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&flood, "k%d=v; ", i)
	}
	q.Set(header{"Cookie": {flood.String() + "c=1"}}, edge.Fields{})
	assert.True(t, q.Decide(engine).Tag.IsZero(), "past the bound")
	q.Set(header{"Cookie": {"c=1; " + flood.String()}}, edge.Fields{})
	assert.False(t, q.Decide(engine).Tag.IsZero())
	q.Clear()
	q.Set(header{}, edge.Fields{})
	assert.True(t, q.Decide(engine).Tag.IsZero())
	assert.Zero(t, edge.CookieRoom(&q))
}

func TestDecisionsMakeNoGarbage(t *testing.T) {
	engine, err := rule.NewEngine(&rule.Set{Rules: []rule.Rule{
		{ID: "tester", Match: []rule.Condition{{Attr: "uid", Op: rule.OpSuffix, Values: []string{"9999"}}}, Tag: "version=v2"},
	}})
	require.NoError(t, err)
	var q edge.Request
	q.Bind(nil)
	h := header{"Cookie": {"session_id=abc; user_id=10086; theme=dark"}, "X-User-Id": {"x"}}
	// As the fields are set, none is made a string of: nobody asks for the address.
	f := edge.Fields{Host: "shop", Path: "/", Method: "GET", RawQuery: "uid=5", Client: netip.MustParseAddr("10.1.2.3")}
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		q.Set(h, f)
		if !q.Decide(engine).Tag.IsZero() {
			t.Error("matched")
		}
		q.Clear()
	}))
}

func TestHopTagsAreMerged(t *testing.T) {
	engine, err := rule.NewEngine(&rule.Set{Rules: []rule.Rule{
		{ID: "r", Services: []string{"inventory"}, Match: []rule.Condition{
			{Attr: "source", Op: rule.OpEquals, Values: []string{"order"}},
			{Attr: "uid", Op: rule.OpEquals, Values: []string{"7"}},
		}, Tag: "version=v2;lane=a"},
	}})
	require.NoError(t, err)
	rules := &edge.HopRules{Engine: engine, Source: "order"}
	for _, c := range []struct {
		tag, header, service, want string
		applies                    bool
	}{
		{"", "7", "inventory", "lane.inventory=a;version.inventory=v2", true},
		{"uid=7", "8", "inventory", "lane.inventory=a;uid=7;version.inventory=v2", true},
		{"uid=8", "7", "inventory", "", true},
		{"uid=7;lane.inventory=b", "", "inventory", "lane.inventory=b;uid=7;version.inventory=v2", true},
		{"uid=7", "", "user", "", true},
		{"uid=7;version=stable", "", "inventory", "", false},
		{"uid=7;version.inventory=v9", "", "inventory", "", false},
		{"uid=7;version.user=v9", "", "inventory", "lane.inventory=a;uid=7;version.inventory=v2;version.user=v9", true},
		{"uid=7", "", "", "", false},
	} {
		tag := graytag.MustParse(c.tag)
		require.Equal(t, c.applies, rules.Applies(tag, c.service), "%+v", c)
		if !c.applies {
			continue
		}
		got, ok := rules.Tag(tag, header{"X-User-Id": {c.header}}, edge.Fields{Service: c.service})
		assert.Equal(t, c.want != "", ok, "%+v", c)
		if !ok {
			c.want = c.tag
		}
		assert.Equal(t, c.want, got.String())
	}
	// A tag that has no room stays as it is.
	full := map[string]string{"uid": "7"}
	for i := range 30 {
		full[fmt.Sprint("k", i)] = "v"
	}
	tag, err := graytag.New(full)
	require.NoError(t, err)
	got, ok := rules.Tag(tag, header{}, edge.Fields{Service: "inventory"})
	assert.False(t, ok)
	assert.True(t, got.Equal(tag))
}

func TestServiceOf(t *testing.T) {
	for host, want := range map[string]string{
		"inventory": "inventory", "inventory:8080": "inventory", "localhost": "", "LOCALHOST:80": "", "10.0.0.1:80": "",
		"inventory.prod.svc": "", "[::1]:80": "", "::1": "", "": "", "2130706433": "", "a,b": "", "bufnet": "bufnet",
	} {
		assert.Equal(t, want, edge.ServiceOf(host), host)
	}
}

func TestDescribe(t *testing.T) {
	asking, err := http.NewRequest(http.MethodGet, "http://graylane/auth?x=1", strings.NewReader("body"))
	require.NoError(t, err)
	asking.RemoteAddr = "10.0.0.9:1"
	asking.Header.Set("X-A", "1")
	r, err := edge.Describe(asking, edge.Described{Method: "POST", URI: "/cart%20x?uid=7", Host: "shop.example.com"})
	require.NoError(t, err)
	assert.Equal(t, "POST", r.Method)
	assert.Equal(t, "/cart x", r.URL.Path)
	assert.Equal(t, "uid=7", r.URL.RawQuery)
	assert.Equal(t, "shop.example.com", r.Host)
	assert.Equal(t, "10.0.0.9:1", r.RemoteAddr)
	assert.Equal(t, "1", r.Header.Get("X-A"))
	assert.Zero(t, r.ContentLength)
	assert.Nil(t, r.TLS)
	assert.True(t, edge.Distrusts(r.Context()))
	assert.False(t, edge.Distrusts(asking.Context()))

	r, err = edge.Describe(asking, edge.Described{URI: "https://shop.example.com/a", Header: http.Header{"X-B": {"2"}}})
	require.NoError(t, err)
	assert.Equal(t, []string{"GET", "shop.example.com", "/a", ""}, []string{r.Method, r.Host, r.URL.Path, r.Header.Get("X-A")})

	for _, bad := range []string{"cart", "/%zz", "/\x00", "/" + strings.Repeat("x", 1<<17)} {
		_, err := edge.Describe(asking, edge.Described{URI: bad})
		assert.ErrorContains(t, err, "described URI")
	}
}

func engineOf(tb testing.TB, attr string) *rule.Engine {
	e, err := rule.NewEngine(&rule.Set{
		Rules: []rule.Rule{{ID: "r", Match: []rule.Condition{{Attr: attr, Op: rule.OpEquals, Values: []string{"a value that no request holds"}}}, Tag: "found=yes"}},
	})
	require.NoError(tb, err)
	return e
}

// Rules see the cookies that the application sees.
func FuzzCookie(f *testing.F) {
	f.Add("a=1; b=2", "a=3")
	f.Add(`a="x y"; =; ;;`, "\ta = 1 ;b")
	f.Add("b=1;a", "a=\\")
	engine := engineOf(f, "cookie:a")
	f.Fuzz(func(t *testing.T, one, two string) {
		h := http.Header{"Cookie": {one, two}}
		got, ok := seeBy(engine, h, edge.Fields{})
		want, err := (&http.Request{Header: h}).Cookie("a")
		if strings.Count(one, ";")+strings.Count(two, ";") > 500 {
			return // more than are looked at
		}
		if ok != (err == nil) || ok && len(want.Value) <= rule.MaxValueBytes && got != want.Value {
			t.Fatalf("%q: %q %v, want %v %v", h["Cookie"], got, ok, want, err)
		}
	})
}

// Rules see the query parameters that the application sees.
func FuzzQuery(f *testing.F) {
	f.Add("a=1&b=2&a=3")
	f.Add("%61=x+y&a=%zz&a;b&&=&a")
	engine := engineOf(f, "query:a")
	f.Fuzz(func(t *testing.T, raw string) {
		if len(raw) > 2000 {
			return // longer values are as good as missing
		}
		got, ok := seeBy(engine, nil, edge.Fields{RawQuery: raw})
		all, _ := url.ParseQuery(raw)
		if ok != all.Has("a") || got != all.Get("a") {
			t.Fatalf("%q: %q %v, want %q", raw, got, ok, all["a"])
		}
	})
}
