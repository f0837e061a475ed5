package grayvet

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// flow knows where the contexts of a package come from. It looks at every
// assignment to a variable and at none of their order: a context is only called
// lost where nothing else was ever assigned.
type flow struct {
	info     *types.Info
	pkg      *types.Package
	params   map[*types.Var]bool // contexts, requests and streams that a function is given
	assigned map[*types.Var][]value
	known    map[*types.Var]origins
}

// value is result index of expr; a nil expr is a value that nothing is known of.
type value struct {
	expr  ast.Expr
	index int
}

// origins is all that a context may have been made from.
type origins struct {
	root   *ast.CallExpr // a call of context.Background or context.TODO
	given  []*types.Var  // contexts, requests and streams that a function was given
	cancel bool          // context.WithCancel lies between
	other  bool          // a deliberate or unknown context
}

// lost reports whether it is certain that no request's values are in it.
func (o origins) lost() bool { return o.root != nil && len(o.given) == 0 && !o.other }

// fromParameter reports whether it is certain that it is a context which a
// function was given, with its deadline and its end.
func (o origins) fromParameter() bool { return len(o.given) > 0 && o.root == nil && !o.other }

func newFlow(info *types.Info, pkg *types.Package, root inspector.Cursor) flow {
	f := flow{
		info:     info,
		pkg:      pkg,
		params:   map[*types.Var]bool{},
		assigned: map[*types.Var][]value{},
		known:    map[*types.Var]origins{},
	}
	for cur := range root.Preorder((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil), (*ast.AssignStmt)(nil),
		(*ast.ValueSpec)(nil), (*ast.RangeStmt)(nil), (*ast.UnaryExpr)(nil)) {
		switch n := cur.Node().(type) {
		case *ast.FuncDecl:
			f.addParams(n.Type, nil)
		case *ast.FuncLit:
			call, _ := invocation(cur)
			f.addParams(n.Type, call)
		case *ast.AssignStmt:
			f.assign(n.Lhs, n.Rhs)
		case *ast.ValueSpec:
			lhs := make([]ast.Expr, len(n.Names))
			for i, name := range n.Names {
				lhs[i] = name
			}
			f.assign(lhs, n.Values)
		case *ast.RangeStmt:
			f.assignUnknown(n.Key)
			f.assignUnknown(n.Value)
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				f.assignUnknown(n.X)
			}
		}
	}
	return f
}

// invocation returns the call of a function literal that is called where it
// stands, and the statement of a go or defer that does so.
func invocation(lit inspector.Cursor) (call *ast.CallExpr, stmt ast.Stmt) {
	cur := lit
	for cur.ParentEdgeKind() == edge.ParenExpr_X {
		cur = cur.Parent()
	}
	if cur.ParentEdgeKind() != edge.CallExpr_Fun {
		return nil, nil
	}
	cur = cur.Parent()
	call, _ = cur.Node().(*ast.CallExpr)
	switch s := cur.Parent().Node().(type) {
	case *ast.GoStmt:
		return call, s
	case *ast.DeferStmt:
		return call, s
	}
	return call, nil
}

// addParams takes in the parameters of a function. Those of a literal that is
// called where it stands are variables, which the arguments are assigned to.
func (f *flow) addParams(t *ast.FuncType, call *ast.CallExpr) {
	i := 0
	for _, field := range t.Params.List {
		for _, name := range field.Names {
			v, ok := f.info.Defs[name].(*types.Var)
			switch {
			case !ok || carrierOf(v.Type()) == carriesNothing:
			case call == nil:
				f.params[v] = true
			case i < len(call.Args) && !f.isTuple(call.Args[i]):
				f.assigned[v] = append(f.assigned[v], value{call.Args[i], 0})
			default:
				f.assigned[v] = append(f.assigned[v], value{})
			}
			i++
		}
		if len(field.Names) == 0 {
			i++
		}
	}
	if t.Results == nil {
		return
	}
	for _, field := range t.Results.List {
		for _, name := range field.Names { // set by a return, which is not followed
			f.assignUnknown(name)
		}
	}
}

