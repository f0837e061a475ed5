// Package roster reads a snapshot of a registry for a balancer, gRPC and HTTP
// alike: which registrations are real, and which instances may serve.
package roster
