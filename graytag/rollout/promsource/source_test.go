package promsource_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rollout/promsource"
)

func TestSamples(t *testing.T) {
	a := newAPI(t, map[string]string{
		requests: vector(
			series("wanted=stable,version=stable,status=200", "99.6"),
			series("wanted=stable,version=stable,status=OK", "100"),
			series("wanted=stable,version=stable,status=503", "1.4"),
			series("wanted=v2,version=v2,status=200", "40"),
			series("wanted=v2,version=v2,status=404", "2"),
			series("wanted=v2,version=v2,status=INTERNAL", "3"),
			series("wanted=v2,version=v2,status=aborted", "1"),
			series("wanted=v2,version=v2,status=CANCELLED", "1000"),
			series("wanted=v2,version=stable,status=200", "7"),
			series("wanted=v2,version=v3,status=200", "0.2"),
		),
		latency: vector(
			series("wanted=v2,version=v2,le=0.1", "40"), series("wanted=v2,version=v2,le=+Inf", "46"),
			series("wanted=v2,version=v2,le=0.005", "0"), series("wanted=v2,version=v2,le=10", "46"),
			series("wanted=stable,version=stable,le=+Inf", "201"),
		),
		unserved: vector(series("wanted=v2", "4.6"), series("wanted=stable", "1")),
		scrapes:  vector(series("", "20")),
	})
	list, err := ask(t, a.source(t))
	require.NoError(t, err)
	require.Len(t, list, 5)
	gray := &list[4]
	require.NotNil(t, gray.Latency)
	assert.EqualValues(t, 46, gray.Latency.Count())
	assert.InDelta(t, 0.05, gray.Latency.Quantile(0.43).Seconds(), 0.003, "interpolated as by histogram_quantile")
	assert.EqualValues(t, 6, gray.Latency.Above(101*time.Millisecond))
	gray.Latency = nil
	assert.Equal(t, []rollout.Sample{
		{Requests: 201, Errors: 1}, // buckets without a bound tell nothing
		{Served: rollout.ServedNone, Requests: 1, Errors: 1},
		{Wanted: "v2", Requests: 7},
		{Wanted: "v2", Served: rollout.ServedNone, Requests: 5, Errors: 5},
		{Wanted: "v2", Served: "v2", Requests: 46, Errors: 4},
	}, list)
}

func TestNoSeriesAreNoSamples(t *testing.T) {
	list, err := ask(t, newAPI(t, nil).source(t))
	require.NoError(t, err)
	assert.Empty(t, list)
	w := rollout.NewWindow("v2", window.From, window.To, list)
	for _, c := range (&rollout.Analysis{}).Judge([]*rollout.Window{w}, nil) {
		assert.NotEqual(t, rollout.VerdictFail, c.Verdict)
		if c.Name == rollout.CheckMatched {
			assert.Equal(t, rollout.VerdictInconclusive, c.Verdict)
		}
	}
}

func TestWhatAStatusMeans(t *testing.T) {
	for status, want := range map[string][2]uint64{
		"200": {1, 0}, "101": {1, 0}, "301": {1, 0}, "404": {1, 0}, "421": {1, 0}, "hijacked": {1, 0}, "": {1, 0},
		"500": {1, 1}, "503": {1, 1}, "5xx": {1, 1}, "4xx": {1, 0}, "aborted": {1, 1}, "other": {1, 1},
		"OK": {1, 0}, "NOT_FOUND": {1, 0}, "RESOURCE_EXHAUSTED": {1, 0}, "0": {1, 0}, "5": {1, 0},
		"UNKNOWN": {1, 1}, "DEADLINE_EXCEEDED": {1, 1}, "UNIMPLEMENTED": {1, 1}, "INTERNAL": {1, 1}, "UNAVAILABLE": {1, 1}, "DATA_LOSS": {1, 1},
		"DeadlineExceeded": {1, 1}, "Unavailable": {1, 1}, "2": {1, 1}, "4": {1, 1}, "12": {1, 1}, "13": {1, 1}, "14": {1, 1}, "15": {1, 1},
		"CANCELLED": {0, 0}, "Canceled": {0, 0}, "1": {0, 0}, "499": {0, 0},
	} {
		a := newAPI(t, map[string]string{
			requests: vector(series("wanted=v2,version=v2,status="+status, "1")),
			scrapes:  vector(series("", "20")),
		})
		list, err := ask(t, a.source(t))
		require.NoError(t, err, status)
		var got [2]uint64
		for _, s := range list {
			got = [2]uint64{s.Requests, s.Errors}
		}
		assert.Equal(t, want, got, "%q", status)
	}
}

