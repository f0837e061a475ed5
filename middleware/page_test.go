package middleware_test

import (
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// page returns the documentation of the package, parsed.
func page(t testing.TB) []comment.Block {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	require.NoError(t, err)
	var p comment.Parser
	return p.Parse((&ast.CommentGroup{List: f.Doc.List}).Text()).Content
}

func plain(text []comment.Text) string {
	var b strings.Builder
	for _, x := range text {
		switch x := x.(type) {
		case comment.Plain:
			b.WriteString(string(x))
		case comment.Italic:
			b.WriteString(string(x))
		case *comment.Link:
			b.WriteString(plain(x.Text))
		case *comment.DocLink:
			b.WriteString(plain(x.Text))
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// table returns the first preformatted text beneath a heading.
func table(t testing.TB, heading string) []string {
	t.Helper()
	at := ""
	for _, block := range page(t) {
		switch block := block.(type) {
		case *comment.Heading:
			at = plain(block.Text)
		case *comment.Code:
			if at == heading {
				return strings.Split(strings.TrimRight(block.Text, "\n"), "\n")
			}
		}
	}
	require.Fail(t, "no table", heading)
	return nil
}

// row is one cause of a symptom, as the page describes it. What a test looks for must
// stand there.
type row struct{ symptom, cause, text string }

// rows are all causes on the page, in order.
func rows(t testing.TB) (all []row) {
	t.Helper()
	at := ""
	for _, block := range page(t) {
		switch block := block.(type) {
		case *comment.Heading:
			at = plain(block.Text)
		case *comment.List:
			for _, item := range block.Items {
				text := plain(item.Content[0].(*comment.Paragraph).Text)
				cause, rest, ok := strings.Cut(text, ". ")
				require.True(t, ok, text)
				all = append(all, row{at, cause, rest})
			}
		}
	}
	return all
}

func (r row) names(t testing.TB, words ...string) {
	t.Helper()
	for _, w := range words {
		assert.Contains(t, r.text, w, "the page does not name the evidence")
	}
}

func (r row) namesSeries(t testing.TB, metric string, attrs []string) {
	t.Helper()
	r.names(t, metric)
	for i := 0; i < len(attrs); i += 2 {
		switch attrs[i] {
		case "service": // the one that is called, whatever its name
		case "site":
			r.names(t, "attribute site is the line of the program")
		default:
			r.names(t, attrs[i]+`="`+attrs[i+1]+`"`)
		}
	}
}

// counts finds a metric with attributes, given as key, value, key, value, at s.
func (r row) counts(t testing.TB, s *seen, metric string, attrs ...string) {
	t.Helper()
	r.namesSeries(t, metric, attrs)
	assert.NotZero(t, s.count(t, metric, attrs...), "%s %q: %v", metric, attrs, s.points(t))
}

// countsNot finds that there is no such metric at s.
func (r row) countsNot(t testing.TB, s *seen, metric string, attrs ...string) {
	t.Helper()
	r.namesSeries(t, metric, attrs)
	r.names(t, "no "+metric)
	assert.Zero(t, s.count(t, metric, attrs...), "%s %q", metric, attrs)
}

// logs finds the one line of s whose message holds text.
func (r row) logs(t testing.TB, s *seen, text string) map[string]any {
	t.Helper()
	r.names(t, text)
	found := s.log.with(t, text)
	require.Len(t, found, 1, text)
	return found[0]
}

// says finds text in what somebody was told.
func (r row) says(t testing.TB, told, text string) {
	t.Helper()
	r.names(t, text)
	assert.Contains(t, told, text)
}

// TestTroubleshooting produces each cause on the page, over real sockets, and finds
// the evidence that stands there.
func TestTroubleshooting(t *testing.T) {
	all := rows(t)
	for _, p := range produced {
		t.Run(p.symptom+"/"+p.cause, func(t *testing.T) {
			i := slices.IndexFunc(all, func(r row) bool { return r.symptom == p.symptom && r.cause == p.cause })
			require.GreaterOrEqual(t, i, 0, "the page has no such cause")
			p.produce(t, all[i])
		})
	}
}

// No cause stands on the page without a test, and none twice.
func TestEveryCauseIsProduced(t *testing.T) {
	var onPage, tested []string
	for _, r := range rows(t) {
		onPage = append(onPage, r.symptom+": "+r.cause)
	}
	for _, p := range produced {
		tested = append(tested, p.symptom+": "+p.cause)
	}
	assert.ElementsMatch(t, onPage, tested)
}
