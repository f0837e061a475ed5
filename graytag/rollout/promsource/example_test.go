package promsource_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rollout/promsource"
)

func Example() {
	// In place of a Prometheus: 200 gray requests, of which 3 failed.
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"status": "success", "data": {"resultType": "vector", "result": [
			{"metric": {"wanted": "v2", "version": "v2", "status": "200"}, "value": [1796112300, "197"]},
			{"metric": {"wanted": "v2", "version": "v2", "status": "503"}, "value": [1796112300, "3"]}
		]}}`)
	}))
	defer prometheus.Close()

	src, err := promsource.New(prometheus.URL,
		promsource.WithHTTPClient(prometheus.Client()),
		promsource.WithQueries(promsource.Queries{
			// Of one's own metrics; without WithQueries, of those of graylane.
			Requests: `sum by (wanted, version, status) (increase(shop_requests_total{app=~"$service"}[$window]))`,
		}))
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	samples, err := src.Samples(context.Background(), rollout.Query{Service: "order", Version: "v2", From: now.Add(-5 * time.Minute), To: now})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range samples {
		fmt.Printf("wanted %s, served by %s: %d of %d failed\n", s.Wanted, s.Served, s.Errors, s.Requests)
	}
	// Output: wanted v2, served by v2: 3 of 200 failed
}