func TestWhatIsAsked(t *testing.T) {
	a := newAPI(t, nil)
	s := a.source(t, promsource.WithServiceLabel("service_name"), promsource.WithMatchers(`env="prod"`),
		promsource.WithBearerToken("secret"), promsource.WithHeader("X-Scope-OrgID", "shop"))
	q := rollout.Query{Service: `a"b.c`, Version: "v2.1|x", From: t0.Add(-time.Nanosecond), To: t0.Add(time.Minute + 999*time.Microsecond)}
	_, err := s.Samples(context.Background(), q)
	require.NoError(t, err)
	require.Len(t, a.seen, 5)
	windows := map[string]int{}
	for _, r := range a.seen {
		query := r.PostForm.Get("query")
		assert.Equal(t, http.MethodPost, r.Method)
		assert.Equal(t, "/api/v1/query", r.URL.Path)
		assert.Equal(t, "1796112060.000", r.PostForm.Get("time"))
		assert.Regexp(t, `^\d+ms$`, r.PostForm.Get("timeout"))
		assert.Equal(t, "Bearer secret", r.Header.Get("Authorization"))
		assert.Equal(t, "shop", r.Header.Get("X-Scope-OrgID"))
		assert.Contains(t, query, `env="prod"}`)
		assert.NotContains(t, query, "$")
		switch {
		case strings.Contains(query, unserved):
			assert.Contains(t, query, `{service=~"a\"b\\.c",wanted=~"stable|v2\\.1\\|x"`)
		case strings.Contains(query, scrapes):
			assert.Contains(t, query, `{service_name=~"a\"b\\.c",`)
		default:
			assert.Contains(t, query, `{service_name=~"a\"b\\.c",wanted=~"stable|v2\\.1\\|x"`)
		}
		for _, w := range []string{"[60000ms]", "[30000ms]", "[15000ms]", "offset 45000ms"} {
			if strings.Contains(query, w) {
				windows[w]++
			}
		}
	}
	assert.Equal(t, map[string]int{"[60000ms]": 4, "[30000ms]": 1, "[15000ms]": 3, "offset 45000ms": 3}, windows)

	a = newAPI(t, nil)
	_, err = a.source(t).Samples(context.Background(), rollout.Query{Version: "v2", From: t0, To: t0.Add(time.Minute)})
	require.NoError(t, err)
	for _, r := range a.seen {
		assert.Contains(t, r.PostForm.Get("query"), `=~".*"`, "all services")
	}
}

func TestOwnQueries(t *testing.T) {
	a := newAPI(t, map[string]string{"": vector(series("wanted=v2,version=v2,status=5xx", "3"))})
	s := a.source(t, promsource.WithQueries(promsource.Queries{
		Requests: `label_replace(sum by (status) (increase(shop_requests{app=~"$service",v=~"$version$"}[$window])), "wanted", "$1", "v", "(.*)")`,
	}))
	list, err := ask(t, s)
	require.NoError(t, err)
	assert.Equal(t, []rollout.Sample{{Wanted: "v2", Served: "v2", Requests: 3, Errors: 3}}, list)
	require.Len(t, a.seen, 1, "what is empty is not asked for")
	assert.Equal(t, `label_replace(sum by (status) (increase(shop_requests{app=~"order",v=~"v2$"}[300000ms])), "wanted", "$1", "v", "(.*)")`,
		a.seen[0].PostForm.Get("query"))
}

func TestTooFewScrapes(t *testing.T) {
	some := vector(series("wanted=v2,version=v2,status=200", "100"))
	for _, scraped := range []string{vector(), vector(series("", "1"))} {
		_, err := ask(t, newAPI(t, map[string]string{requests: some, scrapes: scraped}).source(t))
		var incomplete *rollout.IncompleteError
		require.ErrorAs(t, err, &incomplete)
		assert.Contains(t, err.Error(), "at least 2")
	}
	// The newer half has none.
	a := newAPI(t, nil)
	a.handle = func(w http.ResponseWriter, r *http.Request) {
		switch query := r.PostForm.Get("query"); {
		case strings.Contains(query, scrapes) && strings.Contains(query, "[150000ms]"):
			_, _ = w.Write([]byte(vector()))
		case strings.Contains(query, scrapes):
			_, _ = w.Write([]byte(vector(series("", "10"))))
		default:
			_, _ = w.Write([]byte(vector()))
		}
	}
	_, err := ask(t, a.source(t))
	assert.ErrorContains(t, err, "newer half")
	_, err = a.source(t).Samples(context.Background(), rollout.Query{Service: "order", From: t0, To: t0.Add(time.Millisecond)})
	assert.ErrorContains(t, err, "too short")
	// Nobody serves, and clients know.
	list, err := ask(t, newAPI(t, map[string]string{unserved: vector(series("wanted=v2", "5"))}).source(t))
	require.NoError(t, err)
	assert.Equal(t, []rollout.Sample{{Wanted: "v2", Served: rollout.ServedNone, Requests: 5, Errors: 5}}, list)
}

