package grayslog_test

import (
	"context"
	"log/slog"
	"os"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayslog"
)

// newHandler stands for what a service has. It leaves out times, which differ.
func newHandler() slog.Handler { return slog.NewTextHandler(os.Stdout, noTime) }

func Example() {
	logger := slog.New(grayslog.NewHandler(newHandler(), grayslog.WithService("order")))

	// In a handler the context is that of the inbound request.
	gray := graytag.NewContext(context.Background(), graytag.MustParse("uid=10086;version=v2.1.0"))
	untagged := graytag.NewContext(context.Background(), graytag.Tag{})

	logger.InfoContext(gray, "paid", "amount", 100)
	logger.InfoContext(untagged, "paid", "amount", 100)
	logger.WithGroup("db").InfoContext(gray, "slow", "ms", 250)
	logger.Info("no request is known")
	// Output:
	// level=INFO msg=paid amount=100 gray.version=v2.1.0
	// level=INFO msg=paid amount=100 gray.version=stable
	// level=INFO msg=slow gray.version=v2.1.0 db.ms=250
	// level=INFO msg="no request is known"
}

func ExampleWithTag() {
	logger := slog.New(grayslog.NewHandler(newHandler(), grayslog.WithTag()))
	ctx := graytag.NewContext(context.Background(), graytag.MustParse("uid=10086;channel=app;version=v2.1.0;version.order=v3"))
	logger.InfoContext(ctx, "paid")
	// Output:
	// level=INFO msg=paid gray.version=v2.1.0 gray.tag.channel=app gray.tag.uid=#9646f275 gray.tag.version=v2.1.0 gray.tag.version.order=v3
}
