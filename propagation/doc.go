// Package propagation moves the gray tag between contexts and carriers: HTTP
// headers, gRPC metadata, message headers.
//
// A [Propagator] is an OTel TextMapPropagator. Middleware of this module uses
// one by itself; it can also be one of several in OTel's own middleware:
//
//	gray, err := propagation.New()
//	otel.SetTextMapPropagator(otelprop.NewCompositeTextMapPropagator(
//		otelprop.TraceContext{}, otelprop.Baggage{}, gray))
//
// # What goes over the wire
//
// The header X-Gray-Tag (in gRPC metadata x-gray-tag) holds the tag in its
// canonical form, see package graytag. Beside it every pair is a member
// gray.<key> of W3C Baggage, so that a service that has nothing but OTel
// middleware hands the tag on. Older systems are met by compatibility headers:
// [WithVersionHeader], [WithFlagHeader], [WithCanaryHeader].
//
// # Guarantees
//
// Inject sets and never adds, and knows one truth, the context: a stale header
// on a reused request goes, also where the request is untagged. Baggage of
// others is never lost: where ours does not fit beside it (64 members, 8192
// bytes) ours stays out, which is counted, and the header goes alone. Extract
// never fails a request: what is malformed is counted
// (graylane.propagation.malformed) and passed over.
//
// # Work that outlives its request
//
// The context of a request is cancelled when its handler returns. [Detach]
// takes the tag, the baggage and the span context out of it; [Go] and [Bind] do
// so for goroutines and worker pools.
//
// The command [github.com/graylane/graylane/propagation/grayvet/cmd/grayvet] finds
// the places where a program uses another context, or one that has ended. Where a tag
// gets lost all the same, package [github.com/graylane/graylane/middleware] goes by
// symptom from what is seen to its cause; [TraceRoute] asks for the way of one request.
//
// # Messages
//
// A producer injects into the headers of a message, a consumer takes the tag out
// with [Propagator.Receive]. [MapCarrier], [HeaderCarrier] and [NewSliceCarrier] fit the headers of
// the usual clients (kafka-go, franz-go, sarama, NATS, AMQP).
//
// # Security
//
// Tags hold user data. Client middleware hands them only to hosts inside the
// system ([InternalHost], [OutboundScope]), also across redirects. What comes
// from outside is not to be believed: the entrance removes it. A client that is
// not wrapped and has OTel's Baggage propagator sends the gray.* members of its
// context wherever it goes; wrap it (grayhttp.NewTransport takes any
// RoundTripper), or give it a context without a tag. Input is read up
// to the limits of the formats and no further.
package propagation
