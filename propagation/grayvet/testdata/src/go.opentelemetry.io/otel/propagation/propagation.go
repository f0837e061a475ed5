package propagation

import "context"

type TextMapPropagator interface {
	Inject(ctx context.Context, carrier any)
}
