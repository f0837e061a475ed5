package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// Two versions of a service, a gateway in front, and a rule for one user.
func Example() {
	reg := memory.New()
	for _, version := range []string{"", "v2"} {
		instance := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "served by %q", version)
		}))
		defer instance.Close()
		_, err := reg.Register(context.Background(), registry.Instance{
			ID: "order-" + version, Service: "order", Address: instance.Listener.Addr().String(),
			Metadata: map[string]string{"version": version},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
	}

	set, err := rule.Parse([]byte(`{"rules": [
		{"id": "tester", "match": [{"attr": "uid", "op": "equals", "values": ["10086"]}], "tag": "version=v2"}
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
	gw, err := gateway.New(engine, reg, gateway.WithRoutes(gateway.Route{Prefix: "/orders", Service: "order"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer gw.Close()
	front := httptest.NewServer(gw)
	defer front.Close()

	for _, user := range []string{"10086", "10087"} {
		req, err := http.NewRequest(http.MethodGet, front.URL+"/orders/1", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		req.Header.Set("X-User-ID", user)
		req.Header.Set("X-Gray-Tag", "version=v2") // nobody believes that
		resp, err := front.Client().Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Println(user, resp.Header.Get("X-Version"), string(body))
	}
	// Output:
	// 10086 v2 served by "v2"
	// 10087 stable served by ""
}
