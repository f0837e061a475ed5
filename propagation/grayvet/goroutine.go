package grayvet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// checkDetach reports goroutines of a handler that go on using the context of
// the request when the handler has returned, which ends that context. Where
// anything suggests that the handler waits for the goroutine, or that the
// goroutine is to end with the request, it says nothing.
func (c *checker) checkDetach(cur inspector.Cursor, stmt *ast.GoStmt) {
	fn, ok := innermost(cur)
	if !ok {
		return
	}
	params := c.handlerParams(fn.Node())
	if len(params) == 0 {
		return
	}
	use := c.keeps(cur, stmt, params)
	if use == nil || c.waits(fn, cur) {
		return
	}
	used := name(use)
	d := analysis.Diagnostic{
		Pos:      stmt.Pos(),
		End:      stmt.Call.Fun.End(),
		Category: CategoryDetach,
		Message: "the goroutine goes on using " + used + " when the handler has returned, which ends the context; use propagation.Detach" +
			", or wait for the goroutine",
	}
	if lit, ok := ast.Unparen(stmt.Call.Fun).(*ast.FuncLit); ok {
		d.End = lit.Type.End()
	}
	d.Related = []analysis.RelatedInformation{{Pos: use.Pos(), End: use.End(), Message: "it uses " + used + " here"}}
	if detach := c.detach(cur, use.Pos()); detach != "" && isContextType(c.typeOf(use)) && slices.Contains(stmt.Call.Args, use) {
		d.SuggestedFixes = []analysis.SuggestedFix{{
			Message:   "use " + detach + "(" + used + ")",
			TextEdits: []analysis.TextEdit{replace(use, detach+"("+used+")")},
		}}
	}
	c.report(cur, d)
}

// handlerParams returns the parameters that hold the context of a request, if
// fn has the shape of a handler: of HTTP, of a gRPC method or an interceptor.
func (c *checker) handlerParams(fn ast.Node) []*types.Var {
	var t *ast.FuncType
	switch fn := fn.(type) {
	case *ast.FuncDecl:
		t = fn.Type
	case *ast.FuncLit:
		t = fn.Type
	}
	var params []*types.Var
	for _, field := range t.Params.List {
		for _, id := range field.Names {
			if v, ok := c.info.Defs[id].(*types.Var); ok {
				params = append(params, v)
			}
		}
	}
	var isHandler bool
	switch {
	case len(params) == 2 && isNamed(params[0].Type(), httpPath, "ResponseWriter") && isRequestType(params[1].Type()):
		isHandler = true
	case len(params) == 2 && isContextType(params[0].Type()) && isMessage(params[1].Type()):
		isHandler = t.Results.NumFields() == 2
	case slices.ContainsFunc(params, func(v *types.Var) bool { return isNamedOrPointer(v.Type(), grpcPath, "UnaryServerInfo") }):
		isHandler = true
	case slices.ContainsFunc(params, func(v *types.Var) bool { return carrierOf(v.Type()) == isStream }):
		isHandler = true
	}
	if !isHandler {
		return nil
	}
	return slices.DeleteFunc(params, func(v *types.Var) bool { return !c.flow.params[v] })
}

// isMessage reports whether t is a protocol buffer.
func isMessage(t types.Type) bool {
	return hasMethods(t, "ProtoReflect") || hasMethods(t, "ProtoMessage")
}

// keeps returns the first use that the goroutine makes of a context of params,
// nil where it makes none that needs a context which has not ended.
func (c *checker) keeps(cur inspector.Cursor, stmt *ast.GoStmt, params []*types.Var) ast.Expr {
	of := func(e ast.Expr) bool {
		t := c.typeOf(e)
		if !isContextType(t) && !isRequestType(t) {
			return false
		}
		o := c.flow.origins(e)
		return o.fromParameter() && !o.cancel && slices.ContainsFunc(params, func(v *types.Var) bool { return slices.Contains(o.given, v) })
	}
	lit, _ := ast.Unparen(stmt.Call.Fun).(*ast.FuncLit)
	if lit == nil {
		if c.isHarmless(stmt.Call) {
			return nil
		}
		for _, arg := range stmt.Call.Args {
			if of(arg) {
				return arg
			}
		}
		return nil
	}
	var use ast.Expr
	for cur := range cur.Preorder((*ast.CallExpr)(nil)) {
		call := cur.Node().(*ast.CallExpr)
		if !contains(lit.Body, call) {
			continue // worked out before the goroutine starts
		}
		if c.asksForEnd(call) {
			return nil // it ends with the request
		}
		if use != nil || c.isHarmless(call) {
			continue
		}
		for _, arg := range call.Args {
			if use == nil && of(arg) {
				use = arg
			}
		}
	}
	return use
}

