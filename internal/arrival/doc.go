// Package arrival says what it means that a request has arrived at an instance,
// and carries that in the context of the request, for HTTP and gRPC alike.
package arrival
