// Package graytag holds the gray tag: the colour that a request gets at the
// entrance and keeps on every hop.
//
// A [Tag] is a small, immutable set of key/value pairs. Its wire form is what
// the header X-Gray-Tag carries:
//
//	uid=10086;channel=app;version=v2.1.0
//
// Read one with [Parse], make one with [New] or [Tag.With], put it into a
// context with [NewContext] and take it out with [FromContext]:
//
//	ctx = graytag.NewContext(ctx, graytag.MustParse("version=v2.1.0"))
//	graytag.FromContext(ctx).Get(graytag.KeyVersion) // "v2.1.0"
//
// Services seldom call this package: the middleware puts the tag of an inbound
// request into its context and hands it on to outbound calls.
//
// # The wire form
//
// Pairs are separated by ';'. U+0020 around keys and values and empty pairs are
// ignored; a value splits from its key at the first '='; a pair with an empty
// value counts as absent. A key is [A-Za-z0-9][A-Za-z0-9._-]{0,63}, is
// case-sensitive and never percent-encoded. A value is UTF-8 of 1 to 256 bytes
// without control characters (Unicode Cc), percent-encoded (RFC 3986, section
// 2.1). [Tag.String] leaves A-Z a-z 0-9 - . _ ~ ! $ ' ( ) * + : @ / bare, writes
// every other byte as %XX in upper case and sorts by key. [Parse] also accepts
// raw UTF-8 and refuses a raw ',' or '"', which is what proxies and other
// parsers leave behind when they join or quote header lines. A tag has at most
// 1024 bytes and 32 pairs.
//
// # What the pairs mean
//
// version is what routing reads where a policy does not name another key;
// version.<service> overrides it for that one service (see [Tag.Route]). uid,
// channel, lane, region, zone and env are reserved for what their names say.
// Unknown keys travel untouched.
//
// # In a context
//
// [NewContext] also writes the tag into the OTel baggage of the context, as
// members gray.<key>, so that a service with nothing but OTel middleware hands
// it on. [InScope] tells "untagged" from "the context was lost".
//
// # Security
//
// A tag that comes from outside must not be believed: the entrance removes it
// and decides anew. A tag carries user data (uid); [Tag.LogValue] hashes it,
// and the middleware does not send it to hosts outside the system. Parse is
// bounded in time and memory whatever it is given.
//
// The tag is in the OTel baggage of the context, too: a client that is not
// wrapped and has OTel's Baggage propagator sends it wherever it goes. Give such
// a client a context without it, NewContext(ctx, Tag{}), or wrap it.
package graytag
