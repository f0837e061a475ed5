package promsource_test

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout/promsource"
)

// Of a redirect net/http would carry everything but Authorization to another host.
func TestRedirectsAreNotFollowed(t *testing.T) {
	other := newAPI(t, nil)
	for _, status := range []int{301, 302, 307, 308} {
		a := newAPI(t, nil)
		a.handle = func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+r.URL.Path, status) }
		_, err := ask(t, a.source(t, promsource.WithHeader("X-Api-Key", "secret")))
		var no *promsource.APIError
		require.ErrorAs(t, err, &no)
		assert.Equal(t, status, no.Status)
	}
	assert.Empty(t, other.seen)
}

func TestErrorsDoNotNameTheURL(t *testing.T) {
	a := newAPI(t, nil)
	a.Close()
	s, err := promsource.New("http://user:secret@" + a.Listener.Addr().String() + "/?token=secret")
	require.NoError(t, err)
	_, err = ask(t, s)
	assert.ErrorContains(t, err, "connection refused")
	assert.NotContains(t, err.Error(), "secret")
	_, err = promsource.New("ftp://x/?token=secret")
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "secret")
}

func TestAnAnswerThatUnpacksToMore(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write(make([]byte, promsource.MaxAnswerBytes+1))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	a := newAPI(t, nil)
	a.handle = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(packed.Bytes())
	}
	_, err = ask(t, a.source(t, promsource.WithTimeout(promsource.MaxTimeout)))
	assert.ErrorContains(t, err, "more than")
}
