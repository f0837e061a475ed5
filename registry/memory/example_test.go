package memory_test

import (
	"context"
	"fmt"

	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

func Example() {
	ctx := context.Background()
	reg := memory.New()

	_, err := reg.Register(ctx, registry.Instance{ID: "order-1", Service: "order", Address: "127.0.0.1:8080"})
	if err != nil {
		fmt.Println(err)
		return
	}
	gray, err := reg.Register(ctx, registry.Instance{
		ID: "order-2", Service: "order", Address: "127.0.0.1:8081",
		Metadata: map[string]string{registry.MetadataVersion: "v2.1.0"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	for instances, err := range reg.Watch(ctx, "order") {
		if err != nil {
			continue // the last set stays good
		}
		for _, i := range instances {
			fmt.Printf("%s %s version=%q %s\n", i.ID, i.Address, i.Metadata[registry.MetadataVersion], i.Status)
		}
		if len(instances) == 1 {
			break
		}
		fmt.Println("gray goes")
		_ = gray.Deregister(ctx)
	}
	// Output:
	// order-1 127.0.0.1:8080 version="" passing
	// order-2 127.0.0.1:8081 version="v2.1.0" passing
	// gray goes
	// order-1 127.0.0.1:8080 version="" passing
}

// A test takes an instance out as an operator would.
func ExampleRegistry_SetStatus() {
	ctx := context.Background()
	reg := memory.New()
	_, _ = reg.Register(ctx, registry.Instance{ID: "order-1", Service: "order", Address: "127.0.0.1:8080"})

	if err := reg.SetStatus("order-1", registry.StatusMaintenance); err != nil {
		fmt.Println(err)
	}
	for instances := range reg.Watch(ctx, "order") {
		fmt.Println(instances[0].ID, instances[0].Status)
		break
	}
	// Output: order-1 maintenance
}
