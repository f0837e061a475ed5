package gateway

import (
	"net/http/httputil"
	"sync"
)

// bufferSize is that of io.Copy.
const bufferSize = 32 << 10

// buffers are what bodies of answers are copied through. Without it
// httputil.ReverseProxy allocates one for every answer.
var buffers httputil.BufferPool = bufferPool{}

type bufferPool struct{}

var pooled = sync.Pool{New: func() any { return new([bufferSize]byte) }}

func (bufferPool) Get() []byte { return pooled.Get().(*[bufferSize]byte)[:] }

// Put keeps the array: putting the slice would allocate its header.
func (bufferPool) Put(b []byte) {
	if len(b) == bufferSize {
		pooled.Put((*[bufferSize]byte)(b))
	}
}
