package layout_test

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/graylane/graylane"

type pkg struct {
	ImportPath string
	Imports    []string // of the package alone, without its tests
	Deps       []string // of the package and all that it imports
}

func packages(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = filepath.Join("..", "..")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	all := map[string]pkg{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
		all[strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")] = p
	}
	require.NotEmpty(t, all)
	return all
}

const (
	grpc   = "google.golang.org/grpc"
	consul = "github.com/hashicorp/consul/api"
	sdk    = "go.opentelemetry.io/otel/sdk"
)

func under(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// banned lists what a package must not link, neither itself nor through
// another one.
var banned = map[string][]string{
	"graytag":               {grpc, consul, "net/http", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/trace"},
	"graytag/rule":          {grpc, consul, "net/http"},
	"propagation":           {grpc, consul},
	"registry":              {grpc, consul},
	"registry/memory":       {grpc, consul},
	"balancer/subset":       {grpc, consul},
	"balancer/httplb":       {grpc, consul},
	"middleware/grayhttp":   {grpc, consul},
	"middleware/grayslog":   {grpc, consul},
	"middleware/graygrpc":   {consul},
	"balancer":              {consul},
	"balancer/resolver":     {consul},
	"registry/consul":       {grpc},
	"registry/registrytest": {grpc, consul},
	"middleware/gateway":    {grpc, consul},
	"examples/http":         {grpc},
	"internal/arrival":      {grpc, consul},
	"internal/telemetry":    {grpc, consul},
}

func TestWhatPackagesLink(t *testing.T) {
	all := packages(t)
	for name, roots := range banned {
		for _, dep := range all[name].Deps {
			for _, root := range roots {
				assert.False(t, under(dep, root), "%s must not link %s", name, dep)
			}
		}
	}
	for name, p := range all {
		tests := under(name, "internal") || strings.Contains(name, "/internal/")
		for _, dep := range p.Imports {
			assert.False(t, under(dep, sdk) && !tests && !under(name, "examples"), "%s must not import %s: the OTel API only", name, dep)
			assert.False(t, under(dep, consul) && name != "registry/consul" && name != "internal/consultest", "%s must not import %s: only registry/consul talks to Consul", name, dep)
		}
	}
}

// layers lists, for each part of the house, the parts that it may import.
var layers = map[string][]string{
	"graytag":         {"graytag"},
	"graytag/rule":    {"graytag"},
	"graytag/rollout": {"graytag"},
	"propagation":     {"graytag"},
	"registry":        {"registry", "graytag"},
	"registry/consul": {"registry", "graytag", "graytag/rule"},
	"balancer":        {"balancer", "registry", "graytag"},
	"middleware":      {"middleware", "balancer", "registry", "propagation", "graytag"},
	"examples":        {"examples", "middleware", "balancer", "registry", "propagation", "graytag"},
}

func layerOf(name string) string {
	best := ""
	for l := range layers {
		if under(name, l) && len(l) > len(best) {
			best = l
		}
	}
	return best
}

func TestDependenciesPointDownwards(t *testing.T) {
	for name, p := range packages(t) {
		layer := layerOf(name)
		if layer == "" {
			assert.True(t, under(name, "internal"), "%s is in no part of the house", name)
			continue
		}
		for _, dep := range p.Imports {
			dep, ours := strings.CutPrefix(dep, module+"/")
			if !ours || under(dep, "internal") {
				continue
			}
			allowed := slices.ContainsFunc(layers[layer], func(l string) bool { return under(dep, l) })
			assert.True(t, allowed, "%s (%s) must not import %s", name, layer, dep)
		}
	}
}

func TestEveryPackageHasADocFile(t *testing.T) {
	for name := range packages(t) {
		if under(name, "examples") || under(name, "internal") || strings.Contains(name, "/internal/") {
			continue
		}
		_, err := os.Stat(filepath.Join("..", "..", filepath.FromSlash(name), "doc.go"))
		assert.NoError(t, err, "%s needs a doc.go", name)
	}
}

// A nested module is not built, tested or linked with this one. Tools and
// comparisons live in internal; grayvet is a tool that users install, and
// examples/observability links an exporter that no user of the library has to get.
func TestNestedModules(t *testing.T) {
	root := filepath.Join("..", "..")
	outside := []string{"examples/observability", "propagation/grayvet"}
	var found []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if d.Name() != "go.mod" {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir = filepath.ToSlash(dir)
		if dir != "." && !under(dir, "internal") {
			found = append(found, dir)
		}
		return nil
	}))
	assert.ElementsMatch(t, outside, found, "modules of their own")
	for name, p := range packages(t) {
		for _, dep := range p.Deps {
			assert.False(t, under(dep, "golang.org/x/tools"), "%s must not link %s: users do not get x/tools", name, dep)
		}
	}
}
