package registry_test

import (
	"context"
	"fmt"
	"os"

	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// A service registers with the version that the deployment pipeline gave it, and
// a caller finds it.
func Example() {
	ctx := context.Background()
	reg := memory.New()

	r, err := reg.Register(ctx, registry.FromEnv(registry.Instance{
		ID: "inventory-1", Service: "inventory", Address: "127.0.0.1:8080",
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = r.Deregister(ctx) }()

	for instances, err := range reg.Watch(ctx, "inventory") {
		if err != nil {
			continue // the last set stays good
		}
		for _, i := range instances {
			fmt.Println(i.ID, i.Address, i.Status)
		}
		break
	}
	// Output: inventory-1 127.0.0.1:8080 passing
}

func ExampleFromEnv() {
	os.Setenv("GRAY_VERSION", "v2.1.0")
	os.Setenv("GRAY_META", "lane=blue; region=eu")
	defer os.Unsetenv("GRAY_VERSION")
	defer os.Unsetenv("GRAY_META")

	i := registry.FromEnv(registry.Instance{
		ID: "inventory-1", Service: "inventory", Address: "10.0.0.7:8080",
		Metadata: map[string]string{"region": "us"},
	})
	fmt.Println(i.Metadata["version"], i.Metadata["lane"], i.Metadata["region"])
	// Output: v2.1.0 blue eu
}
