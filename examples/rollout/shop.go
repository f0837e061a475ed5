package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/graylane/graylane/examples/internal/ready"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
)

// shop is two services behind the gateways, each as stable and as v2: order calls
// inventory.
type shop struct {
	reg interface {
		registry.Registrar
		registry.Discovery
	}
	broken atomic.Bool // v2 of inventory fails every other call
	calls  atomic.Uint64
	stops  []func()
}

func (s *shop) open(ctx context.Context) error {
	for _, version := range []string{"", "v2"} {
		if err := s.start(ctx, "inventory", version, s.inventory); err != nil {
			return err
		}
		if err := s.start(ctx, "order", version, s.order); err != nil {
			return err
		}
	}
	for _, service := range []string{"inventory", "order"} {
		if err := ready.Wait(ctx, s.reg, service, 2); err != nil {
			return err
		}
	}
	return nil
}

// close ends the instances, the last first.
func (s *shop) close() {
	for i := len(s.stops) - 1; i >= 0; i-- {
		s.stops[i]()
	}
}

// start runs one instance, with a listener of its own, and registers it.
func (s *shop) start(ctx context.Context, service, version string, build func(self registry.Instance) (http.Handler, func(), error)) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	self := registry.Instance{ID: service + "-stable", Service: service, Address: lis.Addr().String()}
	if version != "" {
		self.ID = service + "-" + version
		self.Metadata = map[string]string{registry.MetadataVersion: version}
	}
	h, end, err := build(self)
	if err == nil {
		h, err = grayhttp.NewHandler(h, grayhttp.WithSelf(self))
	}
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(lis) // ends with Close
	}()
	stop := func() { _ = srv.Close(); <-done; end() }
	registration, err := s.reg.Register(ctx, self)
	if err != nil {
		stop()
		return err
	}
	s.stops = append(s.stops, func() {
		_ = registration.Deregister(context.Background())
		stop()
	})
	return nil
}

func (s *shop) inventory(self registry.Instance) (http.Handler, func(), error) {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.broken.Load() && self.Metadata[registry.MetadataVersion] == "v2" && s.calls.Add(1)%2 == 0 {
			http.Error(w, "no such column", http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, self.ID)
	}), func() {}, nil
}

func (s *shop) order(self registry.Instance) (http.Handler, func(), error) {
	client, err := grayhttp.NewClient(s.reg)
	if err != nil {
		return nil, nil, err
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://inventory/items/1", nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		status, body, err := do(client, req)
		if err != nil || status != http.StatusOK {
			http.Error(w, fmt.Sprint(self.ID, ": inventory: ", status, err), http.StatusBadGateway)
			return
		}
		fmt.Fprint(w, self.ID, " ", body)
	})
	return h, func() {
		client.CloseIdleConnections()
		_ = client.Transport.(io.Closer).Close()
	}, nil
}

// do sends a request and reads the answer to its end.
func do(client *http.Client, req *http.Request) (status int, body string, err error) {
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(data), err
}
