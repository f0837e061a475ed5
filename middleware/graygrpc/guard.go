package graygrpc

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/propagation"
)

// guard brings the tag to a call whose metadata an interceptor behind ours has
// replaced. Per-RPC credentials are the innermost place on a client, asked for
// each attempt after every interceptor and every stats handler has run. They
// are handed over as an option of tagged calls alone: an untagged call, and a
// call that carries its tag, cost next to nothing.
type guard struct {
	prop *propagation.Propagator
	// caller holds the credentials that the call had already: gRPC takes one
	// option of this kind per call. Mostly nil.
	caller credentials.PerRPCCredentials
}

var _ credentials.PerRPCCredentials = (*guard)(nil)

// GetRequestMetadata returns what is missing in the metadata of ctx.
func (g *guard) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	lost := g.lost(ctx)
	if g.caller == nil {
		return lost, nil
	}
	own, err := g.caller.GetRequestMetadata(ctx, uri...)
	if err != nil || lost == nil {
		return own, err
	}
	for k, v := range own {
		lost[k] = v
	}
	return lost, nil
}

func (g *guard) lost(ctx context.Context) map[string]string {
	if len(metadata.ValueFromOutgoingContext(ctx, tagKey)) > 0 || graytag.FromContext(ctx).IsZero() {
		return nil
	}
	c := outgoingOf(ctx, true)
	defer c.release()
	g.prop.Inject(ctx, c)
	lost := make(map[string]string, len(c.kv)/2)
	for i := 0; i < len(c.kv); i += 2 {
		// A second baggage line would hide the first from readers that take
		// one, OTel's for gRPC among them.
		if len(metadata.ValueFromOutgoingContext(ctx, c.kv[i])) == 0 {
			lost[c.kv[i]] = c.kv[i+1]
		}
	}
	return lost
}

// RequireTransportSecurity is what the caller's credentials want. The tag does
// not want it: whom it goes to is for the outbound scope to say.
func (g *guard) RequireTransportSecurity() bool {
	return g.caller != nil && g.caller.RequireTransportSecurity()
}

// guarded adds option, whose credentials are a guard, to the options of a call,
// which it leaves alone. The caller's credentials stay in force.
func guarded(opts []grpc.CallOption, option grpc.CallOption, prop *propagation.Propagator) []grpc.CallOption {
	for i := len(opts) - 1; i >= 0; i-- {
		of, ok := opts[i].(grpc.PerRPCCredsCallOption)
		if !ok || of.Creds == nil {
			continue
		}
		if _, ok := of.Creds.(*guard); ok {
			return opts // the client is wrapped twice
		}
		option = grpc.PerRPCCredentials(&guard{prop: prop, caller: of.Creds})
		break
	}
	return append(slices.Clip(opts), option)
}
