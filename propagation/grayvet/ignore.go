package grayvet

import (
	"bytes"
	"go/ast"
	"go/token"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ast/inspector"
)

const directive = "//grayvet:ignore"

// ignores are the lines of a file in which nothing is reported.
type ignores struct {
	lines map[int]bool
	bare  []*ast.Comment // give no reason
}

// ignoresOf reads the directives of file. One beside code counts for its line,
// one in a line of its own for the line after the comment.
func (c *checker) ignoresOf(file *ast.File) *ignores {
	if g := c.ignored[file]; g != nil {
		return g
	}
	g := &ignores{lines: map[int]bool{}}
	c.ignored[file] = g
	var source []byte
	for _, group := range file.Comments {
		for _, comment := range group.List {
			reason, ok := strings.CutPrefix(comment.Text, directive)
			if !ok || reason != "" && !strings.HasPrefix(reason, " ") && !strings.HasPrefix(reason, "\t") {
				continue
			}
			if strings.TrimSpace(reason) == "" {
				g.bare = append(g.bare, comment)
				continue
			}
			if source == nil {
				source, _ = c.pass.ReadFile(c.pass.Fset.File(comment.Pos()).Name())
			}
			g.lines[c.line(comment.Pos())] = true
			if c.standsAlone(source, comment) {
				g.lines[c.line(group.End())+1] = true
			}
		}
	}
	return g
}

func (c *checker) line(pos token.Pos) int { return c.pass.Fset.PositionFor(pos, false).Line }

func (c *checker) standsAlone(source []byte, comment *ast.Comment) bool {
	p := c.pass.Fset.PositionFor(comment.Pos(), false)
	if p.Offset > len(source) || p.Column < 1 || p.Column-1 > p.Offset {
		return false
	}
	return len(bytes.TrimSpace(source[p.Offset-(p.Column-1):p.Offset])) == 0
}

func (c *checker) checkIgnores(file *ast.File) {
	for _, comment := range c.ignoresOf(file).bare {
		c.pass.Report(analysis.Diagnostic{
			Pos:      comment.Pos(),
			End:      comment.End(),
			Category: CategoryIgnore,
			Message:  directive + " needs a reason, and silences nothing without",
		})
	}
}

// report reports d, which was found at cur, unless a directive silences the line
// of d, of cur or of what else d refers to.
func (c *checker) report(cur inspector.Cursor, d analysis.Diagnostic) {
	file := fileOf(cur)
	if file == nil {
		return
	}
	lines := c.ignoresOf(file).lines
	quiet := func(pos token.Pos) bool {
		return file.FileStart <= pos && pos <= file.FileEnd && lines[c.line(pos)]
	}
	if quiet(d.Pos) || quiet(cur.Node().Pos()) {
		return
	}
	for _, r := range d.Related {
		if quiet(r.Pos) {
			return
		}
	}
	c.pass.Report(d)
}
