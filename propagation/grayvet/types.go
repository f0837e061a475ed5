package grayvet

import (
	"go/ast"
	"go/types"
	"strings"
)

const (
	contextPath     = "context"
	httpPath        = "net/http"
	grpcPath        = "google.golang.org/grpc"
	metadataPath    = "google.golang.org/grpc/metadata"
	graytagPath     = "github.com/graylane/graylane/graytag"
	propagationPath = "github.com/graylane/graylane/propagation"
	otelPath        = "go.opentelemetry.io/otel"
)

// carrier says how a value holds a context.
type carrier int

const (
	carriesNothing carrier = iota
	isContext              // context.Context
	likeContext            // a type of somebody's that implements it
	isRequest              // *http.Request
	isStream               // the server's side of a gRPC stream
)

func carrierOf(t types.Type) carrier {
	switch {
	case t == nil:
		return carriesNothing
	case isNamed(t, contextPath, "Context"):
		return isContext
	case isRequestType(t):
		return isRequest
	case hasMethods(t, "Deadline", "Done", "Err", "Value"):
		return likeContext
	case hasMethods(t, "Context", "SetTrailer", "SendMsg", "RecvMsg"):
		return isStream
	}
	return carriesNothing
}

func isContextType(t types.Type) bool { return t != nil && isNamed(t, contextPath, "Context") }

func isRequestType(t types.Type) bool {
	p, ok := types.Unalias(t).(*types.Pointer)
	return ok && isNamed(p.Elem(), httpPath, "Request")
}

// isNamed reports whether t is the type name of the package path, whichever way
// it came here (vendored or not).
func isNamed(t types.Type, path, name string) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Name() == name && pathOf(n.Obj()) == path
}

// isNamedOrPointer is isNamed for t and for what it points to.
func isNamedOrPointer(t types.Type, path, name string) bool {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	return isNamed(t, path, name)
}

func hasMethods(t types.Type, names ...string) bool {
	switch types.Unalias(t).(type) {
	case *types.Named, *types.Pointer, *types.TypeParam, *types.Interface:
	default:
		return false
	}
	for _, name := range names {
		obj, _, _ := types.LookupFieldOrMethod(t, true, nil, name)
		if _, ok := obj.(*types.Func); !ok {
			return false
		}
	}
	return true
}

// pathOf returns the import path of the package of obj, "" for builtins.
func pathOf(obj types.Object) string {
	if obj == nil || obj.Pkg() == nil {
		return ""
	}
	path := obj.Pkg().Path()
	if _, after, ok := strings.Cut(path, "/vendor/"); ok {
		return after
	}
	return path
}

func receiver(f *types.Func) *types.Var {
	sig, ok := f.Type().(*types.Signature)
	if !ok {
		return nil
	}
	return sig.Recv()
}

// signature returns what is called, nil for a conversion, a builtin and what
// has no single signature.
func signature(info *types.Info, call *ast.CallExpr) *types.Signature {
	tv, ok := info.Types[call.Fun]
	if !ok || tv.IsType() || tv.IsBuiltin() || tv.Type == nil {
		return nil
	}
	sig, _ := tv.Type.Underlying().(*types.Signature)
	return sig
}

// contextArg returns the argument of call that is its context, nil where it
// has none.
func contextArg(sig *types.Signature, call *ast.CallExpr) ast.Expr {
	if sig == nil {
		return nil
	}
	params := sig.Params()
	for i := range params.Len() {
		if !isContextType(params.At(i).Type()) {
			continue
		}
		if i >= len(call.Args) || len(call.Args) == 1 && params.Len() > 1 && !sig.Variadic() {
			return nil // f(g()), where g returns all arguments at once
		}
		return call.Args[i]
	}
	return nil
}
