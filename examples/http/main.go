// HTTP is the smallest honest HTTP service: it registers, serves behind the
// inbound middleware and calls another service by name.
//
//	go run ./examples/http                # the embedded registry
//	go run ./examples/http -consul ADDR   # the same on a Consul agent
//
// To have something to show it runs two instances of itself, stable and v2, in
// one process, and sends itself one request of each colour. In a service of
// yours the version comes from the environment (GRAY_VERSION), set by the
// pipeline.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/graylane/graylane/examples/internal/ready"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
	"github.com/graylane/graylane/registry/memory"
)

// What the continuous integration expects of the output:
// ci: ^version=v2 -> hello from greeter-v2$

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("http", flag.ContinueOnError)
	agent := flags.String("consul", "", "`address` of a Consul agent, instead of the embedded registry")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var reg interface {
		registry.Registrar
		registry.Discovery
	} = memory.New()
	if *agent != "" {
		c, err := consul.New(nil, consul.WithAddress(*agent))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		reg = c
	}
	for _, self := range []registry.Instance{
		// In a service of yours there is one, and the pipeline says what it is:
		// registry.FromEnv(registry.Instance{ID: host, Service: "greeter"}).
		{ID: "greeter-stable", Service: "greeter"},
		{ID: "greeter-v2", Service: "greeter", Metadata: map[string]string{"version": "v2"}},
	} {
		stop, err := serve(ctx, reg, self)
		if err != nil {
			return err
		}
		defer stop()
	}
	if err := ready.Wait(ctx, reg, "greeter", 2); err != nil {
		return err
	}

	client, err := grayhttp.NewClient(reg)
	if err != nil {
		return err
	}
	defer client.Transport.(io.Closer).Close()
	for _, tag := range []string{"version=v2", ""} {
		// The context of a request that you serve holds its tag already.
		ctx := graytag.NewContext(ctx, graytag.MustParse(tag))
		answer, err := greet(ctx, client)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s -> %s\n", tag, answer)
	}
	return nil
}

// serve runs one instance: listen, serve, and only then register.
func serve(ctx context.Context, reg registry.Registrar, self registry.Instance) (stop func(), err error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	self.Address = lis.Addr().String()

	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "hello from ", self.ID)
	})
	handler, err := grayhttp.NewHandler(mux, grayhttp.WithSelf(self))
	if err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()

	registration, err := reg.Register(ctx, self)
	if err != nil {
		_ = srv.Close()
		<-done
		return nil, err
	}
	return func() {
		// First nobody finds us any more, then we stop.
		_ = registration.Deregister(context.Background())
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx)
		<-done
	}, nil
}

// greet calls the service by its name.
func greet(ctx context.Context, client *http.Client) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://greeter/hello", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}
