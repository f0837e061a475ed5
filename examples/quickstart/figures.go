package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/registry"
)

// counters are the metrics of all instances: each has a provider of its own, as it
// would in a process of its own, and what it counts is read here instead of being
// sent somewhere.
type counters struct {
	mu        sync.Mutex // of instances
	instances []counted
}

type counted struct {
	self   registry.Instance
	reader *sdkmetric.ManualReader
}

// of returns the provider of an instance.
func (c *counters) of(self registry.Instance) metric.MeterProvider {
	// What is read is what has happened since it was read last.
	reader := sdkmetric.NewManualReader(sdkmetric.WithTemporalitySelector(
		func(sdkmetric.InstrumentKind) metricdata.Temporality { return metricdata.DeltaTemporality }))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances = append(c.instances, counted{self, reader})
	return sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
}

// figures are what the instances have counted at the arrival of requests.
type figures struct {
	hops     int
	outcomes map[subset.Outcome]int
	served   map[string]map[string]int // service -> version -> calls
}

// read reads graylane.server.requests of all instances.
func (c *counters) read(ctx context.Context) (figures, error) {
	f := figures{outcomes: map[subset.Outcome]int{}, served: map[string]map[string]int{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.instances {
		var all metricdata.ResourceMetrics
		if err := i.reader.Collect(ctx, &all); err != nil {
			return f, err
		}
		for _, scope := range all.ScopeMetrics {
			for _, m := range scope.Metrics {
				sum, ok := m.Data.(metricdata.Sum[int64])
				if m.Name != "graylane.server.requests" || !ok {
					continue
				}
				for _, p := range sum.DataPoints {
					outcome, _ := p.Attributes.Value("outcome")
					f.add(i.self, subset.Outcome(outcome.AsString()), int(p.Value))
				}
			}
		}
	}
	return f, nil
}

func (f *figures) add(self registry.Instance, outcome subset.Outcome, n int) {
	f.hops += n
	f.outcomes[outcome] += n
	if f.served[self.Service] == nil {
		f.served[self.Service] = map[string]int{}
	}
	f.served[self.Service][self.Metadata[registry.MetadataVersion]] += n
}

// table prints services against versions.
func (f *figures) table(w io.Writer, c colours) {
	versions := map[string]bool{}
	for _, by := range f.served {
		for v := range by {
			versions[v] = true
		}
	}
	columns := slices.Sorted(maps.Keys(versions)) // "" comes first: stable
	head := fmt.Sprintf("  %-12s", "calls served")
	for _, v := range columns {
		head += fmt.Sprintf(" %8s", name(v))
	}
	fmt.Fprintln(w, c.bold(head))
	for _, service := range []string{"order", "inventory", "user", "coupon"} {
		row := fmt.Sprintf("  %-12s", service)
		for _, v := range columns {
			row += fmt.Sprintf(" %8d", f.served[service][v])
		}
		fmt.Fprintln(w, row)
	}
}

// summary is the last line of the program.
func (f *figures) summary(requests int) string {
	return fmt.Sprintf("requests=%d hops=%d matched=%d stable=%d fallback=%d misrouted=%d", requests, f.hops,
		f.outcomes[subset.Matched], f.outcomes[subset.Stable], f.outcomes[subset.Fallback], f.misrouted())
}

func (f *figures) misrouted() int { return f.outcomes[subset.Misrouted] }

func name(version string) string {
	if version == "" {
		return "stable"
	}
	return version
}
