package edge

import (
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
)

// HopRules decide for calls inside the system. They are safe for concurrent use.
type HopRules struct {
	Engine *rule.Engine
	Source string // the own service
}

// hop is a call as rules see it.
type hop struct {
	Request
	tag graytag.Tag
}

var hops = sync.Pool{New: func() any {
	q := &hop{}
	q.Bind(q.attr)
	return q
}}

// attr is what the tag says of an attribute: the entrance has found it out, which
// the headers of a call further inside cannot.
func (q *hop) attr(name string) (value string, replaced bool) {
	v := q.tag.Get(name)
	return v, v != ""
}

// Applies tells whether calls with tag are for the rules to decide: those that ask
// for no version of service. stable is a version, too.
func (h *HopRules) Applies(tag graytag.Tag, service string) bool {
	return service != "" && tag.Route(h.Engine.Key(), service) == ""
}

// Tag returns tag with what the rules add to it for a call with these headers and
// fields; ok is false where they add nothing. What tag holds already stays.
func (h *HopRules) Tag(tag graytag.Tag, headers Headers, f Fields) (_ graytag.Tag, ok bool) {
	q := hops.Get().(*hop)
	q.tag = tag
	f.Source = h.Source
	q.Set(headers, f)
	d := q.Decide(h.Engine)
	q.Clear()
	q.tag = graytag.Tag{}
	hops.Put(q)
	return merge(tag, d.Tag)
}

// ServiceOf returns the service that a host, with or without a port, names where no
// discovery says more: a name of one label, other than localhost; "" for none.
func ServiceOf(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.ContainsAny(host, ".:[]/,") || strings.EqualFold(host, "localhost") {
		return ""
	}
	if _, err := strconv.ParseUint(host, 0, 64); err == nil {
		return "" // an address in disguise
	}
	return host
}

func merge(tag, more graytag.Tag) (_ graytag.Tag, ok bool) {
	switch {
	case more.IsZero():
		return tag, false
	case tag.IsZero():
		return more, true
	}
	pairs := make(map[string]string, tag.Len()+more.Len())
	for k, v := range more.All() {
		pairs[k] = v
	}
	for k, v := range tag.All() {
		pairs[k] = v
	}
	// All or nothing: half of what rules say may be a version without its lane.
	merged, err := graytag.New(pairs)
	if err != nil || merged.Equal(tag) {
		return tag, false
	}
	return merged, true
}
