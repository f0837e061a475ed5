package grayvet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strconv"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
)

// place is where a call stands.
type place struct {
	fn        ast.Node // the innermost function
	goroutine bool     // in a goroutine of a function that has a context
	deferred  bool
	unnamed   bool // the function has a context, but no name for it
}

// place returns where cur stands, and false where no function around it is
// given a context.
func (c *checker) place(cur inspector.Cursor) (place, bool) {
	var p place
	p.enter(cur.Parent().Node())
	for cur = cur.Parent(); cur.Valid() && cur.Node() != nil; cur = cur.Parent() {
		switch n := cur.Node().(type) {
		case *ast.FuncDecl:
			if p.fn == nil {
				p.fn = n
			}
			has, named := c.givesContext(n.Type)
			p.unnamed = has && !named
			return p, has
		case *ast.FuncLit:
			if p.fn == nil {
				p.fn = n
			}
			if has, named := c.givesContext(n.Type); has {
				p.unnamed = !named
				return p, true
			}
			_, stmt := invocation(cur)
			p.enter(stmt)
		}
	}
	return p, false
}

func (p *place) enter(stmt ast.Node) {
	switch stmt.(type) {
	case *ast.GoStmt:
		p.goroutine = true
	case *ast.DeferStmt:
		p.deferred = true
	}
}

// givesContext reports whether a function of type t is given a context, and
// whether it has a name for it.
func (c *checker) givesContext(t *ast.FuncType) (has, named bool) {
	for _, field := range t.Params.List {
		if carrierOf(c.info.TypeOf(field.Type)) == carriesNothing {
			continue
		}
		if len(field.Names) == 0 {
			has = true
		}
		for _, id := range field.Names {
			if c.flow.origins(id).lost() {
				continue // func(ctx context.Context) { … }(context.Background())
			}
			has = true
			named = named || id.Name != "_"
		}
	}
	return has, named
}

// hand is the context at hand at some position.
type hand struct {
	v    *types.Var
	text string // the expression of that context; "" where none is in sight
	sure bool   // nothing else could be meant
}

func (h hand) String() string {
	if h.text == "" {
		return "the context of this function"
	}
	return h.text
}

// hand returns the context that is at hand at pos.
func (c *checker) hand(pos token.Pos) hand {
	innermost := c.pass.Pkg.Scope().Innermost(pos)
	var contexts, others []hand
	for s := innermost; s != nil && s != c.pass.Pkg.Scope() && s.Parent() != c.pass.Pkg.Scope(); s = s.Parent() {
		for _, v := range c.carriersOf(s) {
			name, kind := v.Name(), carrierOf(v.Type())
			if _, seen := innermost.LookupParent(name, pos); seen != v || !c.flow.originsOf(v).fromParameter() {
				continue
			}
			if kind == isContext {
				contexts = append(contexts, hand{v: v, text: name})
			} else {
				others = append(others, hand{v: v, text: name + ".Context()"})
			}
		}
	}
	latestFirst := func(a, b hand) int { return int(b.v.Pos()) - int(a.v.Pos()) }
	slices.SortFunc(contexts, latestFirst)
	slices.SortFunc(others, latestFirst)
	switch {
	case len(contexts) > 0:
		h := contexts[0]
		// Beside a request, the context is that of the request or another one.
		h.sure = len(contexts) == 1 && (len(others) == 0 || !c.flow.params[h.v])
		return h
	case len(others) > 0:
		h := others[0]
		h.sure = len(others) == 1
		return h
	}
	return hand{}
}

// carriersOf returns the variables of s, and not of the scopes around it, that
// hold a context.
func (c *checker) carriersOf(s *types.Scope) []*types.Var {
	vars, ok := c.carriers[s]
	if ok {
		return vars
	}
	for _, name := range s.Names() {
		v, ok := s.Lookup(name).(*types.Var)
		if !ok || name == "_" {
			continue
		}
		if kind := carrierOf(v.Type()); kind == isContext || c.flow.params[v] && (kind == isRequest || kind == isStream) {
			vars = append(vars, v)
		}
	}
	c.carriers[s] = vars
	return vars
}

// heldBy reports whether the context is a variable of fn itself, and not of a
// function around it, which may have ended when fn runs.
func (c *checker) heldBy(h hand, fn ast.Node) bool {
	if h.v == nil {
		return false
	}
	owner, ok := c.functionOf(h.v)
	return ok && owner == fn
}

// functionOf returns the function whose parameter or variable v is.
func (c *checker) functionOf(v *types.Var) (ast.Node, bool) {
	cur, ok := c.root.FindByPos(v.Pos(), v.Pos())
	if !ok {
		return nil, false
	}
	for fn := range cur.Enclosing((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		return fn.Node(), true
	}
	return nil, false
}

// awaitsEnd reports whether fn asks whether its context has ended: what it does
// then needs another one.
func (c *checker) awaitsEnd(fn ast.Node) bool {
	asks, ok := c.awaits[fn]
	if ok {
		return asks
	}
	cur, ok := c.root.FindNode(fn)
	if !ok {
		return true
	}
	for cur := range cur.Preorder((*ast.CallExpr)(nil)) {
		if c.asksForEnd(cur.Node().(*ast.CallExpr)) {
			asks = true
			break
		}
	}
	c.awaits[fn] = asks
	return asks
}

func (c *checker) asksForEnd(call *ast.CallExpr) bool {
	sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok {
		return false
	}
	switch sel.Sel.Name {
	case "Done", "Err":
		return isContextType(c.info.TypeOf(sel.X))
	case "Cause", "AfterFunc":
		f, ok := c.info.Uses[sel.Sel].(*types.Func)
		return ok && pathOf(f) == contextPath
	}
	return false
}

// detach returns the name of propagation.Detach at pos, "" where the file does
// not import that package.
func (c *checker) detach(cur inspector.Cursor, pos token.Pos) string {
	file := fileOf(cur)
	scope := c.pass.Pkg.Scope().Innermost(pos)
	if file == nil || scope == nil {
		return ""
	}
	for _, spec := range file.Imports {
		if path, err := strconv.Unquote(spec.Path.Value); err != nil || path != propagationPath {
			continue
		}
		if spec.Name != nil && spec.Name.Name == "." {
			if _, f := scope.LookupParent("Detach", pos); f != nil && pathOf(f) == propagationPath {
				return "Detach"
			}
			continue
		}
		pkg := c.info.PkgNameOf(spec)
		if pkg == nil {
			continue
		}
		if _, seen := scope.LookupParent(pkg.Name(), pos); seen == pkg {
			return pkg.Name() + ".Detach"
		}
	}
	return ""
}

func fileOf(cur inspector.Cursor) *ast.File {
	for file := range cur.Enclosing((*ast.File)(nil)) {
		return file.Node().(*ast.File)
	}
	return nil
}

// innermost returns the function around cur.
func innermost(cur inspector.Cursor) (inspector.Cursor, bool) {
	for fn := range cur.Parent().Enclosing((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		return fn, true
	}
	return inspector.Cursor{}, false
}

// skipParens returns the outermost of the parentheses around cur, or cur.
func skipParens(cur inspector.Cursor) inspector.Cursor {
	for cur.ParentEdgeKind() == edge.ParenExpr_X {
		cur = cur.Parent()
	}
	return cur
}

func replace(n ast.Node, text string) analysis.TextEdit {
	return analysis.TextEdit{Pos: n.Pos(), End: n.End(), NewText: []byte(text)}
}
