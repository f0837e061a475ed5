package graygrpc

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/edge"
)

// WithRules has engine decide for calls whose tag asks for no version of the
// service that they go to, an explicit version=stable being one. source is the
// own service, which rules see as source. They see the outgoing metadata under
// the names of headers, the full method as path, and the pairs of the tag in place
// of the attributes of the same name: a call whose tag holds a uid is of that
// user. The client's address is not known any more. What the rules say is added to
// the tag of that one call, which is routed by it and hands it on; the context of
// the caller stays as it is.
//
// The service is the one of the target gray:///service; of another target it is
// the host, where that is a name of one label. Calls that leave the system are none
// of the rules' business. nil is ignored.
//
// Where the entrance decides by the same engine, a call of a user whom it left
// untagged is decided anew, by what is known here: a rule for all services that asks
// for not_exists, or for a path, may match. "default": "version=stable" pins such users.
func WithRules(engine *rule.Engine, source string) ClientOption {
	return clientOptionFunc(func(c *config) {
		if engine != nil {
			c.rules = &edge.HopRules{Engine: engine, Source: source}
		}
	})
}

// decide returns ctx with the tag that the rules want for a call of method.
func (c *client) decide(ctx context.Context, method, service string) context.Context {
	tag := graytag.FromContext(ctx)
	if !c.rules.Applies(tag, service) {
		return ctx
	}
	tag, ok := c.rules.Tag(tag, outgoingHeaders{ctx}, edge.Fields{
		Host: service, Path: method, Method: "POST", Service: service,
	})
	if !ok {
		return ctx
	}
	return graytag.NewContext(ctx, tag)
}

// outgoingHeaders finds headers in the outgoing metadata of a context.
type outgoingHeaders struct{ ctx context.Context }

func (h outgoingHeaders) Values(canonical string) []string {
	return metadata.ValueFromOutgoingContext(h.ctx, metadataKey(canonical))
}
