// Package goroutine has goroutines with a context that was made on the spot.
package goroutine

import (
	"context"
	"net/http"
	"time"

	gray "github.com/graylane/graylane/propagation"
	"shop/pb"
)

type auditor interface {
	Audit(ctx context.Context, id string)
}

type service struct {
	shop  pb.ShopClient
	audit auditor
}

func (s *service) handle(w http.ResponseWriter, r *http.Request) {
	go s.shop.Buy(context.Background(), nil) // want `a goroutine calls s.shop.Buy with context.Background\(\), which loses the gray tag of r.Context\(\); use propagation.Detach\(r.Context\(\)\)`
	go func() {
		s.shop.Buy(context.Background(), nil) // want `a goroutine calls s.shop.Buy`
	}()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second) // want `a goroutine calls s.shop.Buy`
		defer cancel()
		s.shop.Buy(ctx, nil)
	}()
	go func(ctx context.Context) {
		s.shop.Buy(ctx, nil)
	}(context.Background()) // want `a goroutine calls s.shop.Buy`
}

func (s *service) place(ctx context.Context, id string) {
	go s.store(context.Background(), id)       // want `a goroutine calls s.store`
	go s.note(context.Background(), id)        // it calls nobody
	go s.audit.Audit(context.Background(), id) // want `a goroutine calls s.audit.Audit`
	go func() {
		s.audit.Audit(context.TODO(), id) // want `a goroutine calls s.audit.Audit with context.TODO`
	}()
	bg := context.Background()
	go func() {
		s.shop.Buy(bg, nil) // want `a goroutine calls s.shop.Buy`
	}()
	s.audit.Audit(context.Background(), id) // no goroutine: it cannot be seen whether it calls anybody
	s.store(context.Background(), id)       // want `s.store is called`

	go s.store(gray.Detach(ctx), id)
	go s.store(context.WithoutCancel(ctx), id)
	go func(ctx context.Context) { s.store(ctx, id) }(gray.Detach(ctx))
	gray.Go(ctx, func(ctx context.Context) { s.store(ctx, id) })
}

func (s *service) run(ctx context.Context, id string) {
	go func() {
		<-ctx.Done()
		s.audit.Audit(context.Background(), id)
	}()
	go func() {
		<-ctx.Done()
		s.shop.Buy(context.Background(), nil) // want `a goroutine calls s.shop.Buy`
	}()
}

func (s *service) store(ctx context.Context, id string) { s.buy(ctx) }

func (s *service) buy(ctx context.Context) { s.shop.Buy(ctx, nil) }

func (s *service) note(ctx context.Context, id string) { _ = id }
