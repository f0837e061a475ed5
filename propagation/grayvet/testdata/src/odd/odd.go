// Package odd is code that is rare, and that must neither stop the check nor be
// misjudged.
package odd

import (
	"context"
	. "net/http"
	web "net/http"

	. "github.com/graylane/graylane/propagation"
	rpc "google.golang.org/grpc"
	"shop/pb"
)

// Dot and renamed imports.
func dot(ctx context.Context) {
	NewRequest("GET", "http://a", nil) // want `NewRequest makes a request without ctx`
	Get("http://a")                    // want `Get makes`
	web.Get("http://a")                // want `web.Get makes`
	web.NewRequest("GET", "u", nil)    // want `web.NewRequest makes`
	DefaultClient.Get("http://a")      // want `DefaultClient.Get makes`
	go (func() {
		NewRequest("GET", "http://a", nil) // want `NewRequest makes`
	})()
}

func shadowedName(ctx context.Context) {
	NewRequestWithContext := 1
	NewRequest("GET", "http://a", nil) // want `NewRequest makes`
	_ = NewRequestWithContext
}

// Embedded clients, and methods of the same name.
type client struct{ *Client }

type wrapped struct{ client }

type fake struct{}

func (fake) Get(string)                     {}
func (fake) NewRequest(string, string, any) {}

func embedded(ctx context.Context, c client, w wrapped, f fake) {
	c.Get("http://a")            // want `c.Get makes`
	w.Post("http://a", "", nil)  // want `w.Post makes`
	(*Client).Head(w.Client, "") // want `\(\*Client\).Head makes`
	f.Get("http://a")
	f.NewRequest("GET", "http://a", nil)
	Header{}.Get("Accept")
}

// Method values are not followed.
func values(ctx context.Context, c *Client) {
	get := c.Get
	get("http://a")
	fetch := Get
	fetch("http://a")
	fetchers := map[string]func(string) (*Response, error){"get": Get}
	fetchers["get"]("http://a")
}

// Generics.
type caller[Req, Resp any] interface {
	Call(ctx context.Context, in *Req, opts ...rpc.CallOption) (*Resp, error)
}

func generic[T any, C caller[T, T], X context.Context](ctx X, c C, in *T) {
	c.Call(context.Background(), in) // want `c.Call is called`
	Get("http://a")                  // want `Get makes a request without the context of this function`
}

type server[T any] struct{ c caller[T, T] }

func (s *server[T]) serve(w ResponseWriter, r *Request) {
	s.c.Call(context.Background(), new(T)) // want `s.c.Call is called`
	go s.helper(context.Background())      // want `s.helper`
	go helper[T](context.Background())     // calls nobody
}

func (s *server[T]) helper(ctx context.Context) { s.c.Call(ctx, nil) }

func helper[T any](ctx context.Context) {}

// Contexts under another name.
type (
	Ctx    = context.Context
	Custom struct{ context.Context }
	Wider  interface {
		context.Context
		User() string
	}
)

func alias(c Ctx)        { Get("http://a") } // want `Get makes a request without c,`
func custom(c *Custom)   { Get("http://a") } // want `Get makes a request without the context of this function`
func wider(c Wider)      { Get("http://a") } // want `Get makes`
func variadic(c ...Ctx)  { Get("http://a") }
func receiver() (c Ctx)  { Get("http://a"); return c }
func (c Custom) method() { Get("http://a") }
func pointer(c *Ctx)     { Get("http://a") }
func blank(_ Ctx)        { Get("http://a") } // want `Get makes`
func two(_, ctx Ctx)     { Get("http://a") } // want `without ctx,`
func external(c Ctx)
func inside(c Ctx, s []int) {
	for range s {
		switch {
		case len(s) > 0:
			if f := func() { Get("http://a") }; f != nil { // want `without c,`
				f()
			}
		}
	}
}

// Functions that are called where they stand.
func immediate(ctx context.Context, c pb.ShopClient) {
	func(ctx context.Context) {
		c.Buy(ctx, nil)
	}(context.Background()) // want `c.Buy is called`
	func(ctx context.Context) { c.Buy(ctx, nil) }(ctx)
	func(ctx context.Context, more ...int) { c.Buy(ctx, nil) }(both())
	func(context.Context) { c.Buy(nil, nil) }(context.Background())
	defer func(ctx context.Context) {
		c.Buy(ctx, nil)
	}(context.Background()) // want `c.Buy is called`
	(func(r *Request) { c.Buy(r.Context(), nil) })(nil)
	c.Buy(one())
	func() func() { return func() {} }()()
}

func both() (context.Context, int)      { return context.Background(), 1 }
func one() (context.Context, *pb.Order) { return context.Background(), nil }

// Assignments that go round in circles, and from all sides.
func circles(ctx context.Context, c pb.ShopClient, ch chan context.Context, m map[string]context.Context, x any) {
	a := context.Background() // want `c.Buy is called`
	b := a
	a = b
	b = a
	c.Buy(a, nil)
	for _, ctx := range []context.Context{context.Background()} {
		c.Buy(ctx, nil)
	}
	for k := range m {
		c.Buy(m[k], nil)
	}
	got := <-ch
	c.Buy(got, nil)
	got, ok := m["a"]
	c.Buy(got, nil)
	if got, ok = <-ch; ok {
		c.Buy(got, nil)
	}
	switch x := x.(type) {
	case context.Context:
		c.Buy(x, nil)
	}
	c.Buy(x.(context.Context), nil)
	c.Buy(nil, nil)
	var zero context.Context
	c.Buy(zero, nil)
	select {
	case late := <-ch:
		c.Buy(late, nil)
	default:
	}
}

var calls = func(ctx context.Context) error {
	Get("http://a") // want `without ctx`
	return nil
}

var made, _ = NewRequest("GET", "http://a", nil)

func init() {
	Get("http://a")
	go Get("http://a")
	HandleFunc("/", func(w ResponseWriter, r *Request) {
		Get("http://a")       // want `without r.Context\(\)`
		go func(r *Request) { // want `goes on using r.Context\(\)`
			use(r.Context())
		}(r)
		go use(Detach(r.Context()))
		go use(r.Context()) // want `goes on using r.Context\(\)`
		goto end
	end:
		go func() { go use(r.Context()) }() // want `goes on using r.Context\(\)`
	})
}

func use(ctx context.Context) {}

func labels(w ResponseWriter, r *Request) {
outer:
	for {
		go use(r.Context()) // want `goes on using`
		for range 3 {
			continue outer
		}
		break
	}
}

type routes map[string]func(ResponseWriter, *Request)

var table = routes{
	"/": func(w ResponseWriter, r *Request) {
		go use(r.Context()) // want `goes on using`
	},
}

func unsafeNames(ctx context.Context, context struct{ Background func() Ctx }, c pb.ShopClient) {
	c.Buy(context.Background(), nil) // not the package
}
