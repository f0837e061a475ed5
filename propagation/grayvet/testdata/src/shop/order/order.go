// Package order calls package audit.
package order

import (
	"context"

	"shop/audit"
)

func place(ctx context.Context, l *audit.Log, s audit.Sink) {
	l.Write(context.Background(), "1") // want `l.Write is called with context.Background\(\), which loses the gray tag of ctx`
	l.Through(context.Background())    // want `l.Through is called`
	l.Local(context.Background())
	l.Lost(context.Background())
	audit.Maybe(context.Background(), s)
	audit.Fetch[int](context.Background()) // want `audit.Fetch\[int\] is called`

	go l.Write(context.Background(), "1")   // want `a goroutine calls l.Write`
	go audit.Maybe(context.Background(), s) // want `a goroutine calls audit.Maybe`
	go s.Put(context.Background())          // want `a goroutine calls s.Put`
	go l.Local(context.Background())
}
