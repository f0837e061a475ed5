package rollout_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lane is a document with a plan over two services, laid out as people do.
const lane = `{
  "rules": [
    {"id": "testers", "priority": 100,
     "match": [{"attr": "uid", "op": "suffix", "values": ["9999"]}],
     "tag": "version=v2"},
    {"id": "order", "services": ["order"], "percent": 0, "salt": "lane",  "tag": "version=v2"},
    {"id": "inventory", "services": ["inventory"],
     "percent": 0, "salt": "lane", "tag": "version=v2"},
    {"id": "other", "percent": 7, "tag": "version=x"}
  ],
  "default": "version=stable",
  "plans": {
    "lane": {
      "rules": ["order", "inventory"],
      "internal": {"rules": ["testers"]},
      "stages": [{"percent": 1, "hold": "24h"}, {"percent": 10}, {"percent": 50, "hold": "10m"}, {"percent": 100}]
    }
  },
  "meta": {"note": "Überall <&>"}
}
`

// t0 is when the tests begin.
var t0 = time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)

func note(at time.Time) rollout.Note { return rollout.Note{Who: "ann", Why: "a test", At: at} }

// plan returns a plan of a document.
func plan(t testing.TB, doc string) *rollout.Plan {
	t.Helper()
	plans, err := rollout.ParseDocument([]byte(doc))
	require.NoError(t, err)
	p := plans["lane"]
	require.NotNil(t, p)
	return p
}

// put is the lane after commands.
func after(t testing.TB, doc string, commands ...rollout.Command) string {
	t.Helper()
	for _, c := range commands {
		data, _, err := rollout.Change([]byte(doc), "lane", c, note(t0))
		require.NoError(t, err, c)
		if data != nil {
			doc = string(data)
		}
	}
	return doc
}

func set(t testing.TB, doc string) *rule.Set {
	t.Helper()
	s, err := rule.Parse([]byte(doc))
	require.NoError(t, err)
	return s
}

// rules tells the percentage of each rule, or "off".
func rules(t testing.TB, doc string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for _, r := range set(t, doc).Rules {
		m[r.ID] = r.Percent.String()
		if !r.IsEnabled() {
			m[r.ID] = "off"
		}
	}
	return m
}

func withMode(doc string, m rollout.Mode) string {
	return strings.Replace(doc, `"rules": ["order", "inventory"],`, `"rules": ["order", "inventory"], "mode": "`+string(m)+`",`, 1)
}
