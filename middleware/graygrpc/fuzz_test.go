package graygrpc_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
)

// Whatever is in the way, what we send under our keys is what gRPC accepts,
// and is the tag of the context.
func FuzzOutgoingMetadata(f *testing.F) {
	f.Add("version=v2", "a=1,gray.version=v9", "channel", "灰度")
	f.Add("channel=灰\r\n", "城=上海,,=;", "a", " ")
	f.Add("", "\x00", "version", "v2")
	unary, err := graygrpc.UnaryClientInterceptor()
	if err != nil {
		f.Fatal(err)
	}
	conn := dial(f, "passthrough:///inventory")
	f.Fuzz(func(t *testing.T, header, members, key, value string) {
		scoped, _ := graytag.New(map[string]string{key: value})
		for _, in := range []context.Context{
			graytag.NewContext(context.Background(), scoped),
			metadata.AppendToOutgoingContext(graytag.NewContext(context.Background(), scoped), "x-gray-tag", header, "baggage", members),
			metadata.AppendToOutgoingContext(context.Background(), "x-gray-tag", header),
		} {
			_ = unary(in, "/a.B/C", nil, nil, conn, func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
				md, _ := metadata.FromOutgoingContext(ctx)
				if got := graytag.FromContext(ctx); graytag.InScope(ctx) && !got.IsZero() {
					if v := md.Get("x-gray-tag"); len(v) != 1 || v[0] != got.String() {
						t.Fatalf("x-gray-tag %q, want %q", v, got)
					}
				} else if v := md.Get("x-gray-tag"); len(v) > 1 || len(v) == 1 && v[0] != "" {
					t.Fatalf("x-gray-tag %q of an untagged call", v)
				}
				for _, v := range append(md.Get("x-gray-tag"), md.Get("baggage")...) {
					for i := range len(v) {
						if v[i] < 0x20 || v[i] > 0x7E {
							t.Fatalf("byte %#x in %q", v[i], v)
						}
					}
				}
				return nil
			})
		}
	})
}
