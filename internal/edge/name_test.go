package edge_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/internal/edge"
)

func TestNamesThatSomebodyTakesForOne(t *testing.T) {
	for _, c := range []struct {
		name, canonical string
		want            bool
	}{
		{"X-Gray-Tag", "X-Gray-Tag", true}, {"X_gray_tag", "X-Gray-Tag", true}, {"X_GRAY-tag", "X-Gray-Tag", true},
		{"X-Gray-Tags", "X-Gray-Tag", false}, {"X-Gray.Tag", "X-Gray-Tag", false}, {"Xxgrayxtag", "X-Gray-Tag", false},
		{"X-Gray-Version", "X-Gray_version", true}, {"", "", true}, {"", "A", false},
	} {
		assert.Equal(t, c.want, edge.SameName(c.name, c.canonical), "%q, %q", c.name, c.canonical)
	}
}

func TestHeadersThatHoldMembersOfATag(t *testing.T) {
	for name, want := range map[string]bool{
		"Ot-Baggage-Gray.version": true, "ot-baggage-gray.uid": true, "Uberctx-Gray.version": true, "Uberctx-Gray%2Eversion": true,
		"Baggage-Gray.version": true, "Baggage_gray.version": true,
		"Ot-Baggage-Tenant": false, "Ot-Baggage-": false, "Baggage": false, "Baggage-Country": false, "Gray.version": false, "": false,
	} {
		assert.Equal(t, want, edge.IsForgedMember(name), name)
	}
}

func TestNamesThatAreNotPassedOver(t *testing.T) {
	for _, name := range []string{
		"X-Gray-Tag", "X-Gray-Trace", "Baggage", "Jaeger-Baggage", "Ot-Baggage-Gray.version", "Uberctx-Gray.version", "Baggage-Gray.version",
		"Grpc-Metadata-X-Gray-Tag", "Grpc-Metadata-Baggage", "Grpc-Metadata-X-Canary",
	} {
		for _, spelled := range []string{name, strings.ToLower(name), strings.ToUpper(name)} {
			assert.False(t, edge.IsUsual(spelled), spelled)
			assert.False(t, edge.IsUsual(strings.ReplaceAll(spelled, "-", "_")), spelled)
			assert.False(t, edge.IsUsual(strings.Replace(spelled, "-", "_", 1)), spelled)
		}
	}
	assert.False(t, edge.IsUsual("X_canary"), "a compatibility format to CGI")
	assert.False(t, edge.IsUsual("A_"))
	for _, name := range []string{
		"Accept", "Authorization", "Connection", "Cookie", "Origin", "User-Agent", "Upgrade", "X-Forwarded-For", "X-Canary", "X", "", "O", "U-", "Xg",
	} {
		assert.True(t, edge.IsUsual(name), name)
	}
}

func TestNamesInCanonicalForm(t *testing.T) {
	long := strings.Repeat("Long-", 14) + "Name"
	names := edge.NewNames("x-gray-tag", "baggage", "X-Gray-Trace", long)
	for key, want := range map[string]string{
		"X-Gray-Tag": "X-Gray-Tag", "x-gray-TAG": "X-Gray-Tag", "bAGGAGE": "Baggage", "x-gray-trace": "X-Gray-Trace", strings.ToLower(long): long,
		"X_Gray_Tag": "", "Referer": "", "User-Agent": "", "": "", "X-Gray-Tags": "", long[:len(long)-64]: "",
	} {
		assert.Equal(t, want, names.Canonical(key), key)
	}
	assert.True(t, names.Same("X_GRAY-tag"))
	assert.False(t, names.Same("X-Gray-Tags"))
	assert.False(t, edge.NewNames().May("X-Gray-Tag"))
}
