//go:build unix

package rule_test

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
)

// A pipe is no file: to open one waits for a writer, longer than any context.
func TestFileThatIsAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.json")
	require.NoError(t, syscall.Mkfifo(path, 0o644))
	s := rule.NewFileStore(path, rule.WithInterval(quick))
	assert.ErrorContains(t, next(t, events(t, s)).err, path)
	_, err := s.Put(context.Background(), rule.Document{Data: []byte("{}")}, 0)
	assert.ErrorContains(t, err, path)
}
