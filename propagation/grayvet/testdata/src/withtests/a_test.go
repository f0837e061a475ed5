package withtests

import (
	"context"
	"net/http"
)

func f(ctx context.Context) {
	http.Get("http://inventory/") // want `http.Get makes`
}
