package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/graylane/graylane/middleware/grayhttp"
)

// users come once for each state of the rules.
const users = 1000

// story is a release in short: 10 %, 50 %, and back.
func story(ctx context.Context, out io.Writer, b *backend) (err error) {
	// The story writes its own rules, and nobody else's over.
	for d, err := range b.rules.Watch(ctx) {
		if err != nil {
			return err
		}
		if d.Exists() {
			return errors.New("gateway: there are rules already; -listen serves by them, the story wants a -key of its own")
		}
		break
	}
	if err := b.write(ctx, rulesAt(10)); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, b.remove(ctx))
	}()
	e, err := enter(ctx, "127.0.0.1:0", b.registry, b.rules)
	if err != nil {
		return err
	}
	defer e.close()
	if err := e.follow(ctx, 0); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: visitors}}
	defer client.CloseIdleConnections()

	before, err := visit(ctx, client, e.url)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "10 %%: %4d of %d users gray\n", len(before), users)

	if err := e.change(ctx, b, rulesAt(50)); err != nil {
		return err
	}
	after, err := visit(ctx, client, e.url)
	if err != nil {
		return err
	}
	back := 0
	for u := range before {
		if !after[u] {
			back++
		}
	}
	fmt.Fprintf(out, "50 %%: %4d of %d users gray, %d of those from before became stable\n", len(after), users, back)

	if err := e.change(ctx, b, stopped); err != nil {
		return err
	}
	still, err := visit(ctx, client, e.url)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "stop: %4d of %d users gray\n", len(still), users)
	if back > 0 || len(still) > 0 {
		return fmt.Errorf("gateway: %d users became stable while the percentage grew, %d are gray after the stop", back, len(still))
	}
	return nil
}

// change writes rules, and returns when the gateway decides by them.
func (e *entrance) change(ctx context.Context, b *backend, document string) error {
	before := e.engine.Status().Revision
	if err := b.write(ctx, document); err != nil {
		return err
	}
	return e.follow(ctx, before)
}

// follow returns when other rules than those of a revision are in force.
func (e *entrance) follow(ctx context.Context, before uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for e.engine.Status().Revision == before {
		select {
		case <-ctx.Done():
			return fmt.Errorf("gateway: the rules are not followed: %w", errors.Join(ctx.Err(), e.engine.Status().Err))
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// visitors is how many users come at once.
const visitors = 16

// visit lets every user order once, and returns who was gray.
func visit(ctx context.Context, client *http.Client, url string) (gray map[int]bool, err error) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex // guards gray and err
		queue = make(chan int)
	)
	gray = map[int]bool{}
	for range visitors {
		wg.Go(func() {
			for u := range queue {
				isGray, failure := order(ctx, client, url, u)
				mu.Lock()
				if failure != nil && err == nil {
					err = failure
				}
				if isGray {
					gray[u] = true
				}
				mu.Unlock()
			}
		})
	}
	for u := range users {
		queue <- u
	}
	close(queue)
	wg.Wait()
	return gray, err
}

// order sends one order, and holds who served it to what the gateway says.
func order(ctx context.Context, client *http.Client, url string, user int) (gray bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/orders/1", nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("X-User-ID", strconv.Itoa(user))
	req.Header.Set("X-Gray-Tag", "version=v2") // somebody always tries
	resp, err := client.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return false, err
	}
	version := resp.Header.Get(grayhttp.VersionHeader)
	served := strings.TrimSpace(string(body))
	if want := "order-" + version + " inventory-" + version; resp.StatusCode != http.StatusOK || served != want {
		return false, fmt.Errorf("gateway: user %d: %s, served by %q, want %q", user, resp.Status, served, want)
	}
	return version == "v2", nil
}
