package grayvet

import (
	"go/ast"
	"go/types"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// level says whether a call sends the tag of its context out of the process.
type level int

const (
	sendsNothing level = iota
	maySend            // it hands the context to code of this module that cannot be seen: an interface, a function value
	sends
)

// callsOut is the fact that an exported function sends the tag of its context
// on, or may do so.
type callsOut struct{ Sure bool }

func (*callsOut) AFact() {}

func (f *callsOut) String() string {
	if f.Sure {
		return "callsOut"
	}
	return "mayCallOut"
}

// sent is a call that sends a tag.
type sent struct {
	level  level
	callee string      // for messages
	ctx    ast.Expr    // the context
	static *types.Func // a function of this package
	puts   bool        // it only puts the context into a request
}

// sending returns what call sends, and false where that is nothing.
func (c *checker) sending(call *ast.CallExpr) (sent, bool) {
	sig := signature(c.info, call)
	ctx := contextArg(sig, call)
	if ctx == nil {
		return sent{}, false
	}
	s := sent{level: sends, ctx: ctx, callee: name(call.Fun)}
	callee := typeutil.Callee(c.info, call)
	f, _ := callee.(*types.Func)
	switch {
	case f != nil && f.Name() == "NewRequestWithContext" && pathOf(f) == httpPath && receiver(f) == nil:
		return s, true
	case f != nil && isRequestMethod(f, "WithContext", "Clone"):
		s.puts = true
		return s, true
	case takesCallOptions(sig):
		return s, true
	case f != nil && f.Name() == "Inject" && receiver(f) != nil &&
		(pathOf(f) == propagationPath || pathOf(f) == otelPath+"/propagation"):
		return s, true
	}
	if f != nil && (receiver(f) == nil || !types.IsInterface(receiver(f).Type())) {
		if f = f.Origin(); !c.ours(f.Pkg()) {
			return sent{}, false
		}
		if f.Pkg() == c.pass.Pkg {
			s.static, s.level = f, c.level[f]
			return s, true
		}
		var fact callsOut
		switch {
		case !c.pass.ImportObjectFact(f, &fact):
			return sent{}, false
		case !fact.Sure:
			s.level = maySend
		}
		return s, true
	}
	if _, ok := ast.Unparen(call.Fun).(*ast.FuncLit); ok {
		return sent{}, false // what it does is seen
	}
	if callee != nil && callee.Pkg() != nil && !c.ours(callee.Pkg()) {
		return sent{}, false
	}
	s.level = maySend
	return s, true
}

// name is how messages call the function e.
func name(e ast.Expr) string {
	if s := types.ExprString(e); len(s) <= 60 && !strings.ContainsAny(s, "\n{") {
		return s
	}
	return "a function"
}

// takesCallOptions reports whether sig is that of a gRPC call: of a generated
// client's method, of grpc.ClientConn, of an interceptor's invoker or streamer.
func takesCallOptions(sig *types.Signature) bool {
	if !sig.Variadic() {
		return false
	}
	last, ok := sig.Params().At(sig.Params().Len() - 1).Type().(*types.Slice)
	return ok && isNamed(last.Elem(), grpcPath, "CallOption")
}

// ours reports whether p belongs to the module that is checked. Without modules
// that is the repository, or the first folder.
func (c *checker) ours(p *types.Package) bool {
	if p == nil || p == c.pass.Pkg {
		return p != nil
	}
	if m := c.pass.Module; m != nil && m.Path != "" {
		return p.Path() == m.Path || strings.HasPrefix(p.Path(), m.Path+"/")
	}
	return repository(p.Path()) == repository(c.pass.Pkg.Path())
}

func repository(path string) string {
	parts := strings.Split(path, "/")
	n := 1
	if strings.Contains(parts[0], ".") {
		n = min(3, len(parts))
	}
	return strings.Join(parts[:n], "/")
}

// findLevels finds out what each function of the package does with the context
// that it is given, through the functions of the package that it calls, and
// keeps that for the packages that import this one.
func (c *checker) findLevels() {
	callers := map[*types.Func][]*types.Func{}
	var raised []*types.Func
	raise := func(f *types.Func, l level) {
		if l > c.level[f] {
			c.level[f] = l
			raised = append(raised, f)
		}
	}
	for cur := range c.root.Preorder((*ast.FuncDecl)(nil)) {
		decl := cur.Node().(*ast.FuncDecl)
		f, ok := c.info.Defs[decl.Name].(*types.Func)
		if !ok || decl.Body == nil || !c.hasContextParam(f) {
			continue
		}
		for cur := range cur.Preorder((*ast.CallExpr)(nil)) {
			s, ok := c.sending(cur.Node().(*ast.CallExpr))
			switch {
			case !ok || s.puts || c.flow.origins(s.ctx).lost():
			case s.static != nil:
				callers[s.static] = append(callers[s.static], f)
			default:
				raise(f, s.level)
			}
		}
	}
	for len(raised) > 0 {
		f := raised[len(raised)-1]
		raised = raised[:len(raised)-1]
		for _, caller := range callers[f] {
			raise(caller, c.level[f])
		}
	}
	for f, l := range c.level {
		if f.Exported() {
			c.pass.ExportObjectFact(f, &callsOut{Sure: l == sends})
		}
	}
	for cur := range c.root.Preorder((*ast.CallExpr)(nil)) {
		if s, ok := c.sending(cur.Node().(*ast.CallExpr)); ok && s.level == sends {
			if v := c.flow.variable(s.ctx); v != nil {
				c.outgoing[v]++
			}
		}
	}
}

func (c *checker) hasContextParam(f *types.Func) bool {
	params := f.Type().(*types.Signature).Params()
	for i := range params.Len() {
		if isContextType(params.At(i).Type()) {
			return true
		}
	}
	return false
}
