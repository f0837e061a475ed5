package consul_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/registry/consul"
)

// lockStandIn answers like an agent whose lock is free, so that the example runs
// without one.
func lockStandIn() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Consul-Index", "7")
		switch {
		case r.URL.Path == "/v1/session/create":
			fmt.Fprint(w, `{"ID":"f3a1"}`)
		case r.Method == http.MethodPut:
			fmt.Fprint(w, "true")
		case strings.HasPrefix(r.URL.Path, "/v1/kv/"):
			w.WriteHeader(http.StatusNotFound)
		}
	}))
}

func ExampleRegistry_Elector() {
	agent := lockStandIn() // yours listens on 127.0.0.1:8500
	defer agent.Close()

	reg, err := consul.New(&api.Config{Address: agent.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer reg.Close()
	elector, err := reg.Elector("graylane/leader", consul.WithCandidate("gateway-1"))
	if err != nil {
		fmt.Println(err)
		return
	}

	err = elector.Lead(context.Background(), func(ctx context.Context) error {
		fmt.Println("leading")
		return nil // or work until ctx ends
	})
	fmt.Println(err)
	// Output:
	// leading
	// <nil>
}
