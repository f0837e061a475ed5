package graygrpc

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/internal/edge"
)

// caller is a call at an entrance, as rules see it.
type caller struct {
	edge.Request
	e   *entrance
	ctx context.Context
}

var callers = sync.Pool{New: func() any {
	q := &caller{}
	q.Bind(q.attr)
	return q
}}

// attr is what code says of an attribute. The last option for a name counts.
func (q *caller) attr(name string) (value string, replaced bool) {
	for i := len(q.e.attrs) - 1; i >= 0; i-- {
		if a := &q.e.attrs[i]; a.name == name {
			v, ok := a.value(q.ctx)
			if !ok {
				v = ""
			}
			return v, true
		}
	}
	return "", false
}

// Values implements [edge.Headers].
func (q *caller) Values(canonical string) []string {
	return metadata.ValueFromIncomingContext(q.ctx, metadataKey(canonical))
}

// metadataKeys remembers the metadata keys of the headers that rules name, which
// are few: lower case would cost an allocation every time.
var metadataKeys struct {
	known sync.Map // string -> string
	n     atomic.Int64
}

// maxMetadataKeys bounds it all the same; rule sets come and go.
const maxMetadataKeys = 1024

func metadataKey(canonical string) string {
	if k, ok := metadataKeys.known.Load(canonical); ok {
		return k.(string)
	}
	key := strings.ToLower(canonical)
	if metadataKeys.n.Load() < maxMetadataKeys {
		if _, loaded := metadataKeys.known.LoadOrStore(strings.Clone(canonical), key); !loaded {
			metadataKeys.n.Add(1)
		}
	}
	return key
}
