// Package lbtest runs small gRPC services on loopback for the tests of the
// balancer and of the resolver: servers that say who they are, instances that
// are down or never answer, and clients that ask.
package lbtest
