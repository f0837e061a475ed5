package graygrpc

import (
	"context"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/graylane/graylane/internal/arrival"
	"github.com/graylane/graylane/internal/elsewhere"
)

// MisroutedKey is the metadata key, in the trailer, of the answer that
// [WithRejectMisrouted] gives: the service of the instance, escaped as a segment of a
// path. The status holds the same as a google.rpc.ErrorInfo (AIP-193) of the reason
// MISROUTED and the domain graylane, which is what clients of this library go by.
const MisroutedKey = arrival.MisroutedKey

const (
	markerDomain = "graylane"
	markerReason = "MISROUTED"

	// Keys of the metadata of the ErrorInfo. Beside the service it says which
	// instance has refused, for as much as that knows of itself.
	markerService  = "service"
	markerInstance = "instance"
	markerAddress  = "address"
)

// refusalOf returns the error for a call that should not have come here. Strangers
// are not told whom they have reached.
func (s *server) refusalOf(ctx context.Context, a *Arrival, stranger bool) error {
	st := status.New(codes.FailedPrecondition, fmt.Sprintf("graygrpc: misrouted: this instance of service %q serves another version", a.Service))
	if stranger {
		return st.Err()
	}
	info := &errdetails.ErrorInfo{Reason: markerReason, Domain: markerDomain, Metadata: map[string]string{markerService: a.Service}}
	if s.id != "" {
		info.Metadata[markerInstance] = s.id
	}
	address := s.address
	if address == "" {
		// Where no proxy and no translation of addresses is in between, it is what
		// the client has dialled.
		if p, ok := peer.FromContext(ctx); ok && p.LocalAddr != nil {
			address = p.LocalAddr.String()
		}
	}
	if address != "" {
		info.Metadata[markerAddress] = address
	}
	if with, err := st.WithDetails(info); err == nil {
		st = with
	}
	return st.Err()
}

// isMarker tells whether a detail of a status is the marker of a refusal, and what
// it says.
func isMarker(detail *anypb.Any) (info *errdetails.ErrorInfo, ok bool) {
	info = &errdetails.ErrorInfo{}
	if !detail.MessageIs(info) || detail.UnmarshalTo(info) != nil {
		return nil, false
	}
	return info, info.GetDomain() == markerDomain && info.GetReason() == markerReason
}

// refused tells whether err is the refusal of an instance of service that nobody has
// reacted to, and returns what it says of the instance.
func refused(err error, service string) (*elsewhere.Refusal, bool) {
	if err == nil {
		return nil, false
	}
	if _, ok := err.(*tried); ok {
		return nil, false
	}
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.FailedPrecondition {
		return nil, false
	}
	return refusedBy(st.Proto(), service)
}

// refusedIn is refused for the trailer of a stream whose error somebody else may be
// about to receive.
func refusedIn(trailer metadata.MD, service string) (*elsewhere.Refusal, bool) {
	details := trailer.Get(detailsKey)
	if len(details) != 1 {
		return nil, false
	}
	st := &statuspb.Status{}
	if proto.Unmarshal([]byte(details[0]), st) != nil || codes.Code(st.GetCode()) != codes.FailedPrecondition {
		return nil, false
	}
	return refusedBy(st, service)
}

// detailsKey is where gRPC sends a status with details. A server that sets it by
// hand sends what it has set.
const detailsKey = "grpc-status-details-bin"

// anyone stands for any service.
const anyone = ""

func refusedBy(st *statuspb.Status, service string) (*elsewhere.Refusal, bool) {
	for _, d := range st.GetDetails() {
		if info, ok := isMarker(d); ok && (service == anyone || info.GetMetadata()[markerService] == service) {
			return &elsewhere.Refusal{Service: service, ID: info.GetMetadata()[markerInstance], Address: info.GetMetadata()[markerAddress]}, true
		}
	}
	return nil, false
}

// handled returns what a handler has answered, without the marker of a refusal: who
// finds one may take it that no handler has seen the call.
func handled(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.FailedPrecondition {
		return err
	}
	p := st.Proto()
	kept := p.Details[:0:0]
	for _, d := range p.GetDetails() {
		if _, ok := isMarker(d); !ok {
			kept = append(kept, d)
		}
	}
	if len(kept) == len(p.Details) {
		return err
	}
	p.Details = kept
	return status.ErrorProto(p)
}

// unmarked returns a trailer that a handler may hand on: without a refusal that
// would be taken for its own. md stays as it is.
func unmarked(md metadata.MD) metadata.MD {
	if _, ok := refusedIn(md, anyone); !ok {
		return md
	}
	md = md.Copy()
	md.Delete(detailsKey)
	md.Delete(MisroutedKey) // which balancers of HTTP go by
	return md
}

// tried is a refusal after which another instance was asked, or looked for, already:
// a client that is wrapped twice does not ask a third.
type tried struct{ error }

func (t *tried) Unwrap() error { return t.error }

// GRPCStatus is what [status.FromError] asks.
func (t *tried) GRPCStatus() *status.Status {
	st, _ := status.FromError(t.error)
	return st
}
