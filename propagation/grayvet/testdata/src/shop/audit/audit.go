// Package audit is called by another package.
package audit

import (
	"context"
	"net/http"

	"shop/pb"
)

type Log struct{ shop pb.ShopClient }

func (l *Log) Write(ctx context.Context, id string) { // want Write:"callsOut"
	l.shop.Buy(ctx, nil)
}

func (l *Log) Through(ctx context.Context) { // want Through:"callsOut"
	l.write(ctx)
}

func (l *Log) write(ctx context.Context) { l.Write(ctx, "") }

func (l *Log) Local(ctx context.Context) { l.local(ctx) }

func (l *Log) local(ctx context.Context) {}

// Its own context is lost before it gets here.
func (l *Log) Lost(ctx context.Context) {
	l.shop.Buy(context.Background(), nil) // want `l.shop.Buy is called`
}

type Sink interface{ Put(ctx context.Context) }

func Maybe(ctx context.Context, s Sink) { s.Put(ctx) } // want Maybe:"mayCallOut"

func Fetch[T any](ctx context.Context) (t T) { // want Fetch:"callsOut"
	http.NewRequestWithContext(ctx, "GET", "http://inventory/", nil)
	return t
}