func (f *flow) isTuple(e ast.Expr) bool {
	_, ok := f.info.TypeOf(e).(*types.Tuple)
	return ok
}

func (f *flow) assign(lhs, rhs []ast.Expr) {
	for i, l := range lhs {
		v := f.variable(l)
		if v == nil || carrierOf(v.Type()) == carriesNothing {
			continue
		}
		switch {
		case len(lhs) == len(rhs):
			f.assigned[v] = append(f.assigned[v], value{rhs[i], 0})
		case len(rhs) == 1:
			f.assigned[v] = append(f.assigned[v], value{rhs[0], i})
		}
	}
}

func (f *flow) assignUnknown(e ast.Expr) {
	if v := f.variable(e); v != nil {
		f.assigned[v] = append(f.assigned[v], value{})
	}
}

// variable returns the variable that e names, nil for a field and all else.
func (f *flow) variable(e ast.Expr) *types.Var {
	if e == nil {
		return nil
	}
	id, ok := ast.Unparen(e).(*ast.Ident)
	if !ok {
		return nil
	}
	v, _ := f.info.ObjectOf(id).(*types.Var)
	return v
}

// origins returns where the context, request or stream e comes from.
func (f *flow) origins(e ast.Expr) origins {
	v := f.variable(e)
	if v != nil {
		if o, ok := f.known[v]; ok {
			return o
		}
	}
	w := walk{flow: f, seen: map[visit]bool{}}
	w.value(value{e, 0}, false)
	if v != nil {
		f.known[v] = w.origins
	}
	return w.origins
}

// walk follows the assignments back to the origins.
type walk struct {
	*flow
	origins
	seen map[visit]bool
}

// visit is a variable, and whether something of a request is put into what is
// made from it.
type visit struct {
	v       *types.Var
	carried bool
}

func (w *walk) value(x value, carried bool) {
	if x.expr == nil {
		w.other = true
		return
	}
	switch e := ast.Unparen(x.expr).(type) {
	case *ast.Ident:
		if v, ok := w.info.ObjectOf(e).(*types.Var); ok {
			w.variable(v, carried)
			return
		}
	case *ast.TypeAssertExpr:
		w.value(value{e.X, 0}, carried)
		return
	case *ast.CallExpr:
		w.call(e, x.index, carried)
		return
	}
	w.other = true
}

func (w *walk) variable(v *types.Var, carried bool) {
	if w.seen[visit{v, carried}] {
		return
	}
	w.seen[visit{v, carried}] = true
	if o, ok := w.known[v]; ok {
		w.merge(o, carried)
		return
	}
	given := w.params[v]
	if given {
		w.given = append(w.given, v)
	}
	// Another package may assign to an exported variable.
	global := v.Pkg() != nil && v.Parent() == v.Pkg().Scope()
	if len(w.assigned[v]) == 0 && !given || global && (v.Exported() || v.Pkg() != w.pkg) {
		w.other = true
	}
	for _, x := range w.assigned[v] {
		w.value(x, carried)
	}
}

// merge takes in what is known of a variable on the way.
func (w *walk) merge(o origins, carried bool) {
	w.given = append(w.given, o.given...)
	w.cancel = w.cancel || o.cancel
	w.other = w.other || o.other || carried && o.root != nil
	if w.root == nil && !carried {
		w.root = o.root
	}
}

