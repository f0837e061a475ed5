package consultest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// EnvBinary names the consul binary to use instead of looking for one.
const EnvBinary = "GRAYLANE_CONSUL"

const (
	consulPackage = "github.com/hashicorp/consul"
	toolDir       = "internal/tools/consul"
)

// errNoTool says that there is no nested module to build from.
var errNoTool = errors.New("consultest: " + toolDir + " is absent")

// found keeps the binary of this process: finding it hashes files, and building
// it may take minutes.
var found struct {
	sync.Mutex
	path string
}

// binary returns the path of a consul binary, or ends the test.
func binary(t testing.TB) string {
	t.Helper()
	found.Lock()
	defer found.Unlock()
	if found.path != "" {
		return found.path
	}
	// Whatever takes longer than the test may should fail with a reason, not with
	// a stack trace of every goroutine.
	ctx := context.Background()
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if deadline, ok := d.Deadline(); ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline.Add(-5*time.Second))
			defer cancel()
		}
	}
	path, err := find(ctx)
	if errors.Is(err, errNoTool) {
		t.Skipf("%v, and neither %s nor PATH has a consul", err, EnvBinary)
	}
	if err != nil {
		t.Fatalf("consultest: no consul binary: %v", err)
	}
	found.path = path
	return path
}

func find(ctx context.Context) (string, error) {
	if path := os.Getenv(EnvBinary); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", EnvBinary, err)
		}
		return path, nil
	}
	if path, err := exec.LookPath("consul"); err == nil {
		return path, nil
	}
	dir, err := tool()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return build(ctx, dir, filepath.Join(cache, "graylane"))
}

// tool finds the nested module: above the working directory, which is that of the
// package under test, else beside this source file.
func tool() (string, error) {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		starts = append(starts, filepath.Dir(file))
	}
	for _, dir := range starts {
		for {
			candidate := filepath.Join(dir, filepath.FromSlash(toolDir))
			if _, err := os.Stat(filepath.Join(candidate, "go.mod")); err == nil {
				return candidate, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return "", errNoTool
}

// build builds consul from the module in dir into a folder of cache whose name
// holds the hash of that module, so that a change of it builds anew. Packages are
// tested in parallel processes: a file lock lets one of them build while the
// others wait, and the rename lets nobody see half a binary.
func build(ctx context.Context, dir, cache string) (string, error) {
	key, err := hash(filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum"))
	if err != nil {
		return "", err
	}
	out := filepath.Join(cache, "consul-"+key, "consul")
	if runtime.GOOS == "windows" {
		out += ".exe"
	}
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(cache, "consul-"+key+".lock"))
	if err != nil {
		return "", fmt.Errorf("waiting for the build of another process: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}

	tmp := fmt.Sprintf("%s.%d.tmp", out, os.Getpid())
	defer os.Remove(tmp)
	// No symbol table: nobody debugs it, and it is a third of the size.
	cmd := exec.CommandContext(ctx, "go", "build", "-C", dir, "-ldflags=-s -w", "-o", tmp, consulPackage)
	// The flags and the workspace of the caller are not meant for this module.
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off", "GOOS=", "GOARCH=")
	if output, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (the test's deadline came first; what was compiled is kept, run it again or with a larger -timeout)", err)
		}
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, tail(string(output), 20))
	}
	return out, os.Rename(tmp, out)
}

func hash(files ...string) (string, error) {
	h := sha256.New()
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		h.Write(data)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// tail returns the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
