// Package grayvet finds, before a program runs, where it loses the gray tag of a
// request. The tag travels in the context of the request: a call that is made
// with another context, or with none, is served by stable instances.
//
//	go install github.com/graylane/graylane/propagation/grayvet/cmd/grayvet@latest
//	go vet -vettool=$(which grayvet) ./...
//
// checks a module; grayvet ./... does the same without go vet, and takes a little
// longer. Both exit with a status other than 0 where something is reported. With
// -fix, both make the changes that are certain instead. [Analyzer] is for other
// drivers of golang.org/x/tools/go/analysis. This package is a module of its own: who
// imports graylane does not get x/tools.
//
// # What is looked at
//
// Functions that are given a context.Context, an *http.Request or the server's side
// of a gRPC stream as a parameter, and the function literals in them.
//
// # request
//
// An HTTP request that is made without the context at hand: http.NewRequest, http.Get,
// Head, Post and PostForm, and the methods of http.Client.
//
//	req, err := http.NewRequest(http.MethodGet, url, nil)                 // bad
//	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil) // good
//
// A request that is given its context later, by WithContext, Clone or a function that takes
// both, is not reported.
//
// # background
//
// A call that goes out with context.Background or context.TODO, or with a context made from
// them: gRPC calls, http.NewRequestWithContext, WithContext and Clone of a
// request, Inject of a propagator, and functions of the module that make such calls with the
// context that they are given.
//
//	client.Reserve(context.Background(), req)          // bad
//	client.Reserve(ctx, req)                           // good
//	client.Release(context.WithoutCancel(ctx), req)    // good: also when ctx has ended
//
// # goroutine
//
// The same in a goroutine. There, functions of the module that cannot be seen,
// those of an interface, count as well.
//
//	go s.audit(context.Background(), order)     // bad
//	go s.audit(propagation.Detach(ctx), order)  // good
//	propagation.Go(ctx, func(ctx context.Context) { s.audit(ctx, order) }) // good
//
// # detach
//
// A goroutine of a handler (HTTP, gRPC method, interceptor) that uses the context of
// the request, which ends when the handler returns: calls fail, now and then.
//
//	go s.audit(r.Context(), order)                     // bad
//	go s.audit(propagation.Detach(r.Context()), order) // good
//
// Not reported where anything suggests that the handler waits for the goroutine (a
// WaitGroup, a channel, a shared connection), or that the goroutine ends with the request
// (it looks at Done or Err, or its context is cancelled by the handler).
//
// # Silencing a report
//
// A comment with a reason, beside the line or above it:
//
//	//grayvet:ignore the licence server is not ours
//	resp, err := http.Get(licenceURL)
//
// Generated files are left out, and test files unless the flag -tests is given.
//
// # Limits
//
// The check prefers silence to a false report. It does not see a context in a field,
// method values (get := client.Get), a function value that is called
// later, nor a context that only some of the assignments to a variable lose. A change is
// offered where one context is in sight, in the function that makes the call, and, for
// Detach, where the file imports package propagation. The change of a
// background report makes the call end with the request, which it did not before.
package grayvet
