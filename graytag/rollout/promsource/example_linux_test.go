package promsource_test

import (
	"context"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rollout/promsource"
)

// shop is a plan about the services of examples/observability, whose own rules make a
// quarter of all users gray.
const shop = `{
  "rules": [{"id": "quarter", "services": ["inventory", "order"], "percent": 25, "salt": "v2", "tag": "version=v2"}],
  "plans": {"shop": {
    "rules": ["quarter"], "stages": [{"percent": 25}, {"percent": 100}],
    "analysis": {"window": "5s", "every": "1s", "errors": {"minRequests": 30}, "latency": {"off": true}}
  }}
}`

// TestExample looks at examples/observability as a Prometheus sees it that scrapes
// what the exporter of OpenTelemetry shows.
func TestExample(t *testing.T) {
	program(t, "prometheus")
	bin := filepath.Join(t.TempDir(), "observability")
	build := exec.Command("go", "build", "-o", bin, ".")
	build.Dir = filepath.Join("..", "..", "..", "examples", "observability")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	t.Run("good", func(t *testing.T) {
		report := lookAtExample(t, bin, "0", rollout.VerdictPass)
		for _, c := range report.Checks {
			assert.Equal(t, rollout.VerdictPass, c.Verdict, "%+v", c)
			if c.Name == rollout.CheckErrors {
				assert.Zero(t, c.Gray, c.Why)
			}
		}
	})
	t.Run("faulty", func(t *testing.T) {
		report := lookAtExample(t, bin, "0.4", rollout.VerdictFail)
		services := map[string]bool{}
		for _, c := range report.Checks {
			if c.Name == rollout.CheckErrors && c.Verdict == rollout.VerdictFail {
				services[c.Target.Service] = true
				assert.InDelta(t, 0.4, c.Gray, 0.15, c.Why)
				assert.Zero(t, c.Stable, c.Why)
			}
		}
		assert.NotEmpty(t, services, "%+v", report.Checks)
	})
}

// lookAtExample runs the example until its plan has a verdict.
func lookAtExample(t *testing.T, bin, fail string, want rollout.Verdict) (r rollout.Report) {
	t.Helper()
	target := freePort(t)
	ended := start(t, bin, "-listen", target, "-for", "5m", "-every", "5ms", "-fail", fail)
	require.True(t, ready(ended, "http://"+target+"/metrics"))
	url := startPrometheus(t, t.TempDir(), scrape(250*time.Millisecond, target))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	src, err := promsource.New(url, promsource.WithHTTPClient(client), promsource.WithServiceLabel("service_name"))
	require.NoError(t, err)

	doc, _, err := rollout.Change([]byte(shop), "shop", rollout.CommandStart, rollout.Note{Who: "a test", At: time.Now()})
	require.NoError(t, err)
	plans, err := rollout.ParseDocument(doc)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		r = plans["shop"].Look(ctx, src, time.Now())
		if r.Verdict == want {
			return r
		}
		select {
		case <-ctx.Done():
			require.Fail(t, "no verdict", "%+v", r)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
