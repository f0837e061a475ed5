package balancer_test

import (
	"context"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/registry"
)

// pushed is a discovery that yields what it is told to, equal sets too, one by
// one: what a registry of somebody else's may do.
type pushed struct {
	mu      sync.Mutex
	updates []update
	changed chan struct{}
	yielded int // updates that a watch has begun to yield
}

type update struct {
	set []registry.Instance
	err error
}

func newPushed() *pushed { return &pushed{changed: make(chan struct{})} }

func instance(id, addr string, metadata map[string]string) registry.Instance {
	return registry.Instance{ID: id, Service: "order", Address: addr, Metadata: metadata}
}

func (p *pushed) set(set ...registry.Instance) { p.add(update{set: set}) }

func (p *pushed) add(u update) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updates = append(p.updates, u)
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pushed) yields(next int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.yielded = max(p.yielded, next+1)
}

// wait returns once the reader is done with all updates: it adds one more, that
// is like the last, and sees it asked for.
func (p *pushed) wait(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	last := p.updates[len(p.updates)-1]
	n := len(p.updates) + 1
	p.mu.Unlock()
	p.add(last)
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.yielded == n
	}, 10*time.Second, time.Millisecond)
}

// Watch implements registry.Discovery.
func (p *pushed) Watch(ctx context.Context, _ string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		for next := 0; ; {
			p.mu.Lock()
			updates, changed := p.updates, p.changed
			p.mu.Unlock()
			for ; next < len(updates); next++ {
				p.yields(next)
				if ctx.Err() != nil || !yield(updates[next].set, updates[next].err) {
					return
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	}
}
