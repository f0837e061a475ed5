package grayhttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// The entrance decides which version each user gets. Its rules come from a store
// in production, see rule.Engine.Follow.
func ExampleEdge() {
	set, err := rule.Parse([]byte(`{"rules": [
		{"id": "testers", "match": [{"attr": "uid", "op": "suffix", "values": ["9999"]}], "tag": "version=v2"},
		{"id": "office", "match": [{"attr": "ip", "op": "cidr", "values": ["203.0.113.0/24"]}], "tag": "version=v3"}
	]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	engine, err := rule.NewEngine(set)
	if err != nil {
		fmt.Println(err)
		return
	}
	enter, err := grayhttp.Edge(engine,
		grayhttp.WithTrustedProxies("127.0.0.0/8", "::1"), // the load balancer
		grayhttp.WithStickyCookie(grayhttp.StickyCookie{}))
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(enter(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		// Clients of grayhttp, and of graygrpc, hand the tag of this context on.
		fmt.Printf("tag %q, header %q\n", graytag.FromContext(r.Context()), r.Header.Get(graytag.Header))
	})))
	defer server.Close()

	for _, header := range []http.Header{
		{"X-User-Id": {"10019999"}},
		{"X-User-Id": {"10086"}, "X-Gray-Tag": {"version=v2"}}, // not from outside
		{"X-Forwarded-For": {"203.0.113.7"}},
	} {
		req, err := http.NewRequest(http.MethodGet, server.URL, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		req.Header = header
		resp, err := server.Client().Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println("X-Version:", resp.Header.Get(grayhttp.VersionHeader))
	}
	// Output:
	// tag "version=v2", header ""
	// X-Version: v2
	// tag "", header ""
	// X-Version: stable
	// tag "version=v3", header ""
	// X-Version: v3
}

type session struct{}

// The user of a rule is the one who has logged in, whatever a header claims.
func ExampleWithAttr() {
	engine, err := rule.NewEngine(&rule.Set{Rules: []rule.Rule{{
		ID: "testers", Match: []rule.Condition{{Attr: "uid", Op: rule.OpEquals, Values: []string{"alice"}}}, Tag: "version=v2",
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	enter, err := grayhttp.Edge(engine, grayhttp.WithAttr("uid", func(r *http.Request) (string, bool) {
		user, ok := r.Context().Value(session{}).(string) // by the authentication outside
		return user, ok
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-User-ID", "alice") // says a stranger
	w := httptest.NewRecorder()
	enter(http.NotFoundHandler()).ServeHTTP(w, r)
	fmt.Println(w.Header().Get(grayhttp.VersionHeader))
	// Output: stable
}

// Inside the system rules decide hop by hop, for calls that have no version yet:
// what order asks on behalf of one tenant goes to the inventory that is made for
// it.
func ExampleWithRules() {
	reg := memory.New()
	for _, version := range []string{"stable", "v2"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "inventory ", version)
		}))
		defer server.Close()
		_, err := reg.Register(context.Background(), registry.Instance{
			ID: version, Service: "inventory", Address: server.Listener.Addr().String(),
			Metadata: map[string]string{registry.MetadataVersion: version},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	engine, err := rule.NewEngine(&rule.Set{Rules: []rule.Rule{{
		ID: "acme", Services: []string{"inventory"}, Tag: "version=v2",
		Match: []rule.Condition{
			{Attr: "source", Op: rule.OpEquals, Values: []string{"order"}},
			{Attr: "header:X-Tenant", Op: rule.OpEquals, Values: []string{"acme"}},
		},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := grayhttp.NewClient(reg, grayhttp.WithRules(engine, "order"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Transport.(*grayhttp.Transport).Close()

	ctx := graytag.NewContext(context.Background(), graytag.Tag{}) // that of a request, in a handler
	for _, tenant := range []string{"acme", "umbrella"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://inventory/items/1", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		req.Header.Set("X-Tenant", tenant)
		resp, err := client.Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Printf("%s: %s %v\n", tenant, body, err)
	}
	// Output:
	// acme: inventory v2 <nil>
	// umbrella: inventory stable <nil>
}
