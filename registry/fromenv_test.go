package registry_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/registry"
)

// captureLog returns what goes to the default logger during the test.
func captureLog(t testing.TB) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&b, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return &b
}

func TestFromEnv(t *testing.T) {
	type m = map[string]string
	for name, test := range map[string]struct {
		version, meta string
		base, want    m
		warnings      int
	}{
		"nothing set":            {want: nil},
		"nothing set, base kept": {base: m{"version": "v1"}, want: m{"version": "v1"}},
		"version":                {version: "v2", want: m{"version": "v2"}},
		"version in spaces":      {version: " v2\n", want: m{"version": "v2"}},
		"version over base":      {version: "v2", base: m{"version": "v1", "a": "b"}, want: m{"version": "v2", "a": "b"}},
		"meta":                   {meta: "lane=blue;zone=a", want: m{"lane": "blue", "zone": "a"}},
		"meta over base":         {meta: "lane=blue", base: m{"lane": "red", "a": "b"}, want: m{"lane": "blue", "a": "b"}},
		"version over meta":      {version: "v2", meta: "version=v3;lane=blue", want: m{"version": "v2", "lane": "blue"}},
		"version in meta":        {meta: "version=v3", base: m{"version": "v1"}, want: m{"version": "v3"}},
		"spaces and empty pairs": {meta: " ; lane = blue ;; zone=a; ", want: m{"lane": "blue", "zone": "a"}},
		"first =":                {meta: "q=a=b", want: m{"q": "a=b"}},
		"empty value":            {meta: "version=", base: m{"version": "v1"}, want: m{"version": ""}},
		"last pair counts":       {meta: "a=1;a=2", want: m{"a": "2"}},
		"malformed pairs":        {meta: "lane;=x;a=\x01;ok=1", want: m{"ok": "1"}, warnings: 1},
		"all malformed":          {meta: "lane", base: m{"a": "b"}, want: m{"a": "b"}, warnings: 1},
		"malformed version":      {version: "v\xff", base: m{"a": "b"}, want: m{"a": "b"}, warnings: 1},
		"a long malformed pair":  {meta: strings.Repeat("x", 100_000), want: nil, warnings: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(registry.EnvVersion, test.version)
			t.Setenv(registry.EnvMeta, test.meta)
			logged := captureLog(t)
			base := registry.Instance{ID: "i", Service: "s", Address: "h:1", Metadata: test.base, Weight: 3}
			before := base.Clone()

			got := registry.FromEnv(base)
			want := before.Clone()
			want.Metadata = test.want
			assert.Equal(t, want, got)
			assert.Equal(t, before, base, "base is not changed")
			assert.Equal(t, test.warnings, strings.Count(logged.String(), "level=WARN"))
			assert.Less(t, logged.Len(), 1000)

			if got.Metadata != nil {
				got.Metadata["new"] = "x"
				assert.Equal(t, before, base, "the map is a copy")
			}
		})
	}
}

// Whatever the variable holds: no panic, only whole pairs, and what is well formed
// survives being written again.
func FuzzFromEnv(f *testing.F) {
	for _, s := range []string{"", "k=v;k=v", "a=b=c", " a = b ; ", "=", ";", "a", "a=\xff", "灰=度", "version=", "a=;a=1"} {
		f.Add(s)
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ReplaceAll(s, "\x00", "") // no environment variable holds it
		t.Setenv(registry.EnvVersion, "")
		t.Setenv(registry.EnvMeta, s)
		got := registry.FromEnv(registry.Instance{}).Metadata
		var pairs []string
		for k, v := range got {
			if k == "" || k != strings.TrimSpace(k) || v != strings.TrimSpace(v) || strings.Contains(k, "=") {
				t.Fatalf("FromEnv(%q) = %q", s, got)
			}
			if !utf8.ValidString(k+v) || strings.ContainsFunc(k+v, unicode.IsControl) {
				t.Fatalf("FromEnv(%q) = %q", s, got)
			}
			pairs = append(pairs, k+"="+v)
		}
		t.Setenv(registry.EnvMeta, strings.Join(pairs, ";"))
		assert.Equal(t, got, registry.FromEnv(registry.Instance{}).Metadata)
	})
}
