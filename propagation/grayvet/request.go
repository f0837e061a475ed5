package grayvet

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// makesRequest reports whether f makes an HTTP request with no context: the
// functions of net/http and the methods of its Client.
func makesRequest(f *types.Func) bool {
	if pathOf(f) != httpPath {
		return false
	}
	r := receiver(f)
	switch f.Name() {
	case "NewRequest":
		return r == nil
	case "Get", "Head", "Post", "PostForm":
		return r == nil || isNamedOrPointer(r.Type(), httpPath, "Client")
	}
	return false
}

// checkRequest reports requests that are made without the context at hand.
func (c *checker) checkRequest(cur inspector.Cursor, call *ast.CallExpr) {
	f := typeutil.StaticCallee(c.info, call)
	if f == nil || !makesRequest(f) {
		return
	}
	p, ok := c.place(cur)
	if !ok || f.Name() == "NewRequest" && c.getsContextLater(cur) {
		return
	}
	h := c.hand(call.Pos())
	want := h.String()
	if p.goroutine {
		want = "propagation.Detach(" + want + ")"
	}
	d := analysis.Diagnostic{
		Pos:      call.Pos(),
		End:      call.End(),
		Category: CategoryRequest,
		Message:  name(call.Fun) + " makes a request without " + h.String() + ", which loses the gray tag; ",
	}
	if f.Name() == "NewRequest" {
		d.Message += "use http.NewRequestWithContext(" + want + ", …)"
		d.SuggestedFixes = c.fixRequest(cur, call, p, h)
	} else {
		d.Message += "make it with http.NewRequestWithContext(" + want + ", …) and Do"
	}
	c.report(cur, d)
}

func (c *checker) fixRequest(cur inspector.Cursor, call *ast.CallExpr, p place, h hand) []analysis.SuggestedFix {
	if len(call.Args) != 3 || !h.sure || p.deferred {
		return nil
	}
	text := h.text
	switch {
	case p.goroutine:
		detach := c.detach(cur, call.Pos())
		if detach == "" {
			return nil
		}
		text = detach + "(" + text + ")"
	case !c.heldBy(h, p.fn) || c.awaitsEnd(p.fn):
		return nil
	}
	var id *ast.Ident
	switch fun := ast.Unparen(call.Fun).(type) {
	case *ast.SelectorExpr:
		id = fun.Sel
	case *ast.Ident: // a dot import
		id = fun
		scope := c.pass.Pkg.Scope().Innermost(call.Pos())
		if scope == nil {
			return nil
		}
		if _, f := scope.LookupParent("NewRequestWithContext", call.Pos()); pathOf(f) != httpPath {
			return nil
		}
	default:
		return nil
	}
	return []analysis.SuggestedFix{{
		Message: "make the request with " + text,
		TextEdits: []analysis.TextEdit{
			replace(id, "NewRequestWithContext"),
			{Pos: call.Args[0].Pos(), End: call.Args[0].Pos(), NewText: []byte(text + ", ")},
		},
	}}
}

// findAttached finds the requests that are given a context after they were
// made: by WithContext or Clone, or by a function that takes both.
func (c *checker) findAttached() {
	for cur := range c.root.Preorder((*ast.CallExpr)(nil)) {
		call := cur.Node().(*ast.CallExpr)
		if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
			if f, ok := c.info.Uses[sel.Sel].(*types.Func); ok && isRequestMethod(f, "WithContext", "Clone") {
				c.attached[c.object(sel.X)] = true
				continue
			}
		}
		if !c.takesContext(call) {
			continue
		}
		for _, arg := range call.Args {
			ast.Inspect(arg, func(n ast.Node) bool {
				if e, ok := n.(ast.Expr); ok && isRequestType(c.typeOf(e)) {
					c.attached[c.object(e)] = true
				}
				_, lit := n.(*ast.FuncLit)
				return !lit
			})
		}
	}
	delete(c.attached, nil)
}

// takesContext reports whether one of the arguments of call is a context that
// may hold a tag.
func (c *checker) takesContext(call *ast.CallExpr) bool {
	for _, arg := range call.Args {
		if isContextType(c.typeOf(arg)) && !c.flow.origins(arg).lost() {
			return true
		}
	}
	return false
}

// typeOf is the type of e; a types.Info knows none of some identifiers.
func (c *checker) typeOf(e ast.Expr) types.Type {
	t := c.info.TypeOf(e)
	if t == nil {
		return types.Typ[types.Invalid]
	}
	return t
}

// object returns the variable or field that e names, nil for all else.
func (c *checker) object(e ast.Expr) types.Object {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return c.info.ObjectOf(e)
	case *ast.SelectorExpr:
		return c.info.ObjectOf(e.Sel)
	}
	return nil
}

// getsContextLater reports whether the request that is made at cur is given a
// context afterwards, or by the function that it is an argument of.
func (c *checker) getsContextLater(cur inspector.Cursor) bool {
	for {
		cur = skipParens(cur)
		parent := cur.Parent().Node()
		switch cur.ParentEdgeKind() {
		case edge.CallExpr_Args: // must(http.NewRequest(…))
			if c.takesContext(parent.(*ast.CallExpr)) {
				return true
			}
			cur = cur.Parent()
			continue
		case edge.AssignStmt_Rhs:
			s := parent.(*ast.AssignStmt)
			return c.attached[c.object(s.Lhs[0])]
		case edge.ValueSpec_Values:
			s := parent.(*ast.ValueSpec)
			return c.attached[c.info.Defs[s.Names[0]]]
		case edge.SelectorExpr_X: // must(http.NewRequest(…)).WithContext(ctx)
			f, ok := c.info.Uses[parent.(*ast.SelectorExpr).Sel].(*types.Func)
			return ok && isRequestMethod(f, "WithContext", "Clone")
		}
		return false
	}
}
