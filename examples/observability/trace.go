package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// span is what stdouttrace writes, as far as it is looked at.
type span struct {
	Name        string
	SpanContext struct{ TraceID, SpanID string }
	Parent      struct{ SpanID string }
	StartTime   time.Time
	Attributes  []pair
	Events      []struct {
		Name       string
		Attributes []pair
	}
	Resource []pair
}

type pair struct {
	Key   string
	Value struct{ Value any }
}

func value(pairs []pair, key string) any {
	for _, p := range pairs {
		if p.Key == key {
			return p.Value.Value
		}
	}
	return nil
}

// spansOf reads the spans of a file, in the order in which they began.
func spansOf(name string) (all []span, err error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(data) {
		var s span
		if err := json.Unmarshal(line, &s); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	slices.SortStableFunc(all, func(a, b span) int { return a.StartTime.Compare(b.StartTime) })
	return all, nil
}

// gray returns what a span says of versions.
func (s *span) gray() string {
	said := ofVersions(s.Attributes)
	for _, e := range s.Events {
		said += " " + e.Name + ofVersions(e.Attributes)
	}
	return said
}

func ofVersions(pairs []pair) (said string) {
	for _, p := range pairs {
		if strings.HasPrefix(p.Key, "gray.") {
			said += fmt.Sprintf(" %s=%v", p.Key, p.Value.Value)
		}
	}
	return said
}

// oneTrace prints the spans of the first gray request, or of a stable one where there
// is none, each beneath its parent.
func oneTrace(name string, out io.Writer) error {
	all, err := spansOf(name)
	if err != nil || len(all) == 0 {
		return err
	}
	first := all[0]
	for _, s := range all {
		if value(s.Attributes, "gray.version") == "v2" {
			first = s
			break
		}
	}
	fmt.Fprintln(out, "\ntrace")
	depths := map[string]int{}
	for _, s := range all {
		if s.SpanContext.TraceID != first.SpanContext.TraceID {
			continue
		}
		depth := depths[s.Parent.SpanID]
		depths[s.SpanContext.SpanID] = depth + 1
		service, _ := value(s.Resource, "service.instance.id").(string)
		fmt.Fprintf(out, "  %s%s %s%s\n", strings.Repeat("  ", depth), cmp.Or(service, "?"), s.Name, s.gray())
	}
	return nil
}
