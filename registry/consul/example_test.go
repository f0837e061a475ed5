package consul_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
)

// standIn answers like an agent that knows one instance of inventory, so that the
// example runs without one.
func standIn() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("index") {
			<-r.Context().Done() // nothing changes
			return
		}
		w.Header().Set("X-Consul-Index", "7")
		if r.URL.Path == "/v1/health/service/inventory" {
			fmt.Fprint(w, `[{"Node":{"Address":"10.0.0.7"},"Service":{"ID":"inventory-1","Service":"inventory",
				"Port":8080,"Meta":{"version":"v2.1.0"}},"Checks":[{"Status":"passing"}]}]`)
		}
	}))
}

func Example() {
	agent := standIn() // yours listens on 127.0.0.1:8500
	defer agent.Close()

	// With nil instead of a config, CONSUL_HTTP_ADDR and the like are read.
	reg, err := consul.New(&api.Config{Address: agent.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer reg.Close()

	ctx := context.Background()
	_, err = reg.Register(ctx, registry.FromEnv(registry.Instance{
		ID: "order-1", Service: "order", Address: "10.0.0.9:8080",
	}))
	if err != nil {
		fmt.Println(err)
		return
	}

	for instances, err := range reg.Watch(ctx, "inventory") {
		if err != nil {
			continue // the last set stays good
		}
		for _, i := range instances {
			fmt.Println(i.ID, i.Address, i.Metadata[registry.MetadataVersion], i.Status)
		}
		break
	}
	// Output: inventory-1 10.0.0.7:8080 v2.1.0 passing
}
