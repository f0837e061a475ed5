package propagation_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/propagation"
)

func Example() {
	p, err := propagation.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := graytag.NewContext(context.Background(), graytag.MustParse("uid=10086;version=v2.1.0"))
	header := http.Header{}
	p.Inject(ctx, propagation.HeaderCarrier(header))
	fmt.Println(header.Get("X-Gray-Tag"))

	ctx = p.Extract(context.Background(), propagation.HeaderCarrier(header))
	fmt.Println(graytag.FromContext(ctx).Get(graytag.KeyVersion))
	// Output:
	// uid=10086;version=v2.1.0
	// v2.1.0
}

// RecordHeader is how kafka clients spell the header of a message.
type RecordHeader struct {
	Key   string
	Value []byte
}

// A producer injects the tag into the headers of a message, a consumer takes it
// out again and works on a context of its own.
func ExampleNewSliceCarrier() {
	p, err := propagation.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	split := func(h RecordHeader) (string, string) { return h.Key, string(h.Value) }
	join := func(k, v string) RecordHeader { return RecordHeader{k, []byte(v)} }

	// The producer, in the handler of a request:
	ctx := graytag.NewContext(context.Background(), graytag.MustParse("version=v2.1.0"))
	var message struct{ Headers []RecordHeader }
	p.Inject(ctx, propagation.NewSliceCarrier(&message.Headers, split, join))

	// The consumer, elsewhere and later:
	ctx = p.Receive(context.Background(), propagation.NewSliceCarrier(&message.Headers, split, nil))
	fmt.Println(graytag.FromContext(ctx))
	// Output: version=v2.1.0
}
