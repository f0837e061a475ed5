package graygrpc

import (
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/internal/hops"
)

// privateStream is a stream whose answer leaves the system. What a handler copies
// from answers of the inside, as a proxy does, does not say more than the Edge.
type privateStream struct{ serverStream }

func (s *privateStream) SetHeader(md metadata.MD) error { return s.ServerStream.SetHeader(public(md)) }
func (s *privateStream) SendHeader(md metadata.MD) error {
	return s.ServerStream.SendHeader(public(md))
}
func (s *privateStream) SetTrailer(md metadata.MD) { s.serverStream.SetTrailer(public(md)) }

// public returns md without what is for the inside alone; md stays as it is.
func public(md metadata.MD) metadata.MD {
	if len(md.Get(hops.RouteKey)) == 0 && len(md.Get(MisroutedKey)) == 0 {
		return md
	}
	md = md.Copy()
	md.Delete(hops.RouteKey)
	md.Delete(MisroutedKey)
	return md
}
