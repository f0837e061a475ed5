// Package lbattr holds what the resolver tells the balancer beside addresses:
// the metadata of an endpoint, whether it may serve, and what belongs to the
// client as a whole.
package lbattr
