// Package registry holds what graylane needs of a service registry: an
// [Instance] with its metadata, a [Registrar] that makes instances known, and a
// [Discovery] that finds them and tells of every change.
//
// A service registers itself with the version that the deployment pipeline gave
// it, and callers read that version to choose among the instances:
//
//	reg := memory.New() // or consul.New(nil)
//	self := registry.FromEnv(registry.Instance{
//		ID:      "inventory-1",
//		Service: "inventory",
//		Address: "10.0.0.7:8080",
//	})
//	r, err := reg.Register(ctx, self)
//	if err != nil {
//		return err
//	}
//	defer r.Deregister(context.Background())
//
//	for instances, err := range reg.Watch(ctx, "inventory") {
//		…
//	}
//
// # Implementations
//
// [github.com/graylane/graylane/registry/memory] keeps instances in the
// process; it is the embedded default and serves tests.
// [github.com/graylane/graylane/registry/consul] uses HashiCorp Consul. To write
// another one, implement [Registrar] and [Discovery], check instances with
// [Instance.Validate], wrap the discovery with [Share] where a watch is dear, and
// run [github.com/graylane/graylane/registry/registrytest] on it.
//
// # Guarantees and limits
//
// Snapshots are immutable and shared between readers: read them, never write to
// them, the metadata maps included. A snapshot holds instances of every
// [Status]; who may serve is the reader's decision. Discovery does not persist
// anything: a process that starts while its registry is down knows no instance
// until the registry answers.
//
// # Security
//
// Whoever can write to the registry decides where traffic goes. Metadata is
// readable by everybody who can read the registry: keep secrets out of it and
// out of GRAY_META.
package registry
