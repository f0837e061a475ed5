// Package request has HTTP requests with and without the context at hand.
package request

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/graylane/graylane/propagation"
)

func param(ctx context.Context) error {
	req, err := http.NewRequest("GET", "http://inventory/", nil) // want `http.NewRequest makes a request without ctx, which loses the gray tag; use http.NewRequestWithContext\(ctx, …\)`
	if err != nil {
		return err
	}
	_, err = http.DefaultClient.Do(req)
	return err
}

func request(w http.ResponseWriter, r *http.Request) {
	req, _ := http.NewRequest(http.MethodPost, "http://inventory/", bytes.NewReader(nil)) // want `without r.Context\(\)`
	http.DefaultClient.Do(req)
}

func derived(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	req, _ := http.NewRequest("GET", "http://inventory/", nil) // want `without ctx, which`
	http.DefaultClient.Do(req)
	_ = ctx
}

func shortcuts(ctx context.Context, c *http.Client) {
	http.Get("http://inventory/")                         // want `http.Get makes a request without ctx, which loses the gray tag; make it with http.NewRequestWithContext\(ctx, …\) and Do`
	http.Head("http://inventory/")                        // want `http.Head makes`
	http.Post("http://inventory/", "text/plain", nil)     // want `http.Post makes`
	http.PostForm("http://inventory/", url.Values{})      // want `http.PostForm makes`
	c.Get("http://inventory/")                            // want `c.Get makes`
	c.Head("http://inventory/")                           // want `c.Head makes`
	c.Post("http://inventory/", "text/plain", nil)        // want `c.Post makes`
	http.DefaultClient.PostForm("http://inventory/", nil) // want `http.DefaultClient.PostForm makes`
}

func closure(ctx context.Context, each func(func())) {
	each(func() {
		http.NewRequest("GET", "http://inventory/", nil) // want `without ctx`
	})
	func() {
		http.Get("http://inventory/") // want `without ctx`
	}()
	defer http.Get("http://inventory/") // want `without ctx`
}

var handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	http.NewRequest("GET", "http://inventory/", r.Body) // want `without r.Context\(\)`
})

func goroutine(ctx context.Context) {
	go http.Get("http://inventory/") // want `with http.NewRequestWithContext\(propagation.Detach\(ctx\), …\)`
	go func() {
		req, _ := http.NewRequest("GET", "http://inventory/", nil) // want `use http.NewRequestWithContext\(propagation.Detach\(ctx\), …\)`
		http.DefaultClient.Do(req)
	}()
	propagation.Go(ctx, func(ctx context.Context) {
		http.NewRequest("GET", "http://inventory/", nil) // want `use http.NewRequestWithContext\(ctx, …\)`
	})
}

// A context of which it is not certain that it is meant is named, and not put in.
func ambiguous(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	http.NewRequest("GET", "http://inventory/", nil) // want `without ctx`
}

func several(ctx context.Context) {
	short, cancel := context.WithTimeout(ctx, 1)
	defer cancel()
	http.NewRequest("GET", "http://inventory/", nil) // want `without short`
	_ = short
}

func shadowed(ctx context.Context) {
	{
		ctx := "not a context"
		http.NewRequest("GET", ctx, nil) // want `without the context of this function`
	}
	_ = ctx
}

func unnamed(context.Context) {
	http.NewRequest("GET", "http://inventory/", nil) // want `without the context of this function`
}

func blank(_ http.ResponseWriter, _ *http.Request) {
	http.Get("http://inventory/") // want `without the context of this function`
}

// The context has ended by then.
func last(ctx context.Context) {
	<-ctx.Done()
	http.NewRequest("DELETE", "http://inventory/", nil) // want `without ctx`
}

func results() (string, string, io.Reader) { return "GET", "http://inventory/", nil }

func tuple(ctx context.Context) {
	http.NewRequest(results()) // want `without ctx`
}

func none() {
	http.NewRequest("GET", "http://inventory/", nil)
	http.Get("http://inventory/")
	ctx := context.Background()
	http.Post("http://inventory/", "text/plain", nil)
	_ = ctx
}

type worker struct {
	ctx context.Context
	req *http.Request
}

// A context in a field is too far away.
func (w *worker) work() { http.Get("http://inventory/") }

func (w *worker) field(ctx context.Context) {
	w.req, _ = http.NewRequest("GET", "http://inventory/", nil)
	w.req = w.req.WithContext(ctx)
}

func attached(ctx context.Context, p *propagation.Propagator) {
	req, _ := http.NewRequest("GET", "http://inventory/", nil)
	req = req.WithContext(ctx)

	cloned, _ := http.NewRequest("GET", "http://inventory/", nil)
	http.DefaultClient.Do(cloned.Clone(ctx))

	handed, _ := http.NewRequest("GET", "http://inventory/", nil)
	do(ctx, handed)

	var injected, err = http.NewRequest("GET", "http://inventory/", nil)
	p.Inject(ctx, injected.Header)

	do(ctx, must(http.NewRequest("GET", "http://inventory/", nil)))
	must(http.NewRequest("GET", "http://inventory/", nil)).WithContext(ctx)
	inMust := must(http.NewRequest("GET", "http://inventory/", nil))
	inMust = (inMust).WithContext(ctx)
	lost := must(http.NewRequest("GET", "http://inventory/", nil)) // want `without ctx`
	_, _, _, _ = req, err, inMust, lost
}

func do(ctx context.Context, req *http.Request) {}

func must(req *http.Request, err error) *http.Request { return req }

func right(ctx context.Context) {
	http.NewRequestWithContext(ctx, "GET", "http://inventory/", nil)
}
