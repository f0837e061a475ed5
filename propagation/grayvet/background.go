package grayvet

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ast/inspector"
)

// checkBackground reports outgoing calls whose context was made from
// context.Background or context.TODO, although another one is at hand.
func (c *checker) checkBackground(cur inspector.Cursor, call *ast.CallExpr) {
	s, ok := c.sending(call)
	if !ok || s.level == sendsNothing {
		return
	}
	o := c.flow.origins(s.ctx)
	if !o.lost() {
		return
	}
	if s.puts && c.isInbound(call) {
		return
	}
	p, ok := c.place(cur)
	if !ok || s.level == maySend && (!p.goroutine || c.awaitsEnd(p.fn)) {
		return
	}

	// What is to be changed is where the context is made, if that is in sight.
	at, fn := ast.Node(s.ctx), p.fn
	root, ok := c.root.FindNode(o.root)
	if !ok {
		return
	}
	here := false
	if f, ok := innermost(root); ok {
		here = f.Node() == fn || contains(s.ctx, o.root)
		if lit, isLit := fn.(*ast.FuncLit); !here && isLit { // an argument of go func(…) { … }(…)
			lit, ok := c.root.FindNode(lit)
			if call, _ := invocation(lit); ok && call != nil {
				here = contains(call, o.root)
			}
		}
	}
	if here {
		at = o.root
	}
	if c.reported[at] {
		return
	}
	c.reported[at] = true

	h := c.hand(at.Pos())
	d := analysis.Diagnostic{Pos: at.Pos(), End: at.End(), Category: CategoryBackground}
	lost := name(o.root.Fun) + "()"
	switch {
	case p.goroutine:
		d.Category = CategoryGoroutine
		d.Message = "a goroutine calls " + s.callee + " with " + lost + ", which loses the gray tag of " + h.String() +
			"; use propagation.Detach(" + h.String() + ")"
	default:
		d.Message = s.callee + " is called with " + lost + ", which loses the gray tag of " + h.String() + "; use that"
		if p.deferred || c.awaitsEnd(p.fn) {
			d.Message += ", through context.WithoutCancel where it may have ended"
		}
	}
	if !contains(call, at) {
		d.Related = append(d.Related, analysis.RelatedInformation{Pos: call.Pos(), End: call.End(), Message: "the call"})
	}
	if at != ast.Node(o.root) {
		d.Related = append(d.Related, analysis.RelatedInformation{Pos: o.root.Pos(), End: o.root.End(), Message: "where the context is made"})
	}
	if here && h.sure && c.onlySends(s, o.root) {
		d.SuggestedFixes = c.fixBackground(root, o.root, p, h)
	}
	c.report(cur, d)
}

// isInbound reports whether the method call is one of the request that a handler
// serves. A copy of that one, with another context, is kept rather than sent.
func (c *checker) isInbound(call *ast.CallExpr) bool {
	sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok {
		return false
	}
	v := c.flow.variable(sel.X)
	if v == nil || !c.flow.params[v] {
		return false
	}
	fn, ok := c.functionOf(v)
	return ok && slices.Contains(c.handlerParams(fn), v)
}

func contains(outer, inner ast.Node) bool {
	return outer.Pos() <= inner.Pos() && inner.End() <= outer.End()
}

// onlySends reports whether the context made by root is used for outgoing calls
// and for nothing else, which may want one that does not end.
func (c *checker) onlySends(s sent, root *ast.CallExpr) bool {
	if contains(s.ctx, root) {
		return true
	}
	v := c.flow.variable(s.ctx)
	if v == nil || len(c.flow.assigned[v]) != 1 {
		return false
	}
	from := c.flow.assigned[v][0].expr
	return from != nil && contains(from, root) && c.uses(v) == c.outgoing[v]
}

func (c *checker) fixBackground(cur inspector.Cursor, root *ast.CallExpr, p place, h hand) []analysis.SuggestedFix {
	text := h.text
	switch {
	case p.goroutine:
		detach := c.detach(cur, root.Pos())
		if detach == "" {
			return nil
		}
		text = detach + "(" + text + ")"
	case !c.heldBy(h, p.fn):
		return nil
	case p.deferred || c.awaitsEnd(p.fn):
		sel, ok := ast.Unparen(root.Fun).(*ast.SelectorExpr)
		if !ok {
			return nil
		}
		text = name(sel.X) + ".WithoutCancel(" + text + ")"
	}
	return []analysis.SuggestedFix{{
		Message:   "use " + text,
		TextEdits: []analysis.TextEdit{replace(root, text)},
	}}
}

// uses returns how often the variable v is read.
func (c *checker) uses(v *types.Var) int {
	if c.used == nil {
		c.used = map[types.Object]int{}
		for _, obj := range c.info.Uses {
			c.used[obj]++
		}
	}
	return c.used[v]
}
