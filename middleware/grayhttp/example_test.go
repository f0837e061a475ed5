package grayhttp_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// reg stands for the registry of one's choice, such as registry/consul.
var reg = memory.New()

// startInventory is a service: wrap the handler, listen, register.
func startInventory(version string) (*http.Server, error) {
	self := registry.FromEnv(registry.Instance{
		ID: "inventory-" + version, Service: "inventory",
		Metadata: map[string]string{registry.MetadataVersion: version},
	})
	handler, err := grayhttp.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrival, _ := grayhttp.ArrivalFromContext(r.Context())
		fmt.Fprintf(w, "%s, %s, uid %q", self.ID, arrival.Outcome, graytag.FromContext(r.Context()).Get(graytag.KeyUID))
	}), grayhttp.WithSelf(self))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: handler}
	go server.Serve(listener)
	self.Address = listener.Addr().String()
	_, err = reg.Register(context.Background(), self)
	return server, err
}

func Example() {
	for _, version := range []string{"stable", "v2.1.0"} {
		server, err := startInventory(version)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer server.Close()
	}
	client, err := grayhttp.NewClient(reg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Transport.(*grayhttp.Transport).Close()

	call := func(ctx context.Context) {
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
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		fmt.Println(string(body), err)
	}
	// In a handler the context is that of the inbound request.
	for _, tag := range []string{"uid=1", "uid=2;version=v2.1.0", "uid=3;version=v9"} {
		call(graytag.NewContext(context.Background(), graytag.MustParse(tag)))
	}
	// Output:
	// inventory-stable, stable, uid "1" <nil>
	// inventory-v2.1.0, matched, uid "2" <nil>
	// inventory-stable, fallback, uid "3" <nil>
}

// A client that has its own transport, or its own way to find instances, sends
// the tag along all the same.
func ExampleNewTransport() {
	transport, err := grayhttp.NewTransport(http.DefaultTransport,
		grayhttp.WithInjectTo(func(host string) bool { return host == "partner.example.com" }))
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}
	fmt.Println(client.Transport == transport)
	// Output: true
}
