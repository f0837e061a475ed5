package grayvet

import (
	"go/ast"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
)

// Analyzer reports the places of a package where a gray tag gets lost; the
// documentation of the package lists the checks. Its flag tests has it look into
// _test.go files as well. It needs facts of the packages that a package
// imports, which go vet and the drivers of x/tools hand on. It is safe for
// concurrent use on several packages, like every Analyzer.
var Analyzer = newAnalyzer()

// Categories of diagnostics, by which a driver can tell the checks apart.
const (
	CategoryRequest    = "request"    // an HTTP request that is made without the context at hand
	CategoryBackground = "background" // an outgoing call with context.Background or context.TODO
	CategoryGoroutine  = "goroutine"  // the same in a goroutine
	CategoryDetach     = "detach"     // a goroutine that uses the request's context after the handler
	CategoryIgnore     = "ignore"     // a grayvet:ignore that gives no reason
)

func newAnalyzer() *analysis.Analyzer {
	var tests bool
	a := &analysis.Analyzer{
		Name: "grayvet",
		Doc: `report calls that lose the gray tag of the request

Inside functions that are given a context.Context or an *http.Request, grayvet
reports HTTP requests made without that context, outgoing calls and goroutines
that use context.Background or context.TODO, and goroutines that go on using
the context of a request after its handler returned. A deliberate one is
silenced by a comment //grayvet:ignore and a reason.`,
		URL:       "https://pkg.go.dev/github.com/graylane/graylane/propagation/grayvet",
		Requires:  []*analysis.Analyzer{inspect.Analyzer},
		FactTypes: []analysis.Fact{(*callsOut)(nil)},
	}
	a.Flags.BoolVar(&tests, "tests", false, "report what is found in _test.go files, too")
	a.Run = func(pass *analysis.Pass) (any, error) {
		newChecker(pass).run(tests)
		return nil, nil
	}
	return a
}

// checker is one pass over one package.
type checker struct {
	pass *analysis.Pass
	info *types.Info
	root inspector.Cursor
	flow flow

	level    map[*types.Func]level  // what functions of this package do with their context
	attached map[types.Object]bool  // requests that get a context later
	outgoing map[*types.Var]int     // how often a variable is the context of an outgoing call
	used     map[types.Object]int   // how often it is used at all; filled when first asked for
	ignored  map[*ast.File]*ignores // by file, read when first asked for
	awaits   map[ast.Node]bool      // by function, see awaitsEnd
	waiting  map[ast.Node]*waiting  // by function, see waits
	carriers map[*types.Scope][]*types.Var
	reported map[ast.Node]bool // each origin of a lost context once
}

func newChecker(pass *analysis.Pass) *checker {
	root := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector).Root()
	return &checker{
		pass:     pass,
		info:     pass.TypesInfo,
		root:     root,
		flow:     newFlow(pass.TypesInfo, pass.Pkg, root),
		level:    map[*types.Func]level{},
		attached: map[types.Object]bool{},
		outgoing: map[*types.Var]int{},
		ignored:  map[*ast.File]*ignores{},
		awaits:   map[ast.Node]bool{},
		waiting:  map[ast.Node]*waiting{},
		carriers: map[*types.Scope][]*types.Var{},
		reported: map[ast.Node]bool{},
	}
}

func (c *checker) run(tests bool) {
	c.findLevels()
	c.findAttached()
	for file := range c.root.Children() {
		f, ok := file.Node().(*ast.File)
		if !ok || ast.IsGenerated(f) || !tests && c.isTest(f) {
			continue
		}
		c.checkIgnores(f)
		for cur := range file.Preorder((*ast.CallExpr)(nil), (*ast.GoStmt)(nil)) {
			switch n := cur.Node().(type) {
			case *ast.CallExpr:
				c.checkRequest(cur, n)
				c.checkBackground(cur, n)
			case *ast.GoStmt:
				c.checkDetach(cur, n)
			}
		}
	}
}

func (c *checker) isTest(f *ast.File) bool {
	tf := c.pass.Fset.File(f.FileStart)
	return tf != nil && strings.HasSuffix(tf.Name(), "_test.go")
}
