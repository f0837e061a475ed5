package balancer

import "google.golang.org/grpc/balancer"

// RingAt returns what a ring of instances has at n.
func RingAt(instances []balancer.Picker, n uint32) balancer.Picker {
	return ringOf(instances).at(n)
}
