package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// users is who orders, again and again: 400 of them, some hundred times a second.
type users struct {
	gateways []string
	client   *http.Client
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	next     atomic.Uint64

	mu       sync.Mutex // guards what follows
	orders   int
	firstBad time.Time // when the first gray order had failed
	lastGray time.Time // when the last order that was gray was sent
	stray    error     // an order that v2 and stable served in part, or that failed on stable
}

const (
	numbers = 400
	workers = 8
	pause   = 20 * time.Millisecond // of a worker, after each order
)

func newUsers(gateways ...string) *users {
	return &users{gateways: gateways, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}}
}

func (u *users) start(ctx context.Context) {
	ctx, u.cancel = context.WithCancel(ctx)
	for range workers {
		u.wg.Go(func() {
			for ctx.Err() == nil {
				n := u.next.Add(1)
				_, _ = u.order(ctx, int(n%numbers), u.gateways[n%uint64(len(u.gateways))])
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
}

func (u *users) stop() {
	if u.cancel != nil {
		u.cancel()
	}
	u.wg.Wait()
	u.client.CloseIdleConnections()
}

// order sends one order, and tells whether it was gray and good.
func (u *users) order(ctx context.Context, user int, gateway string) (gray, good bool) {
	sent := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, gateway+"/orders/1", nil)
	if err != nil {
		return false, false
	}
	req.Header.Set("X-User-ID", strconv.Itoa(user))
	status, body, err := do(u.client, req)
	if ctx.Err() != nil {
		return false, false
	}
	gray = strings.HasPrefix(body, "order-v2")
	good = err == nil && status == http.StatusOK
	whole := body == "order-stable inventory-stable" || body == "order-v2 inventory-v2"
	u.mu.Lock()
	defer u.mu.Unlock()
	u.orders++
	if gray && sent.After(u.lastGray) {
		u.lastGray = sent
	}
	if gray && !good && u.firstBad.IsZero() {
		u.firstBad = time.Now()
	}
	if (!good && !gray || good && !whole) && u.stray == nil {
		u.stray = fmt.Errorf("rollout: user %d: status %d, %q, %v", user, status, body, err)
	}
	return gray, good
}

// visit lets every user order once at each gateway.
func (u *users) visit(ctx context.Context) (gray, failed int) {
	for n := range numbers {
		for _, g := range u.gateways {
			isGray, good := u.order(ctx, n, g)
			if isGray {
				gray++
			}
			if !good {
				failed++
			}
		}
	}
	return gray, failed
}
