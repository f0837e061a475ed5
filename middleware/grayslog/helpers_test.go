package grayslog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
)

func tagged(tag string) context.Context {
	return graytag.NewContext(context.Background(), graytag.MustParse(tag))
}

// noTime leaves out what differs from line to line.
var noTime = &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}}

func newJSON() (*bytes.Buffer, slog.Handler) {
	var buf bytes.Buffer
	return &buf, slog.NewJSONHandler(&buf, noTime)
}

// line returns the one line that buf holds, and empties it.
func line(t testing.TB, buf *bytes.Buffer) string {
	t.Helper()
	out := buf.String()
	buf.Reset()
	require.Equal(t, 1, strings.Count(out, "\n"), "lines of %q", out)
	return strings.TrimSuffix(out, "\n")
}

func fields(t testing.TB, buf *bytes.Buffer) map[string]any {
	t.Helper()
	var m map[string]any
	l := line(t, buf)
	require.NoError(t, json.Unmarshal([]byte(l), &m), l)
	return m
}

// textFields reads a line of a TextHandler. A dot in a key separates groups, but for
// those of this package.
func textFields(t testing.TB, l string) map[string]any {
	t.Helper()
	m := map[string]any{}
	word := func() string {
		if strings.HasPrefix(l, `"`) {
			quoted, err := strconv.QuotedPrefix(l)
			require.NoError(t, err, l)
			l = l[len(quoted):]
			s, err := strconv.Unquote(quoted)
			require.NoError(t, err)
			return s
		}
		n := strings.IndexAny(l, "= ")
		if n < 0 {
			n = len(l)
		}
		s := l[:n]
		l = l[n:]
		return s
	}
	for l != "" {
		key := word()
		require.True(t, strings.HasPrefix(l, "="), "%q after %q", l, key)
		l = l[1:]
		value := word()
		l = strings.TrimPrefix(l, " ")
		path, at := strings.Split(key, "."), m
		if path[0] == "gray" {
			path = []string{key}
		}
		for _, group := range path[:len(path)-1] {
			if _, ok := at[group]; !ok {
				at[group] = map[string]any{}
			}
			at = at[group].(map[string]any)
		}
		at[path[len(path)-1]] = value
	}
	return m
}

// inContext hands records on with another context.
type inContext struct {
	slog.Handler
	ctx context.Context
}

func (h inContext) Handle(_ context.Context, r slog.Record) error { return h.Handler.Handle(h.ctx, r) }
func (h inContext) WithAttrs(attrs []slog.Attr) slog.Handler {
	return inContext{h.Handler.WithAttrs(attrs), h.ctx}
}
func (h inContext) WithGroup(name string) slog.Handler {
	return inContext{h.Handler.WithGroup(name), h.ctx}
}
