package readme_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
)

// trimmed returns the lines of s without their common indentation.
func trimmed(s string) string {
	var out []string
	for _, line := range strings.Split(strings.Trim(s, "\n"), "\n") {
		out = append(out, strings.TrimPrefix(line, "\t\t"))
	}
	return strings.TrimSpace(strings.Join(out, "\n"))
}

// TestTheCodeOfTheReadmeIsTheCodeThatRuns compares each block between
// "// README: name" and "// README: end" with the README, which must hold it as
// it stands, and finds blocks of the README that no Example runs.
func TestTheCodeOfTheReadmeIsTheCodeThatRuns(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)

	run := map[string]bool{}
	for _, part := range strings.Split(string(source), "// README: ")[1:] {
		name, code, _ := strings.Cut(part, "\n")
		if name == "end" {
			continue
		}
		block := trimmed(code)
		run[block] = true
		assert.Contains(t, string(readme), "```go\n"+block+"\n```", "the part on %s", name)
	}
	require.Len(t, run, 6)
	for _, part := range strings.Split(string(readme), "```go\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		assert.True(t, run[block], "no Example runs:\n%s", block)
	}
}

// TestTheReadmeNamesItsTwoCommands: the commands that continuous integration
// takes from the README must stand there.
func TestTheReadmeNamesItsTwoCommands(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	assert.Contains(t, string(readme), "\n    go run ./examples/quickstart")
	assert.Contains(t, string(readme), "\n    go test ./...")
}

// TestTheRuleSetOfTheReadmeIsGood: what stands there is what people paste.
func TestTheRuleSetOfTheReadmeIsGood(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	_, after, ok := strings.Cut(string(readme), "```json\n")
	require.True(t, ok)
	document, _, _ := strings.Cut(after, "\n```")
	set, err := rule.Parse([]byte(document))
	require.NoError(t, err)
	assert.Empty(t, rule.Lint(set, nil))
}
