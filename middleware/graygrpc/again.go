package graygrpc

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/graylane/graylane/internal/elsewhere"
)

// What is kept of a stream that has not been answered yet, in case that the instance
// refuses it.
const (
	keptMessages = 4
	keptBytes    = 16 << 10
)

// againStream is a stream to an instance that our balancer chooses, which is begun
// once more, elsewhere, where that refuses it.
//
// It stops to care as soon as it is settled: the other side has answered, or more
// was sent than is kept.
type againStream struct {
	ctx      context.Context
	desc     *grpc.StreamDesc
	cc       *grpc.ClientConn
	method   string
	service  string
	streamer grpc.Streamer
	opts     []grpc.CallOption

	first   attempt
	current atomic.Pointer[attempt]
	settled atomic.Bool

	// mu keeps what is sent and a second beginning apart. It is held while what is
	// kept is sent, which is less than a stream may send without an answer, and never
	// while something is received.
	mu     sync.Mutex
	kept   []any
	size   int
	closed bool // CloseSend was called
}

type attempt struct{ grpc.ClientStream }

func openStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method, service string, streamer grpc.Streamer, opts []grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		return stream, err
	}
	s := &againStream{ctx: ctx, desc: desc, cc: cc, method: method, service: service, streamer: streamer, opts: opts, first: attempt{stream}}
	s.current.Store(&s.first)
	return s, nil
}

func (s *againStream) Trailer() metadata.MD {
	md := unmarked(s.current.Load().Trailer())
	if leaves(s.ctx) {
		md = public(md)
	}
	return md
}

func (s *againStream) Context() context.Context { return s.current.Load().Context() }

func (s *againStream) Header() (metadata.MD, error) {
	for {
		at := s.current.Load()
		md, err := at.Header()
		if err == nil && md == nil && s.unread(at) {
			continue
		}
		if s.current.Load() == at {
			s.settle()
		}
		return md, err
	}
}

// settle ends the care. It waits for nobody: who sends may be waiting for what is
// received.
func (s *againStream) settle() {
	if !s.settled.Load() && s.settled.CompareAndSwap(false, true) && s.mu.TryLock() {
		s.kept = nil
		s.mu.Unlock()
	}
}

// unread begins anew where at was refused, which has ended before it had a header:
// gRPC has its trailer then. It tells whether there is another attempt.
func (s *againStream) unread(at *attempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.Load() != at || s.unreadLocked(at)
}

func (s *againStream) unreadLocked(at *attempt) bool {
	if s.settled.Load() {
		return false
	}
	refusal, ok := refusedIn(at.Trailer(), s.service)
	if !ok {
		return false
	}
	if t, ok := at.ClientStream.(*tracedClientStream); ok {
		t.ended(nil)
	}
	return s.againLocked(refusal)
}

// SendMsg implements [grpc.ClientStream].
func (s *againStream) SendMsg(m any) error {
	if s.settled.Load() {
		return s.current.Load().SendMsg(m)
	}
	s.mu.Lock()
	if s.settled.Load() || !s.keepLocked(m) {
		s.settled.Store(true)
		s.kept = nil
		s.mu.Unlock()
		return s.current.Load().SendMsg(m)
	}
	defer s.mu.Unlock()
	at := s.current.Load()
	err := at.SendMsg(m)
	if err != io.EOF || s.settled.Load() {
		return err
	}
	// The stream has ended. Whoever is told so sends no more.
	if md, err := at.Header(); err == nil && md == nil && s.unreadLocked(at) {
		return nil
	}
	s.settled.Store(true)
	return err
}

// keepLocked keeps m. What a program sends may not be its own any more when it is
// sent again, except for the one request of a stream of answers: gRPC allows nobody
// to change that before the stream has been answered.
func (s *againStream) keepLocked(m any) bool {
	if !s.desc.ClientStreams {
		s.kept = append(s.kept, m)
		return true
	}
	p, ok := m.(proto.Message)
	if !ok || len(s.kept) == keptMessages {
		return false
	}
	if s.size += proto.Size(p); s.size > keptBytes {
		return false
	}
	s.kept = append(s.kept, proto.Clone(p))
	return true
}

// CloseSend implements [grpc.ClientStream].
func (s *againStream) CloseSend() error {
	if s.settled.Load() {
		return s.current.Load().CloseSend()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.current.Load().CloseSend()
}

// RecvMsg implements [grpc.ClientStream].
func (s *againStream) RecvMsg(m any) error {
	for {
		at := s.current.Load()
		err := at.RecvMsg(m)
		if err == nil || err == io.EOF {
			s.settle()
			return err
		}
		refusal, ok := refused(err, s.service)
		if !ok {
			s.settle()
			return err
		}
		if !s.again(at, refusal) {
			return &tried{err}
		}
	}
}

// again begins the stream anew where at, which was refused, is still the current
// attempt, and tells whether there is another.
func (s *againStream) again(at *attempt, refusal *elsewhere.Refusal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Load() != at {
		return true
	}
	return !s.settled.Load() && s.againLocked(refusal)
}

func (s *againStream) againLocked(refusal *elsewhere.Refusal) bool {
	// Others see that it is settled only when there is another stream for them.
	defer s.settled.Store(true)
	kept := s.kept
	s.kept = nil
	ctx, done := elsewhere.NewContext(s.ctx, refusal)
	stream, err := s.streamer(ctx, s.desc, s.cc, s.method, s.opts...)
	done()
	if err != nil {
		return false
	}
	for _, m := range kept {
		if stream.SendMsg(m) != nil {
			break // what is received says why
		}
	}
	if s.closed {
		_ = stream.CloseSend()
	}
	s.current.Store(&attempt{stream})
	return true
}
