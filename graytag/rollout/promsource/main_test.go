package promsource_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rollout/promsource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	t0     = time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)
	window = rollout.Query{Service: "order", Version: "v2", From: t0, To: t0.Add(5 * time.Minute)}
)

// api is a query API that answers what a test wants, by a word that is in the query.
type api struct {
	*httptest.Server
	answers map[string]string // "" stands for all others
	status  int
	handle  http.HandlerFunc // in place of that, where it is set

	mu   sync.Mutex // guards seen
	seen []*http.Request
}

// The words that tell the default queries apart.
const (
	requests = "_seconds_count"
	latency  = "_seconds_bucket"
	unserved = "unavailable"
	scrapes  = "max(count_over_time"
)

func vector(samples ...string) string {
	return `{"status":"success","data":{"resultType":"vector","result":[` + strings.Join(samples, ",") + `]}}`
}

// series is one sample; labels are as in PromQL.
func series(labels, value string) string {
	var pairs []string
	for l := range strings.SplitSeq(labels, ",") {
		if name, v, ok := strings.Cut(l, "="); ok {
			pairs = append(pairs, fmt.Sprintf("%q:%q", name, v))
		}
	}
	return fmt.Sprintf(`{"metric":{%s},"value":[1796112300,%q]}`, strings.Join(pairs, ","), value)
}

func newAPI(t testing.TB, answers map[string]string) *api {
	t.Helper()
	a := &api{answers: answers, status: 200}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		a.mu.Lock()
		a.seen = append(a.seen, r)
		a.mu.Unlock()
		if a.handle != nil {
			a.handle(w, r)
			return
		}
		body, ok := a.answers[""]
		query := r.PostForm.Get("query")
		for _, word := range []string{scrapes, latency, unserved, requests} {
			if strings.Contains(query, word) {
				if found, there := a.answers[word]; there {
					body, ok = found, true
				}
				break
			}
		}
		if !ok {
			body = vector()
		}
		w.WriteHeader(a.status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *api) source(t testing.TB, opts ...promsource.Option) *promsource.Source {
	t.Helper()
	s, err := promsource.New(a.URL, append([]promsource.Option{promsource.WithHTTPClient(a.Client())}, opts...)...)
	require.NoError(t, err)
	return s
}

func ask(t testing.TB, s *promsource.Source) ([]rollout.Sample, error) {
	t.Helper()
	return s.Samples(context.Background(), window)
}