func TestBadAnswers(t *testing.T) {
	for name, body := range map[string]string{
		"empty":                   "",
		"no JSON":                 "<html>",
		"half":                    vector()[:30],
		"another status":          `{"status":"perhaps"}`,
		"a matrix":                `{"status":"success","data":{"resultType":"matrix","result":[]}}`,
		"a scalar":                `{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`,
		"no result":               `{"status":"success","data":{"resultType":"vector"}}`,
		"NaN":                     vector(series("wanted=v2,version=v2,status=200", "NaN")),
		"infinite":                vector(series("wanted=v2,version=v2,status=200", "+Inf")),
		"negative":                vector(series("wanted=v2,version=v2,status=200", "-1")),
		"huge":                    vector(series("wanted=v2,version=v2,status=200", "1e300")),
		"no number":               vector(series("wanted=v2,version=v2,status=200", "many")),
		"a number without quotes": vector(`{"metric":{},"value":[1,2]}`),
		"no value":                vector(`{"metric":{}}`),
		"three values":            vector(`{"metric":{},"value":[1,"2","3"]}`),
		"a histogram":             vector(`{"metric":{},"histogram":[1,{"count":"1"}]}`),
		"labels that are numbers": vector(`{"metric":{"status":200},"value":[1,"2"]}`),
		"no status":               vector(series("wanted=v2,version=v2", "1")),
		"many series":             vector(strings.TrimSuffix(strings.Repeat(`{"value":[1,"1"]},`, promsource.MaxSeries+1), ",")),
		"long":                    vector() + strings.Repeat(" ", promsource.MaxAnswerBytes),
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, map[string]string{requests: body, scrapes: vector(series("", "9"))})
			list, err := ask(t, a.source(t))
			assert.Nil(t, list)
			var bad *promsource.AnswerError
			require.ErrorAs(t, err, &bad)
			assert.NotEmpty(t, bad.Reason)
			assert.Less(t, len(err.Error()), 500)
		})
	}
	a := newAPI(t, map[string]string{latency: vector(series("wanted=v2,version=v2,le=x", "1"))})
	_, err := ask(t, a.source(t))
	assert.ErrorContains(t, err, `le is "x"`)
}

func TestPartialAnswers(t *testing.T) {
	for _, more := range []string{`"warnings":["a store is down"]`, `"isPartial":true`} {
		body := strings.Replace(vector(), `"status":"success"`, `"status":"success",`+more, 1)
		_, err := ask(t, newAPI(t, map[string]string{latency: body}).source(t))
		var partial *promsource.PartialError
		require.ErrorAs(t, err, &partial, more)
		assert.Contains(t, err.Error(), "latency")
	}
	infos := strings.Replace(vector(), `"status":"success"`, `"status":"success","infos":["a name"]`, 1)
	_, err := ask(t, newAPI(t, map[string]string{"": infos}).source(t))
	assert.NoError(t, err, "remarks are no warnings")
}

func TestTheAPISaysNo(t *testing.T) {
	for status, body := range map[int]string{
		400: `{"status":"error","errorType":"bad_data","error":"parse error"}`,
		422: `{"status":"error","errorType":"execution","error":"many-to-many"}`,
		503: `{"status":"error","errorType":"timeout","error":"query timed out"}`,
		401: "go away " + strings.Repeat("ü", 1000),
		500: "", 302: "", 204: "",
		200: `{"status":"error","errorType":"internal","error":"oops"}`,
	} {
		a := newAPI(t, map[string]string{"": body})
		a.status = status
		_, err := ask(t, a.source(t, promsource.WithBearerToken("secret")))
		var no *promsource.APIError
		require.ErrorAs(t, err, &no, status)
		assert.Equal(t, status, no.Status)
		assert.NotContains(t, err.Error(), "secret")
		assert.Less(t, len(err.Error()), 500)
	}
}

func TestTimeout(t *testing.T) {
	a := newAPI(t, nil)
	release := make(chan struct{})
	a.handle = func(_ http.ResponseWriter, r *http.Request) { <-release }
	began := time.Now()
	_, err := ask(t, a.source(t, promsource.WithTimeout(50*time.Millisecond)))
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(began), 30*time.Second)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = a.source(t).Samples(ctx, window)
	assert.ErrorIs(t, err, context.Canceled)
	close(release)

	// One that fails ends the others, and says why.
	a = newAPI(t, nil)
	a.handle = func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.PostForm.Get("query"), unserved) {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		<-r.Context().Done()
	}
	_, err = ask(t, a.source(t, promsource.WithTimeout(time.Minute)))
	var no *promsource.APIError
	require.ErrorAs(t, err, &no)
	assert.Contains(t, err.Error(), "unserved")

	_, err = ask(t, func() *promsource.Source { a.Close(); return a.source(t) }())
	assert.Error(t, err, "nobody is there")
}

