package balancer_test

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	_ "github.com/graylane/graylane/balancer"
)

// A service config with a mistake in it fails when the client is made.
func Example() {
	_, err := grpc.NewClient("dns:///inventory:8080",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"graylane":{"falback":["any"]}}]}`))
	fmt.Println(err)
	// Output:
	// grpc: the provided default service config is invalid: error parsing config for policy "graylane": balancer: config: json: unknown field "falback"
}