// harmless are the packages whose functions do not mind a context that has
// ended: they read its values, or make another context from it.
var harmless = []string{
	contextPath, graytagPath, propagationPath, otelPath,
	"log/slog", "runtime/pprof", "runtime/trace",
	"github.com/go-logr/logr", "github.com/rs/zerolog", "github.com/sirupsen/logrus", "go.uber.org/zap",
}

func (c *checker) isHarmless(call *ast.CallExpr) bool {
	if tv, ok := c.info.Types[call.Fun]; ok && (tv.IsType() || tv.IsBuiltin()) {
		return true // what is made of it is looked at where it is used
	}
	callee := typeutil.Callee(c.info, call)
	if f, ok := callee.(*types.Func); ok && isRequestMethod(f, "WithContext", "Clone") {
		return true
	}
	path := pathOf(callee)
	return slices.ContainsFunc(harmless, func(h string) bool { return path == h || strings.HasPrefix(path, h+"/") })
}

// waiting is what a function does, outside of the goroutines that it starts, by
// which it may wait for one of them.
type waiting struct {
	last     token.Pos             // of the last place where it waits
	deferred bool                  // it waits in a defer
	used     map[types.Object]bool // the variables that it uses
}

// waits reports whether anything in the handler suggests that it does not return
// before the goroutine has ended.
func (c *checker) waits(fn, goroutine inspector.Cursor) bool {
	w := c.waiting[fn.Node()]
	if w == nil {
		w = c.findWaiting(fn)
		c.waiting[fn.Node()] = w
	}
	if w.deferred || w.last > goroutine.Node().Pos() {
		return true
	}
	for v := range c.shared(fn.Node(), goroutine) {
		if w.used[v] {
			return true
		}
	}
	return false
}

func (c *checker) findWaiting(fn inspector.Cursor) *waiting {
	w := &waiting{used: map[types.Object]bool{}}
	fn.Inspect([]ast.Node{(*ast.GoStmt)(nil), (*ast.UnaryExpr)(nil), (*ast.RangeStmt)(nil), (*ast.ForStmt)(nil),
		(*ast.SelectStmt)(nil), (*ast.CallExpr)(nil), (*ast.Ident)(nil)}, func(cur inspector.Cursor) bool {
		var waits bool
		switch n := cur.Node().(type) {
		case *ast.GoStmt:
			return false
		case *ast.Ident:
			if v, ok := c.info.Uses[n].(*types.Var); ok && !isAdd(cur) {
				w.used[v] = true
			}
		case *ast.UnaryExpr:
			waits = n.Op == token.ARROW
		case *ast.RangeStmt:
			_, waits = c.typeOf(n.X).Underlying().(*types.Chan)
		case *ast.ForStmt:
			waits = n.Cond == nil // a loop of reads, say
		case *ast.SelectStmt:
			waits = len(n.Body.List) == 0
		case *ast.CallExpr:
			f := typeutil.Callee(c.info, n)
			waits = f != nil && (strings.HasPrefix(f.Name(), "Wait") || strings.HasPrefix(f.Name(), "wait"))
		}
		if waits {
			w.last = max(w.last, cur.Node().Pos())
			for range cur.Enclosing((*ast.DeferStmt)(nil)) {
				w.deferred = true
			}
		}
		return true
	})
	return w
}

// isAdd reports whether cur is the wg of wg.Add(1).
func isAdd(cur inspector.Cursor) bool {
	sel, ok := cur.Parent().Node().(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Add"
}

// shared returns the local variables of fn by which a goroutine that uses them
// may be waited for: channels, WaitGroups, and what can be closed.
func (c *checker) shared(fn ast.Node, goroutine inspector.Cursor) map[types.Object]bool {
	vars := map[types.Object]bool{}
	for cur := range goroutine.Preorder((*ast.Ident)(nil)) {
		v, ok := c.info.Uses[cur.Node().(*ast.Ident)].(*types.Var)
		if ok && fn.Pos() <= v.Pos() && v.Pos() < fn.End() && !c.flow.params[v] && isSync(v.Type(), 2) {
			vars[v] = true
		}
	}
	return vars
}

func isSync(t types.Type, depth int) bool {
	if isNamedOrPointer(t, "sync", "WaitGroup") || isNamedOrPointer(t, "sync", "Cond") ||
		isNamedOrPointer(t, "golang.org/x/sync/errgroup", "Group") || hasMethods(t, "Close") {
		return true
	}
	switch u := t.Underlying().(type) {
	case *types.Chan:
		return true
	case *types.Slice:
		return depth > 0 && isSync(u.Elem(), depth-1)
	case *types.Array:
		return depth > 0 && isSync(u.Elem(), depth-1)
	case *types.Map:
		return depth > 0 && isSync(u.Elem(), depth-1)
	}
	return false
}
