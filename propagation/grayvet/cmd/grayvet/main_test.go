package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const shop = `package main

import (
	"context"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/graylane/graylane/propagation"
)

var conn *grpc.ClientConn

func handle(w http.ResponseWriter, r *http.Request) {
	req, err := http.NewRequest(http.MethodGet, "http://inventory/", nil)
	if err != nil {
		return
	}
	_, _ = http.DefaultClient.Do(req)
	health := grpc_health_v1.NewHealthClient(conn)
	_, _ = health.Check(context.Background(), nil)
	go audit(context.Background())
	go audit(r.Context())
	propagation.Go(r.Context(), audit)
	go audit(propagation.Detach(r.Context()))
}

func audit(ctx context.Context) {
	_, _ = grpc_health_v1.NewHealthClient(conn).Check(ctx, nil)
}

func main() { http.HandleFunc("/", handle) }
`

const shopTest = `package main

import (
	"net/http"
	"testing"
)

func TestHandle(t *testing.T) {
	http.HandleFunc("/test", func(w http.ResponseWriter, r *http.Request) { _, _ = http.Get("http://inventory/") })
}
`

// module writes a module that depends on graylane and gRPC as they are.
func module(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", "..", "..", ".."))
	require.NoError(t, err)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	mod = regexp.MustCompile(`(?m)^module .*$`).ReplaceAll(mod, []byte("module example.com/shop"))
	mod = append(mod, "\nrequire github.com/graylane/graylane v0.0.0\nreplace github.com/graylane/graylane => "+filepath.ToSlash(root)+"\n"...)
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	dir := t.TempDir()
	for name, data := range map[string][]byte{"go.mod": mod, "go.sum": sum, "main.go": []byte(shop), "main_test.go": []byte(shopTest)} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return dir
}

func run(t *testing.T, dir string, command ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestGoVetAndAlone(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "grayvet")
	out, err := run(t, ".", "go", "build", "-o", tool, ".")
	require.NoError(t, err, out)
	dir := module(t)

	want := []string{
		`main.go:16:14: http.NewRequest makes a request without r.Context(), which loses the gray tag`,
		`main.go:22:22: health.Check is called with context.Background(), which loses the gray tag of r.Context()`,
		`main.go:23:11: a goroutine calls audit with context.Background(), which loses the gray tag of r.Context(); use propagation.Detach(r.Context())`,
		`main.go:24:2: the goroutine goes on using r.Context() when the handler has returned`,
	}
	out, err = run(t, dir, tool, "./...")
	assert.Error(t, err)
	for _, w := range want {
		assert.Contains(t, out, w)
	}
	assert.NotContains(t, out, "_test.go")
	out, err = run(t, dir, "go", "vet", "-vettool="+tool, "-tests", "./...")
	assert.Error(t, err)
	for _, w := range append(want, "main_test.go:9:81: http.Get makes a request without r.Context()") {
		assert.Contains(t, out, w)
	}

	out, err = run(t, dir, "go", "vet", "-vettool="+tool, "-fix", "./...")
	assert.NoError(t, err, out)
	fixed, err := os.ReadFile(filepath.Join(dir, "main.go"))
	require.NoError(t, err)
	for _, w := range []string{
		`http.NewRequestWithContext(r.Context(), http.MethodGet, "http://inventory/", nil)`,
		`health.Check(r.Context(), nil)`,
		"go audit(propagation.Detach(r.Context()))\n\tgo audit(propagation.Detach(r.Context()))",
	} {
		assert.Contains(t, string(fixed), w)
	}
	out, err = run(t, dir, "go", "vet", "-vettool="+tool, "./...")
	assert.NoError(t, err, out)
	assert.Empty(t, out)
}
