// Package callsite finds the place in a user's program that a call came from:
// behind the frames of this library, of gRPC, of net/http and of generated stubs.
package callsite

import (
	"path"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Site is a place in the source. It is made once, so that sites can be compared
// by their address.
type Site struct {
	Function string // with its package path
	File     string // as the compiler knows it
	Line     int
	// Label is short and stable across machines: the file with its folder, and the
	// line.
	Label string

	seen atomic.Bool
}

// First tells whether nobody has asked this of the site before.
func (s *Site) First() bool { return !s.seen.Load() && s.seen.CompareAndSwap(false, true) }

// Unknown stands for a call that has no frame of a user in reach, such as one that
// another library makes from a goroutine of its own.
const unknown = "unknown"

// maxFrames bounds how far up is looked; a library between us and its user is
// seldom deeper.
const maxFrames = 32

// Finder finds sites. What is known of a program counter is kept, of which a program
// has a bounded number. The zero value is ready; it is safe for concurrent use.
type Finder struct {
	known   sync.Map // uintptr -> *Site, nil for a frame that is passed over
	unknown Site
}

// Find returns the site of the call that is under way, skip frames above its caller.
func (f *Finder) Find(skip int) *Site {
	var pcs [maxFrames]uintptr
	for _, pc := range pcs[:runtime.Callers(skip+2, pcs[:])] {
		v, ok := f.known.Load(pc)
		if !ok {
			v, _ = f.known.LoadOrStore(pc, siteOf(pc))
		}
		if s := v.(*Site); s != nil {
			return s
		}
	}
	return &f.unknown
}

// String returns the label, "unknown" where there is no site.
func (s *Site) String() string {
	if s.Label == "" {
		return unknown
	}
	return s.Label
}

func siteOf(pc uintptr) *Site {
	frames := runtime.CallersFrames([]uintptr{pc})
	for {
		frame, more := frames.Next()
		if frame.Function != "" && !passedOver(frame.Function, frame.File) {
			dir, file := path.Split(frame.File)
			return &Site{
				Function: frame.Function, File: frame.File, Line: frame.Line,
				Label: path.Join(path.Base(dir), file) + ":" + strconv.Itoa(frame.Line),
			}
		}
		if !more {
			return nil
		}
	}
}

const module = "github.com/graylane/graylane/"

// libraries are packages, and those beneath them where the name ends with a slash.
var libraries = []string{
	"net/http", "net/http/", "runtime", "reflect", "internal/",
	"google.golang.org/grpc", "google.golang.org/grpc/",
	"go.opentelemetry.io/",
	module + "middleware/grayhttp", module + "middleware/graygrpc", module + "middleware/gateway",
	module + "balancer", module + "balancer/",
	module + "propagation", module + "internal/callsite", module + "internal/telemetry",
}

func passedOver(function, file string) bool {
	if strings.HasSuffix(file, ".pb.go") {
		return true // a generated stub
	}
	pkg := packageOf(function)
	for _, l := range libraries {
		if pkg == l || strings.HasSuffix(l, "/") && strings.HasPrefix(pkg, l) {
			return true
		}
	}
	return false
}

// packageOf cuts the package path from the name of a function, as
// "example.com/a/b.(*T).F".
func packageOf(function string) string {
	slash := strings.LastIndexByte(function, '/') + 1
	if dot := strings.IndexByte(function[slash:], '.'); dot >= 0 {
		return function[:slash+dot]
	}
	return function
}
