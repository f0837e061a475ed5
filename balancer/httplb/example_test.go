package httplb_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

func Example() {
	ctx := context.Background()
	reg := memory.New()
	for id, version := range map[string]string{"inventory-stable": "", "inventory-gray": "v2.1.0"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Served-By", id)
		}))
		defer server.Close()
		_, err := reg.Register(ctx, registry.Instance{
			ID: id, Service: "inventory", Address: server.Listener.Addr().String(),
			Metadata: map[string]string{registry.MetadataVersion: version},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
	}

	lb, err := httplb.New(reg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lb.Close()
	client := &http.Client{Transport: lb}
	for _, tag := range []string{"version=v2.1.0", "", "version=v9"} {
		ctx := graytag.NewContext(ctx, graytag.MustParse(tag))
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://inventory/items/1", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp, err := client.Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Printf("%q: %s\n", tag, resp.Header.Get("Served-By"))
	}
	// Output:
	// "version=v2.1.0": inventory-gray
	// "": inventory-stable
	// "version=v9": inventory-stable
}
