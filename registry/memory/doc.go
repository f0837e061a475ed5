// Package memory is a service registry inside the process: the embedded default
// of graylane for a program that runs all its services itself, for examples, and
// for the tests of programs that use another registry in production.
//
//	reg := memory.New()
//	r, err := reg.Register(ctx, registry.Instance{
//		ID:       "inventory-gray",
//		Service:  "inventory",
//		Address:  listener.Addr().String(),
//		Metadata: map[string]string{"version": "v2.1.0"},
//	})
//
// A test can take an instance out, or make it sick, with [Registry.SetStatus].
//
// A [Registry] starts no goroutines and needs no closing. A change is seen by
// every watch as soon as the call that made it returns; a snapshot is built once
// per change, however many readers there are. Nothing checks the health of
// instances: they keep the status that was set.
package memory
