// Package layout checks, in its test, what the packages of this module may
// import: what an HTTP service links must not hold gRPC, and only
// registry/consul talks to Consul.
package layout
