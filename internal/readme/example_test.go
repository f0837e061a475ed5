package readme_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/middleware/grayslog"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
	"github.com/graylane/graylane/registry/memory"
)

// found registers what listens at lis, as the part on Consul does.
func found(reg *memory.Registry, lis net.Listener, service, version string) (registry.Registration, error) {
	i := registry.Instance{ID: service + "-" + version, Service: service, Address: lis.Addr().String()}
	if version != "" {
		i.Metadata = map[string]string{"version": version}
	}
	return reg.Register(context.Background(), i)
}

func Example_http() {
	err := func() error {
		reg := memory.New()
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		registration, err := found(reg, lis, "inventory", "v2")
		if err != nil {
			return err
		}
		defer registration.Deregister(context.Background())
		mux := http.NewServeMux()
		mux.HandleFunc("/items/1", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(w, "one item for", graytag.FromContext(r.Context()))
		})

		// README: http
		handler, err := grayhttp.NewHandler(mux) // the tag of a request is in its context
		if err != nil {
			return err
		}
		go http.Serve(lis, handler)

		client, err := grayhttp.NewClient(reg) // reg finds instances: Consul, or your own
		if err != nil {
			return err
		}
		call := func(ctx context.Context) (*http.Response, error) { // ctx of the request that you serve
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://inventory/items/1", nil)
			if err != nil {
				return nil, err
			}
			return client.Do(req) // to an instance of the version that the tag asks for
		}
		// README: end

		resp, err := call(graytag.NewContext(context.Background(), graytag.MustParse("version=v2")))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		fmt.Print(string(body))
		return err
	}()
	if err != nil {
		fmt.Println(err)
	}
	// Output: one item for version=v2
}

type health struct{ pb.UnimplementedHealthServer }

func (health) Check(ctx context.Context, _ *pb.HealthCheckRequest) (*pb.HealthCheckResponse, error) {
	fmt.Println("served", graytag.FromContext(ctx))
	return &pb.HealthCheckResponse{}, nil
}

func Example_grpc() {
	err := func() error {
		reg := memory.New()
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		registration, err := found(reg, lis, "inventory", "v2")
		if err != nil {
			return err
		}
		defer registration.Deregister(context.Background())

		// README: grpc
		opts, err := graygrpc.ServerOptions() // the tag of a call is in its context
		if err != nil {
			return err
		}
		server := grpc.NewServer(opts...)
		pb.RegisterHealthServer(server, health{}) // your service; health checks stand in for it here
		go server.Serve(lis)

		dial := append(graygrpc.DialOptions(reg), grpc.WithTransportCredentials(insecure.NewCredentials()))
		conn, err := grpc.NewClient("gray:///inventory", dial...) // one connection for all versions
		if err != nil {
			return err
		}
		call := func(ctx context.Context) error { // ctx of the call that you serve
			_, err := pb.NewHealthClient(conn).Check(ctx, &pb.HealthCheckRequest{})
			return err // served by an instance of the version that the tag asks for
		}
		// README: end

		defer server.Stop()
		defer conn.Close()
		return call(graytag.NewContext(context.Background(), graytag.MustParse("version=v2")))
	}()
	if err != nil {
		fmt.Println(err)
	}
	// Output: served version=v2
}

func Example_entrance() {
	err := func() error {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		reg := memory.New()

		// README: entrance
		engine, err := rule.NewEngine(nil) // no rules yet: everything is stable
		if err != nil {
			return err
		}
		go engine.Follow(ctx, rule.NewFileStore("rules.json")) // or Consul KV: the store that reg.RuleStore returns

		gw, err := gateway.New(engine, reg, gateway.WithRoutes(gateway.Route{Prefix: "/orders", Service: "order"}))
		if err != nil {
			return err
		}
		defer gw.Close()
		go gateway.NewServer(":8080", gw).ListenAndServe() // HTTP/1, HTTP/2, gRPC, WebSockets
		// README: end

		w := httptest.NewRecorder()
		gw.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/orders/1", nil))
		fmt.Println(w.Code, w.Header().Get(gateway.ReasonHeader), w.Header().Get("X-Version"))
		return nil
	}()
	if err != nil {
		fmt.Println(err)
	}
	// Output: 503 missing stable
}

