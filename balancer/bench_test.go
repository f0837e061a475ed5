package balancer_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/balancer"

	graylane "github.com/graylane/graylane/balancer"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/race"
)

type benchKey1 struct{}
type benchKey2 struct{}
type benchKey3 struct{}

// scope returns a context in scope with tag, three values deep.
func scope(tag string) context.Context {
	ctx := graytag.NewContext(context.Background(), graytag.MustParse(tag))
	ctx = context.WithValue(ctx, benchKey1{}, 1)
	ctx = context.WithValue(ctx, benchKey2{}, 2)
	return context.WithValue(ctx, benchKey3{}, 3)
}

var fiveVersions = []string{"", "v2.1.0", "v2.2.0", "v3.0.0", "v4.0.0"}

// pickCases are what BenchmarkPick and its allocation guard measure.
var pickCases = []struct{ name, policy, tag string }{
	{"round_robin", "round_robin", ""},
	{"untagged", graylane.Name, ""},
	{"tagged", graylane.Name, "uid=10086;channel=app;version=v2.1.0"},
	{"fallback", graylane.Name, "uid=10086;channel=app;version=v9.0.0"},
}

func BenchmarkPick(b *testing.B) {
	for _, c := range pickCases {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/n=%d", c.name, n), func(b *testing.B) {
				ch := newChannel(b, c.policy, "{}", endpoints(n, fiveVersions...))
				info := balancer.PickInfo{FullMethodName: "/inventory.Inventory/Get", Ctx: scope(c.tag)}
				picker := ch.picker()
				if _, err := picker.Pick(info); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := picker.Pick(info); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector allocates: figures are not compared")
		return
	}
	for _, c := range pickCases {
		for _, n := range []int{10, 1000} {
			ch := newChannel(t, c.policy, "{}", endpoints(n, fiveVersions...))
			info := balancer.PickInfo{Ctx: scope(c.tag)}
			picker := ch.picker()
			_, err := picker.Pick(info)
			require.NoError(t, err)
			assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = picker.Pick(info) }), "%s n=%d", c.name, n)
		}
	}
}

// BenchmarkStartup takes a channel from nothing to all instances READY, without
// sockets: what is measured is the work of the policies.
func BenchmarkStartup(b *testing.B) {
	for _, policy := range []string{"round_robin", graylane.Name} {
		b.Run(policy+"/n=1000", func(b *testing.B) {
			all := endpoints(1000, fiveVersions...)
			b.ReportAllocs()
			for b.Loop() {
				ch := newChannel(b, policy, "{}", all)
				if len(ch.created) != 1000 || ch.seen() < 1000 {
					b.Fatalf("%d connections, %d pickers", len(ch.created), ch.seen())
				}
			}
		})
	}
}
