package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// instance starts one instance of the service order.
func instance(reg *memory.Registry, version string) *httptest.Server {
	h, err := grayhttp.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s at %s, tag %q", r.URL.Path, version, graytag.FromContext(r.Context()))
	}))
	if err != nil {
		panic(err)
	}
	srv := httptest.NewServer(h)
	_, err = reg.Register(context.Background(), registry.Instance{
		ID: "order-" + version, Service: "order", Address: srv.Listener.Addr().String(),
		Metadata: map[string]string{registry.MetadataVersion: version},
	})
	if err != nil {
		panic(err)
	}
	return srv
}

func Example() {
	reg := memory.New() // or registry/consul
	for _, version := range []string{"stable", "v2"} {
		defer instance(reg, version).Close()
	}
	set, err := rule.Parse([]byte(`{"rules": [
		{"id": "testers", "match": [{"attr": "uid", "op": "suffix", "values": ["9999"]}], "tag": "version=v2"}
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
	g, err := gateway.New(engine, reg, gateway.WithRoutes(gateway.Route{Prefix: "/orders", Service: "order"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close()
	front := httptest.NewServer(g) // gateway.NewServer(":8080", g).ListenAndServe()
	defer front.Close()

	ask := func(user, path string) {
		req, err := http.NewRequest(http.MethodGet, front.URL+path, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		req.Header.Set("X-User-ID", user)
		req.Header.Set("X-Gray-Tag", "version=v2") // is not believed
		resp, err := front.Client().Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		fmt.Printf("%d %s: %s\n", resp.StatusCode, resp.Header.Get("X-Version"), body)
	}
	ask("1", "/orders/7")
	ask("19999", "/orders/7")
	ask("1", "/elsewhere")
	// Output:
	// 200 stable: /orders/7 at stable, tag ""
	// 200 v2: /orders/7 at v2, tag "version=v2"
	// 404 : 404 Not Found: no_route
}