func Example_seeing() {
	err := func() error {
		defer slog.SetDefault(slog.Default())
		mux := http.NewServeMux()
		mux.HandleFunc("/orders/1", func(_ http.ResponseWriter, r *http.Request) {
			arrival, _ := grayhttp.ArrivalFromContext(r.Context())
			fmt.Println(arrival.Wanted, arrival.Outcome)
		})

		// README: seeing
		self := registry.FromEnv(registry.Instance{ID: "order-1", Service: "order"})
		handler, err := grayhttp.NewHandler(mux, grayhttp.WithSelf(self)) // graygrpc.ServerOptions takes one, too
		if err != nil {
			return err
		}
		lines := grayslog.NewHandler(slog.NewJSONHandler(os.Stderr, nil), grayslog.WithService(self.Service))
		slog.SetDefault(slog.New(lines)) // slog.InfoContext(r.Context(), …) says gray.version
		// README: end

		r := httptest.NewRequest(http.MethodGet, "/orders/1", nil)
		r.Header.Set("X-Gray-Tag", "version=v2.1.0")
		r.Header.Set("X-Gray-Trace", "1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Header().Get("X-Gray-Route"))
		return nil
	}()
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// v2.1.0 fallback
	// depth=0;service=order;instance=order-1;wanted=v2.1.0;got=stable;outcome=fallback
}

func Example_consul() {
	err := func() error {
		// README: consul
		reg, err := consul.New(nil) // CONSUL_HTTP_ADDR and the like, else 127.0.0.1:8500
		if err != nil {
			return err
		}
		defer reg.Close() // deregisters, too

		self := registry.FromEnv(registry.Instance{ // GRAY_VERSION=v2.1.0 comes from the pipeline
			ID: "inventory-10.0.0.7-8080", Service: "inventory", Address: "10.0.0.7:8080",
		})
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err = reg.Register(ctx, self) // kept alive, and registered again where the agent forgets
		// README: end
		if err != nil {
			return fmt.Errorf("no agent there: %T", err)
		}
		return nil
	}()
	_ = err // whether somebody runs an agent there is not ours to say
	fmt.Println("built")
	// Output: built
}

func Example_rollout() {
	err := func() error {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		engine, err := rule.NewEngine(nil)
		if err != nil {
			return err
		}
		store := rule.NewMemoryStore()
		_, err = store.Put(ctx, rule.Document{Data: []byte(`{
			"rules": [
				{"id": "order", "services": ["order"], "percent": 0, "salt": "december", "tag": "version=v2"},
				{"id": "inventory", "services": ["inventory"], "percent": 0, "salt": "december", "tag": "version=v2"}],
			"plans": {"december": {"rules": ["order", "inventory"], "stages": [{"percent": 1, "hold": "24h"}, {"percent": 100}]}}
		}`)}, 0)
		if err != nil {
			return err
		}
		webhook := rollout.AlerterFunc(func(_ context.Context, e rollout.Event) error {
			fmt.Println(e.Text())
			return nil
		})
		// README: rollout
		recorder, err := rollout.NewRecorder() // gateway.WithRecorder(recorder) fills it
		if err != nil {
			return err
		}
		ctl, err := rollout.NewController(store, recorder, rollout.WithEngine(engine), rollout.WithAlerter(webhook))
		if err != nil {
			return err
		}
		go ctl.Run(ctx) // of several gateways one leads: rollout.WithElector

		_, err = ctl.Do(ctx, "december", rollout.CommandStart, rollout.Note{Who: "ann"}) // or pause, promote, rollback, restore
		// README: end

		return errors.Join(err, ctl.Flush(ctx))
	}()
	if err != nil {
		fmt.Println(err)
	}
	// Output: plan december: started, at 1 %
}