func TestNewRefuses(t *testing.T) {
	for _, base := range []string{"", "prometheus:9090", "ftp://x", "http://", "http://a b", "http://user:pass\x01word@x"} {
		_, err := promsource.New(base)
		require.Error(t, err, base)
		assert.NotContains(t, err.Error(), "pass", base)
	}
	for _, o := range []promsource.Option{
		promsource.WithTimeout(0), promsource.WithTimeout(time.Hour), promsource.WithServiceLabel(""), promsource.WithServiceLabel("a.b"),
		promsource.WithQueries(promsource.Queries{}), promsource.WithQueries(promsource.Queries{Requests: "x[$windows]"}),
		promsource.WithQueries(promsource.Queries{Requests: "x", Latency: "$le"}), promsource.WithBearerToken("a\nb"), promsource.WithHeader("a\nb", ""),
	} {
		_, err := promsource.New("http://x", o)
		assert.ErrorContains(t, err, "promsource: ")
	}
	a := newAPI(t, nil)
	s, err := promsource.New(a.URL+"/prometheus/?tenant=1", nil, promsource.WithHTTPClient(nil), promsource.WithHTTPClient(a.Client()))
	require.NoError(t, err)
	_, err = ask(t, s)
	require.NoError(t, err)
	assert.Equal(t, "/prometheus/api/v1/query?tenant=1", a.seen[0].RequestURI)
}

// plan is one about order that has been at its first stage since t0.
func plan(t *testing.T) *rollout.Plan {
	t.Helper()
	doc, _, err := rollout.Change([]byte(`{
		"rules": [{"id": "order", "services": ["order"], "percent": 0, "salt": "lane", "tag": "version=v2"}],
		"plans": {"lane": {"rules": ["order"], "stages": [{"percent": 50}, {"percent": 100}]}}
	}`), "lane", rollout.CommandStart, rollout.Note{Who: "a test", At: t0})
	require.NoError(t, err)
	plans, err := rollout.ParseDocument(doc)
	require.NoError(t, err)
	return plans["lane"]
}

func TestO1_NothingAndFailuresAreInconclusive(t *testing.T) {
	enough := vector(series("", "20"))
	for name, answers := range map[string]map[string]string{
		"no traffic":   {},
		"no gray":      {requests: vector(series("wanted=stable,version=stable,status=200", "1000")), scrapes: enough},
		"NaN":          {requests: vector(series("wanted=v2,version=v2,status=500", "NaN")), scrapes: enough},
		"few scrapes":  {requests: vector(series("wanted=v2,version=v2,status=500", "1000")), scrapes: vector(series("", "1"))},
		"no JSON":      {"": "busy"},
		"one error":    {requests: vector(series("wanted=v2,version=v2,status=500", "1")), scrapes: enough},
		"all in vain":  {unserved: vector(series("wanted=v2", "2"))},
		"no latencies": {requests: vector(series("wanted=v2,version=v2,status=200", "1000"), series("wanted=stable,version=stable,status=200", "1000")), scrapes: enough},
		"a fallback":   {requests: vector(series("wanted=v2,version=stable,status=200", "1000"), series("wanted=stable,version=stable,status=200", "1000")), scrapes: enough},
	} {
		report := plan(t).Look(context.Background(), newAPI(t, answers).source(t), window.To)
		assert.Equal(t, rollout.VerdictInconclusive, report.Verdict, name)
	}
	gone := newAPI(t, nil)
	gone.Close()
	assert.Equal(t, rollout.VerdictInconclusive, plan(t).Look(context.Background(), gone.source(t), window.To).Verdict)
}

func TestAPassAndAFail(t *testing.T) {
	answers := map[string]string{
		requests: vector(series("wanted=v2,version=v2,status=200", "1000"), series("wanted=stable,version=stable,status=200", "1000")),
		latency: vector(series("wanted=v2,version=v2,le=0.1", "1000"), series("wanted=stable,version=stable,le=0.1", "1000"),
			series("wanted=v2,version=v2,le=+Inf", "1000"), series("wanted=stable,version=stable,le=+Inf", "1000")),
		scrapes: vector(series("", "20")),
	}
	a := newAPI(t, answers)
	assert.Equal(t, rollout.VerdictPass, plan(t).Look(context.Background(), a.source(t), window.To).Verdict)
	answers[requests] = vector(series("wanted=v2,version=v2,status=200", "950"), series("wanted=v2,version=v2,status=502", "50"),
		series("wanted=stable,version=stable,status=200", "1000"))
	assert.Equal(t, rollout.VerdictFail, plan(t).Look(context.Background(), a.source(t), window.To).Verdict)
}
