package rule_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/race"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func parse(t testing.TB, doc string) *rule.Set {
	t.Helper()
	s, err := rule.Parse([]byte(doc))
	require.NoError(t, err)
	return s
}

func engine(t testing.TB, doc string) *rule.Engine {
	t.Helper()
	e, err := rule.NewEngine(parse(t, doc))
	require.NoError(t, err)
	return e
}

// lookup finds names in any case.
func lookup(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for k, v := range m {
			if strings.EqualFold(k, name) {
				return v, true
			}
		}
		return "", false
	}
}

func exactly(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := m[name]
		return v, ok
	}
}

// user is a request of a user who is known by a header.
func user(uid string) *rule.Request {
	return &rule.Request{Header: func(name string) (string, bool) {
		if name == "X-User-Id" {
			return uid, true
		}
		return "", false
	}}
}

func from(remote string) netip.Addr {
	return netip.MustParseAddrPort(remote).Addr()
}

// fewer is n, and a tenth of it where the race detector makes all slow.
func fewer(n int) int {
	if race.Enabled {
		return n / 10
	}
	return n
}
