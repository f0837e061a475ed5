//go:build unix && !solaris && !aix

package rollout_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rollout/rollouttest"
)

func TestFileElector(t *testing.T) {
	defer goleak.VerifyNone(t)
	rollouttest.Elector(t, func(t *testing.T) func(string) rollout.Elector {
		path := filepath.Join(t.TempDir(), "rules.json.leader")
		return func(id string) rollout.Elector { return rollout.NewFileElector(path, id) }
	})
}

// leadFile names the file by which TestFileElector_OtherProcess tells a process
// that it is to lead.
const leadFile = "GRAYLANE_TEST_LEAD_FILE"

// A leader in another process that is killed: the file says who leads while it
// lives, nobody afterwards, and the next one leads.
func TestFileElector_OtherProcess(t *testing.T) {
	if path := os.Getenv(leadFile); path != "" {
		_ = rollout.NewFileElector(path, "child").Lead(t.Context(), func(ctx context.Context) error {
			_, _ = os.Stdout.WriteString("leading\n")
			<-ctx.Done()
			return nil
		})
		return
	}
	path := filepath.Join(t.TempDir(), "rules.json.leader")
	child := exec.Command(os.Args[0], "-test.run=^TestFileElector_OtherProcess$")
	child.Env = append(os.Environ(), leadFile+"="+path)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	kill := func() { _ = child.Process.Kill() }
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "leading\n", line)

	e := rollout.NewFileElector(path, "parent")
	l, err := e.Leader(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "child", l.ID)
	waiting, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
	defer cancel()
	err = e.Lead(waiting, func(context.Context) error {
		t.Error("two processes lead")
		return nil
	})
	require.ErrorIs(t, err, context.DeadlineExceeded)

	kill()
	require.Error(t, child.Wait())
	l, err = e.Leader(t.Context())
	require.NoError(t, err)
	assert.Zero(t, l, "a file that its leader has left says nothing")
	require.NoError(t, e.Lead(t.Context(), func(ctx context.Context) error {
		l, err := e.Leader(ctx)
		assert.Equal(t, "parent", l.ID)
		return err
	}))
}

// A leader whose file is removed cannot know who else leads by now.
func TestFileElector_FileRemoved(t *testing.T) {
	defer goleak.VerifyNone(t)
	path := filepath.Join(t.TempDir(), "rules.json.leader")
	e := rollout.NewFileElector(path, "a")
	terms := 0
	done := errors.New("done")
	err := e.Lead(t.Context(), func(ctx context.Context) error {
		if terms++; terms == 2 {
			return done
		}
		require.NoError(t, os.Remove(path))
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), rollout.ErrLost)
		return errors.New("of no interest")
	})
	require.ErrorIs(t, err, done, "it leads again, with a new file")
	assert.Equal(t, 2, terms)
}

func TestFileElector_NoFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent", "rules.json.leader")
	e := rollout.NewFileElector(path, "a")
	err := e.Lead(t.Context(), func(context.Context) error { return nil })
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, path)
	l, err := e.Leader(t.Context())
	require.NoError(t, err)
	assert.Zero(t, l)
}
