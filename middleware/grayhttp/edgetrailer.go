package grayhttp

import (
	"io"
	"net/http"
)

// cleanTrailer takes out of the trailers what claims something of a tag, baggage
// wholly: W3C knows none in trailers. At the beginning they are the announced ones;
// HTTP/2 drops all others.
func (e *entrance) cleanTrailer(trailer http.Header, trusted bool, f *forged) {
	for name := range trailer {
		if carrier, _ := e.carrier(name, trusted); carrier != "" {
			f.note(carrier)
			delete(trailer, name)
		}
	}
}

// trailerGuard is the body of a request of HTTP/1.1 with trailers: net/http adds
// them to the request at its end, also those that nobody announced.
type trailerGuard struct {
	io.ReadCloser
	*entrance
	trailer http.Header // shared with net/http
	trusted bool
}

func (g *trailerGuard) Read(p []byte) (int, error) {
	n, err := g.ReadCloser.Read(p)
	if err != nil {
		g.clean()
	}
	return n, err
}

// Close may read on to the end.
func (g *trailerGuard) Close() error {
	err := g.ReadCloser.Close()
	g.clean()
	return err
}

func (g *trailerGuard) clean() {
	var f forged
	g.cleanTrailer(g.trailer, g.trusted, &f)
}
