// Package edge holds what the entrances over HTTP and gRPC, and the gateway,
// have in common: which address a request comes from, what is forged in it, what
// rules get to see of it, and what the answer says.
package edge
