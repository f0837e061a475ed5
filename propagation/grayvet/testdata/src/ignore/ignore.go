// Package ignore has deliberate uses.
package ignore

import (
	"context"
	"net/http"

	"shop/pb"
)

func f(ctx context.Context, c pb.ShopClient) {
	http.Get("http://licence.example/") //grayvet:ignore a stranger's host

	//grayvet:ignore a stranger's host
	http.Get("http://licence.example/")

	//grayvet:ignore a stranger's host, which is
	// asked at every start
	http.Get("http://licence.example/")

	http.Get("http://licence.example/") //grayvet:ignore this line alone
	http.Get("http://licence.example/") // want `http.Get makes`

	http.Get("http://licence.example/") /* want `http.Get makes` `needs a reason` */ //grayvet:ignore
	http.Get("http://licence.example/") /* want `http.Get makes` */                  //grayvet:ignored because the name is wrong

	c.Buy(
		//grayvet:ignore warms the cache
		context.Background(),
		nil,
	)

	//grayvet:ignore warms the cache
	bg := context.Background()
	c.Buy(bg, nil)
	c.Buy(bg, nil)
}

func handler(w http.ResponseWriter, r *http.Request) {
	//grayvet:ignore ends with the server's own context
	go func() {
		work(r.Context())
	}()
	go func() {
		work(r.Context()) //grayvet:ignore the use can be marked as well
	}()
}

func work(ctx context.Context) {}
