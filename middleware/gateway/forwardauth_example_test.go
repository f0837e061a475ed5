package gateway_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
)

// A proxy of another make asks about every request, and copies the answer. Here
// the example is the proxy.
func ExampleForwardAuth() {
	engine, err := rule.NewEngine(&rule.Set{Rules: []rule.Rule{{
		ID: "testers", Tag: "version=v2",
		Match: []rule.Condition{{Attr: "uid", Op: rule.OpSuffix, Values: []string{"9999"}}},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	decide, err := gateway.ForwardAuth(engine,
		gateway.WithConvention(gateway.Nginx()),
		gateway.WithEdge(grayhttp.WithTrustedProxies("127.0.0.0/8")))
	if err != nil {
		fmt.Println(err)
		return
	}
	graylane := httptest.NewServer(decide) // gateway.NewServer in a program
	defer graylane.Close()

	for _, user := range []string{"19999", "10000"} {
		req, err := http.NewRequest(http.MethodGet, graylane.URL, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		req.Header.Set("X-Original-Method", "POST")
		req.Header.Set("X-Original-URI", "/orders?uid="+user)
		req.Header.Set("X-Gray-Tag", "version=v9") // the client's word
		resp, err := graylane.Client().Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Printf("%s: tag %q, %s\n", user, resp.Header.Get("X-Gray-Tag"), resp.Header.Get("X-Version"))
	}
	// Output:
	// 19999: tag "version=v2", v2
	// 10000: tag "", stable
}
