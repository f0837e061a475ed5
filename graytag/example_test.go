package graytag_test

import (
	"context"
	"fmt"

	"github.com/graylane/graylane/graytag"
)

func Example() {
	tag, err := graytag.Parse("uid=10086; channel=app; version=v2.1.0; version.coupon=v1.9")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := graytag.NewContext(context.Background(), tag)

	// Anywhere below, with that context:
	tag = graytag.FromContext(ctx)
	fmt.Println(tag)
	fmt.Println(tag.Route(graytag.KeyVersion, "inventory"))
	fmt.Println(tag.Route(graytag.KeyVersion, "coupon"))
	// Output:
	// channel=app;uid=10086;version=v2.1.0;version.coupon=v1.9
	// v2.1.0
	// v1.9
}

func ExampleTag_With() {
	tag := graytag.MustParse("version=v2")
	tag, err := tag.With("note", "灰度, 10%")
	fmt.Println(tag, err)
	// Output: note=%E7%81%B0%E5%BA%A6%2C%2010%25;version=v2 <nil>
}
