package propagation

import "context"

type Propagator struct{}

func (*Propagator) Inject(ctx context.Context, carrier any) {}

func Detach(ctx context.Context) context.Context               { return ctx }
func Bind(ctx context.Context, f func(context.Context)) func() { return func() { f(ctx) } }
func Go(ctx context.Context, f func(context.Context))          { go f(ctx) }
