// Package background has outgoing calls with a context that was made on the spot.
package background

import (
	"context"
	"net/http"
	"time"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/propagation"
	otelprop "go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"shop/pb"
)

func direct(ctx context.Context, c pb.ShopClient, cc *grpc.ClientConn, invoke grpc.UnaryInvoker) {
	c.Buy(context.Background(), nil)                                         // want `c.Buy is called with context.Background\(\), which loses the gray tag of ctx; use that`
	c.Buy(context.TODO(), nil)                                               // want `c.Buy is called with context.TODO\(\)`
	cc.Invoke(context.Background(), "/shop.Shop/Buy", nil, nil)              // want `cc.Invoke is called`
	cc.NewStream(context.Background(), nil, "/shop.Shop/Watch")              // want `cc.NewStream is called`
	invoke(context.Background(), "/shop.Shop/Buy", nil, nil, cc)             // want `invoke is called`
	pb.ShopClient.Buy(c, context.Background(), nil)                          // want `pb.ShopClient.Buy is called`
	http.NewRequestWithContext(context.Background(), "GET", "http://a", nil) // want `http.NewRequestWithContext is called`
	c.Buy((context.Background()), nil)                                       // want `c.Buy is called`
	c.Buy(context.Context(context.Background()), nil)                        // want `c.Buy is called`
	c.Buy(ctx, nil)
}

func request(w http.ResponseWriter, r *http.Request, c pb.ShopClient) {
	c.Buy(context.Background(), nil) // want `of r.Context\(\); use that`
	req, _ := http.NewRequest("GET", "http://a", nil)
	req = req.WithContext(context.Background()) // want `req.WithContext is called`
}

type stream struct{ c pb.ShopClient }

func (s stream) List(req *pb.Order, out grpc.ServerStreamingServer[pb.Receipt]) error {
	s.c.Buy(context.Background(), nil) // want `of out.Context\(\)`
	s.c.Buy(out.Context(), nil)
	return nil
}

func made(ctx context.Context, c pb.ShopClient) {
	short, cancel := context.WithTimeout(context.Background(), time.Second) // want `c.Buy is called with context.Background\(\)`
	defer cancel()
	c.Buy(short, nil)
	c.Buy(short, nil)

	named := metadata.AppendToOutgoingContext(context.TODO(), "authorization", "me") // want `context.TODO`
	c.Buy(named, nil)
}

func spans(ctx context.Context, c pb.ShopClient, t trace.Tracer) {
	bg, span := t.Start(context.Background(), "buy") // want `c.Buy is called`
	defer span.End()
	c.Buy(bg, nil)
}

// The context is used for something else as well, which may need one that does
// not end: reported, and not changed.
func both(ctx context.Context, c pb.ShopClient, s *http.Server) {
	bg := context.Background() // want `c.Buy is called`
	c.Buy(bg, nil)
	s.Shutdown(bg)
}

func inject(ctx context.Context, p *propagation.Propagator, o otelprop.TextMapPropagator) {
	p.Inject(context.Background(), nil) // want `p.Inject is called`
	o.Inject(context.Background(), nil) // want `o.Inject is called`
}

func deferred(ctx context.Context, c pb.ShopClient) {
	defer c.Buy(context.Background(), nil) // want `use that, through context.WithoutCancel where it may have ended`
	defer func() {
		c.Buy(context.Background(), nil) // want `through context.WithoutCancel`
	}()
}

func shutdown(ctx context.Context, c pb.ShopClient) {
	<-ctx.Done()
	c.Buy(context.Background(), nil) // want `through context.WithoutCancel`
}

func closure(ctx context.Context, c pb.ShopClient, submit func(func())) {
	bg := context.Background()
	submit(func() {
		c.Buy(context.Background(), nil) // want `c.Buy is called`
		c.Buy(bg, nil)                   // want `c.Buy is called with context.Background\(\), which loses the gray tag of ctx`
	})
}

var background = context.Background()

var Exported = context.Background()

func global(ctx context.Context, c pb.ShopClient) {
	c.Buy(background, nil) // want `c.Buy is called`
	c.Buy(Exported, nil)   // another package may have changed it
}

func deliberate(ctx context.Context, c pb.ShopClient, t graytag.Tag, md metadata.MD, key string) {
	c.Buy(context.WithoutCancel(ctx), nil)
	c.Buy(propagation.Detach(ctx), nil)
	c.Buy(graytag.NewContext(context.Background(), t), nil)
	c.Buy(metadata.NewOutgoingContext(context.Background(), md), nil)
	c.Buy(metadata.AppendToOutgoingContext(context.Background(), "X-Gray-Tag", "version=v2"), nil)
	c.Buy(metadata.AppendToOutgoingContext(context.Background(), key, "version=v2"), nil)
	propagation.Go(ctx, func(ctx context.Context) { c.Buy(ctx, nil) })
	propagation.Bind(ctx, func(ctx context.Context) { c.Buy(ctx, nil) })()
}

func mixed(ctx context.Context, c pb.ShopClient, own func() context.Context) {
	if ctx == nil {
		ctx = context.Background()
	}
	c.Buy(ctx, nil)
	other := context.Background()
	other = own()
	c.Buy(other, nil)
	third := context.Background()
	change(&third)
	c.Buy(third, nil)
}

func change(ctx *context.Context) {}

func result(given context.Context, c pb.ShopClient) (ctx context.Context) {
	ctx = context.Background()
	c.Buy(ctx, nil)
	return ctx
}

func none(c pb.ShopClient) {
	c.Buy(context.Background(), nil)
	ctx := context.Background()
	func() { c.Buy(ctx, nil) }()
	go func() { c.Buy(ctx, nil) }()
}

func shutdownServer(ctx context.Context, s *http.Server) {
	s.Shutdown(context.Background())
}

type transport struct{ base http.RoundTripper }

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.base.RoundTrip(req.Clone(context.Background())) // want `req.Clone is called`
}

// A copy of the request that is served is kept, and not sent.
func keep(w http.ResponseWriter, r *http.Request) *http.Request {
	return r.Clone(context.Background())
}
