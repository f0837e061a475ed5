package propagation_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// printRoute prints one line per call, those that a call made in turn beneath it.
func printRoute(route []propagation.Hop) {
	for _, h := range route {
		fmt.Printf("%s%s at %s: wanted %s, got %s, %s\n", strings.Repeat("  ", h.Depth), h.Service, h.Instance, h.Wanted, h.Got, h.Outcome)
	}
}

// What curl shows of an answer, as text.
func ExampleParseRoute() {
	route, _, err := propagation.ParseRoute("depth=0;service=order;instance=order-1;wanted=v2;got=v2;outcome=matched, " +
		"depth=1;service=coupon;instance=coupon-1;wanted=v2;got=stable;outcome=fallback_stable;reason=missing")
	if err != nil {
		fmt.Println(err)
		return
	}
	printRoute(route)
	// Output:
	// order at order-1: wanted v2, got v2, matched
	//   coupon at coupon-1: wanted v2, got stable, fallback_stable
}

// A program asks for the way of what it calls, here of a call that the instance of v2
// refuses, since it is of v3: both tries are told.
func ExampleTraceRoute() {
	reg := memory.New()
	for _, i := range []struct{ id, registered, is string }{{"order-1", "", ""}, {"order-2", "v2", "v3"}} {
		self := registry.Instance{ID: i.id, Service: "order", Metadata: map[string]string{"version": i.is}}
		h, err := grayhttp.NewHandler(http.NotFoundHandler(), grayhttp.WithSelf(self), grayhttp.WithRejectMisrouted())
		if err != nil {
			fmt.Println(err)
			return
		}
		server := httptest.NewServer(h)
		defer server.Close()
		self.Address, self.Metadata = server.Listener.Addr().String(), map[string]string{"version": i.registered}
		if _, err := reg.Register(context.Background(), self); err != nil {
			fmt.Println(err)
			return
		}
	}
	client, err := grayhttp.NewClient(reg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Transport.(*grayhttp.Transport).Close()

	ctx, trace := propagation.TraceRoute(graytag.NewContext(context.Background(), graytag.MustParse("version=v2")))
	defer trace.End()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://order/1", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = resp.Body.Close()
	route, _ := trace.Hops()
	printRoute(route)
	// Output:
	// order at order-2: wanted v2, got v3, misrouted
	// order at order-1: wanted v2, got stable, fallback_stable
}
