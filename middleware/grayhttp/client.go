package grayhttp

import (
	"fmt"
	"net/http"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/registry"
)

// NewClient returns a client that finds the instances of a service through disc,
// sends every request for http://service/ to the version that the tag of its
// context asks for, and hands the tag on:
//
//	client, err := grayhttp.NewClient(disc)
//	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://inventory/items/1", nil)
//	resp, err := client.Do(req)
//
// Requests for other hosts go where their URL says; see [Transport] for which of
// them get the tag. It fails where disc is nil or an option is wrong.
//
// The client's Transport is a [*Transport]; wrap it in others as you like. A
// program that makes clients as it goes ends each with [Transport.Close]; one
// that keeps a client for life need not.
func NewClient(disc registry.Discovery, opts ...ClientOption) (*http.Client, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	shared := []httplb.Option{httplb.WithMeterProvider(c.provider), httplb.WithLogger(c.logger)}
	balancer, err := httplb.New(disc, append(shared, c.balancer...)...)
	if err != nil {
		return nil, fmt.Errorf("grayhttp: %w", err)
	}
	t := newTransport(balancer, c)
	t.owned = balancer
	return &http.Client{Transport: t}, nil
}
