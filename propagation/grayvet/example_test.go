package grayvet_test

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/packages"

	"github.com/graylane/graylane/propagation/grayvet"
)

const handler = `package shop

import "net/http"

func order(w http.ResponseWriter, r *http.Request) {
	resp, err := http.Get("http://inventory/items/1")
	if err == nil {
		resp.Body.Close()
	}
}
`

// A driver of one's own. Most users run the command instead.
func Example() {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{"go.mod": "module example.com/shop\n", "order.go": handler} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			fmt.Println(err)
			return
		}
	}

	pkgs, err := packages.Load(&packages.Config{Mode: packages.LoadAllSyntax, Dir: dir}, ".")
	if err != nil {
		fmt.Println(err)
		return
	}
	graph, err := checker.Analyze([]*analysis.Analyzer{grayvet.Analyzer}, pkgs, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, action := range graph.Roots {
		for _, d := range action.Diagnostics {
			fmt.Printf("line %d, %s: %s\n", action.Package.Fset.Position(d.Pos).Line, d.Category, d.Message)
		}
	}
	// Output:
	// line 6, request: http.Get makes a request without r.Context(), which loses the gray tag; make it with http.NewRequestWithContext(r.Context(), …) and Do
}