func (w *walk) call(call *ast.CallExpr, index int, carried bool) {
	if tv, ok := w.info.Types[call.Fun]; ok && tv.IsType() && len(call.Args) == 1 {
		w.value(value{call.Args[0], 0}, carried) // a conversion
		return
	}
	f, ok := typeutil.Callee(w.info, call).(*types.Func)
	if !ok {
		w.other = true
		return
	}
	sel, isSel := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	method := isSel && w.info.Selections[sel] != nil && w.info.Selections[sel].Kind() == types.MethodVal
	name := pathOf(f) + "." + f.Name()
	switch {
	case receiver(f) != nil && !method:
		w.other = true // a method expression
	case name == "context.Background" || name == "context.TODO":
		if carried {
			w.other = true
		} else if w.root == nil {
			w.root = call
		}
	case method && f.Name() == "Context" && len(call.Args) == 0:
		switch carrierOf(w.info.TypeOf(sel.X)) {
		case isRequest, isStream:
			w.value(value{sel.X, 0}, carried)
		default:
			w.other = true
		}
	case method && isRequestMethod(f, "WithContext", "Clone") && len(call.Args) == 1:
		w.value(value{call.Args[0], 0}, carried)
	case derives[name].from(index) && len(call.Args) > 0 && !w.isTuple(call.Args[0]):
		d := derives[name]
		w.cancel = w.cancel || d.cancel
		w.value(value{call.Args[0], 0}, carried || d.carries || name == appendToOutgoing && w.appendsTag(call))
	default:
		w.other = true
	}
}

// derive describes a function that makes a context from its first argument.
type derive struct {
	result  int  // which of the results it is
	ok      bool // tells it from the zero value
	carries bool // it puts something of a request in
	cancel  bool // the new context ends earlier, when the caller says so
}

func (d derive) from(index int) bool { return d.ok && d.result == index }

const appendToOutgoing = metadataPath + ".AppendToOutgoingContext"

var derives = map[string]derive{
	"context.WithCancel":                             {ok: true, cancel: true},
	"context.WithCancelCause":                        {ok: true, cancel: true},
	"context.WithTimeout":                            {ok: true},
	"context.WithTimeoutCause":                       {ok: true},
	"context.WithDeadline":                           {ok: true},
	"context.WithDeadlineCause":                      {ok: true},
	"context.WithValue":                              {ok: true},
	"os/signal.NotifyContext":                        {ok: true},
	"runtime/pprof.WithLabels":                       {ok: true},
	"runtime/trace.NewTask":                          {ok: true},
	"golang.org/x/sync/errgroup.WithContext":         {ok: true, result: 1},
	"net/http.NewRequestWithContext":                 {ok: true},
	otelPath + "/trace.Start":                        {ok: true},
	appendToOutgoing:                                 {ok: true},
	metadataPath + ".NewOutgoingContext":             {ok: true, carries: true},
	metadataPath + ".NewIncomingContext":             {ok: true, carries: true},
	graytagPath + ".NewContext":                      {ok: true, carries: true},
	otelPath + "/baggage.ContextWithBaggage":         {ok: true, carries: true},
	otelPath + "/trace.ContextWithSpan":              {ok: true, carries: true},
	otelPath + "/trace.ContextWithSpanContext":       {ok: true, carries: true},
	otelPath + "/trace.ContextWithRemoteSpanContext": {ok: true, carries: true},
}

// appendsTag reports whether the keys that call appends may be those of a tag.
func (w *walk) appendsTag(call *ast.CallExpr) bool {
	if call.Ellipsis.IsValid() {
		return true
	}
	for i := 1; i < len(call.Args); i += 2 {
		tv := w.info.Types[call.Args[i]]
		if tv.Value == nil || tv.Value.Kind() != constant.String {
			return true
		}
		switch strings.ToLower(constant.StringVal(tv.Value)) {
		case "x-gray-tag", "baggage":
			return true
		}
	}
	return false
}

func isRequestMethod(f *types.Func, names ...string) bool {
	r := receiver(f)
	if r == nil || !isRequestType(r.Type()) {
		return false
	}
	for _, n := range names {
		if f.Name() == n {
			return true
		}
	}
	return false
}

// originsOf is origins for a variable.
func (f *flow) originsOf(v *types.Var) origins {
	o, ok := f.known[v]
	if !ok {
		w := walk{flow: f, seen: map[visit]bool{}}
		w.variable(v, false)
		o = w.origins
		f.known[v] = o
	}
	return o
}
