// Package e2e holds the tests that need everything at once: services behind
// both middlewares, on real sockets, registered in a real Consul.
package e2e
