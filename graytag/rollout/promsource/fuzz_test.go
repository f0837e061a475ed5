package promsource_test

import (
	"testing"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rollout/promsource"
)

func FuzzAnswer(f *testing.F) {
	for _, body := range []string{
		vector(), vector(series("wanted=v2,version=v2,status=200", "12.5"), series("wanted=v2,version=v2,status=500", "3")),
		vector(series("wanted=v2,version=v2,status=200,le=0.1", "1"), series("wanted=v2,version=v2,status=200,le=+Inf", "2")),
		vector(series("wanted=v2,version=v2,status=UNAVAILABLE,le=-1e300", "1e15")),
		`{"status":"error","errorType":"bad_data","error":"parse error"}`, `{"status":"success","warnings":["x"]}`,
		`{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"NaN"]}]}}`, "", "null", "[]",
	} {
		f.Add(200, []byte(body), []byte(body), []byte(body))
	}
	f.Add(503, []byte("busy"), []byte(""), []byte(""))
	f.Fuzz(func(t *testing.T, status int, requests, latency, unserved []byte) {
		list, err := promsource.Read(status, requests, latency, unserved)
		if err != nil {
			if list != nil || len(err.Error()) > 2000 {
				t.Fatalf("%d samples, %d bytes of error", len(list), len(err.Error()))
			}
			return
		}
		seen := map[[2]string]bool{}
		for _, s := range list {
			k := [2]string{s.Wanted, s.Served}
			if s.Requests == 0 || s.Errors > s.Requests || seen[k] {
				t.Fatalf("%+v", s)
			}
			seen[k] = true
			if q := s.Latency.Quantile(0.99); q < 0 || q > rollout.MaxLatency {
				t.Fatal(q)
			}
		}
	})
}
