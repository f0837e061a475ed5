package rollout_test

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
)

// Whatever a document looks like, what is not the plan's stays: each byte of it, but
// for the values that change and the fields that come.
func TestDocumentsOfAnyLayout(t *testing.T) {
	var whole map[string]any
	require.NoError(t, json.Unmarshal([]byte(lane), &whole))
	whole["meta"] = map[string]any{"a \"{[,": []any{"]}\\", "", map[string]any{}, []any{}, 1.5, nil, true}, "état": "\u2028 \\u0041", "x": " , \"state\": {"}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(7, seed))
		doc := scattered(rng, whole)
		for step := range 8 {
			c := rollout.Commands()[rng.IntN(len(rollout.Commands()))]
			changed, _, err := rollout.Change([]byte(doc), "lane", c, note(t0.Add(time.Duration(step)*time.Hour)))
			if changed == nil {
				if err != nil {
					var refused *rollout.CommandError
					require.ErrorAs(t, err, &refused, doc)
				}
				continue
			}
			assert.Equal(t, foreign(t, doc), foreign(t, string(changed)), "%s of\n%s\nis\n%s", c, doc, changed)
			doc = string(changed)
			require.Empty(t, plan(t, doc).Drift)
		}
		stopped, err := rollout.SetStop([]byte(doc), true, t0)
		require.NoError(t, err)
		assert.Equal(t, foreign(t, doc), foreign(t, string(stopped)))
	}
}

// scattered writes v with spaces anywhere, keys in any order, and letters escaped.
func scattered(rng *rand.Rand, v any) string {
	space := func() string { return strings.Repeat([]string{" ", "\n\t", "\r\n"}[rng.IntN(3)], rng.IntN(3)) }
	quoted := func(s string) string {
		text, _ := json.Marshal(s)
		if s != "" && s[0] >= 'a' && s[0] <= 'z' && rng.IntN(4) == 0 {
			return `"\u00` + string("67"[(s[0]-0x60)/16]) + string("0123456789abcdef"[s[0]%16]) + string(text[2:])
		}
		return string(text)
	}
	var parts []string
	ends := "[]"
	switch v := v.(type) {
	case map[string]any:
		ends = "{}"
		keys := slices.Sorted(maps.Keys(v))
		rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		for _, k := range keys {
			parts = append(parts, space()+quoted(k)+space()+":"+space()+scattered(rng, v[k])+space())
		}
	case []any:
		for _, e := range v {
			parts = append(parts, space()+scattered(rng, e)+space())
		}
	case string:
		return quoted(v)
	default:
		text, _ := json.Marshal(v)
		return string(text)
	}
	return ends[:1] + space() + strings.Join(parts, ",") + ends[1:]
}

// foreign is the document without what a plan changes.
func foreign(t *testing.T, doc string) map[string]any {
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(doc), &m), doc)
	delete(m, "stop")
	delete(m["plans"].(map[string]any)["lane"].(map[string]any), "state")
	for _, r := range m["rules"].([]any)[:3] {
		delete(r.(map[string]any), "percent")
		delete(r.(map[string]any), "enabled")
	}
	return m
}
