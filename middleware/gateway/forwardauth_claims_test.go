package gateway_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/propagation"
)

// What a proxy copies in place of what the client sent has to be there: some leave
// the client's where nothing is.
func TestForwardAuthReplacesWhateverAStrangerMayClaim(t *testing.T) {
	rules, err := rule.NewEngine(nil)
	require.NoError(t, err)
	prop, err := propagation.New(propagation.WithVersionHeader("X-Gray-Version"))
	require.NoError(t, err)
	h, err := gateway.ForwardAuth(rules, gateway.WithPropagator(prop))
	require.NoError(t, err)
	claims := []string{"X-Gray-Tag", "Baggage", "X-Gray-Version", "X-Gray-Trace"}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for _, name := range claims {
		r.Header.Set(name, "gray.version=v2")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	for _, name := range claims {
		assert.Equal(t, []string{""}, w.Header()[name], name)
	}
}
