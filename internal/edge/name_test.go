package edge_test

import (
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
