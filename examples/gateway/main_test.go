package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/consultest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// told is what the story tells: the numbers of the users decide, so that every
// figure is known.
const told = `10 %:  117 of 1000 users gray
50 %:  525 of 1000 users gray, 0 of those from before became stable
stop:    0 of 1000 users gray
`

const key = "graylane/examples/gateway/rules"

func TestStoryWithAFile(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))
	assert.Equal(t, told, out.String())
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestStoryOnConsul(t *testing.T) {
	agent := consultest.Start(t)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-consul", agent.Address()}, &out))
	assert.Equal(t, told, out.String())

	keys, _, err := agent.Client().KV().Keys("graylane/", "", nil)
	require.NoError(t, err)
	assert.Empty(t, keys)
	services, err := agent.Client().Agent().Services()
	require.NoError(t, err)
	assert.Empty(t, services)

	// Rules of others are left alone.
	theirs := []byte(`{"rules": []}`)
	_, err = agent.Client().KV().Put(&api.KVPair{Key: key, Value: theirs}, nil)
	require.NoError(t, err)
	assert.ErrorContains(t, run(t.Context(), []string{"-consul", agent.Address()}, &out), "there are rules already")
	pair, _, err := agent.Client().KV().Get(key, nil)
	require.NoError(t, err)
	require.NotNil(t, pair)
	assert.Equal(t, theirs, pair.Value)
}

// opened is a gateway that serves until the test ends.
type opened struct {
	url    string
	howTo  []string // lines that it printed
	client *http.Client
}

func open(t *testing.T, args ...string) *opened {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, append([]string{"-listen", "127.0.0.1:0"}, args...), w)
		_ = w.CloseWithError(io.EOF)
		ended <- err
	}()
	o := &opened{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: visitors}}}
	t.Cleanup(func() {
		o.client.CloseIdleConnections()
		cancel()
		_ = r.Close()
		require.NoError(t, <-ended)
	})
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		o.howTo = append(o.howTo, strings.TrimSpace(lines.Text()))
		if url := regexp.MustCompile(`http://\S+/orders/1`).FindString(lines.Text()); o.url == "" {
			o.url = strings.TrimSuffix(url, "/orders/1")
		}
		if strings.Contains(lines.Text(), `"stop": true`) { // the last one
			return o
		}
	}
	t.Fatalf("the gateway ended: %v", <-ended)
	return nil
}

// command returns the printed command that holds text.
func (o *opened) command(t *testing.T, text string) string {
	t.Helper()
	for _, line := range o.howTo {
		if strings.Contains(line, text) {
			return line
		}
	}
	require.Fail(t, "no such command", "%s in %q", text, o.howTo)
	return ""
}

// gray is how many users are.
func (o *opened) gray(t *testing.T) int {
	t.Helper()
	gray, err := visit(t.Context(), o.client, o.url)
	require.NoError(t, err)
	return len(gray)
}

// becomes waits until a user is gray, or is not.
func (o *opened) becomes(t *testing.T, user int, gray bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		is, err := order(t.Context(), o.client, o.url, user)
		return err == nil && is == gray
	}, 30*time.Second, 10*time.Millisecond)
}

const (
	aTester = 199
	atHalf  = 1 // gray at 50 %, not at 10 %
)

func shell(t *testing.T, command string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
}

// TestTheFileIsFollowed does what the gateway says one should do.
func TestTheFileIsFollowed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "the rules.json")
	o := open(t, "-rules", file)
	o.becomes(t, aTester, true)
	assert.Equal(t, 117, o.gray(t))
	shell(t, o.command(t, "sed"))
	o.becomes(t, atHalf, true)
	assert.Equal(t, 525, o.gray(t))
	shell(t, o.command(t, "stop"))
	o.becomes(t, aTester, false)
	assert.Zero(t, o.gray(t))
}

func TestConsulIsFollowed(t *testing.T) {
	agent := consultest.Start(t)
	o := open(t, "-consul", agent.Address(), "-key", "shop/rules")
	for _, text := range []string{"consul kv get", "curl -s"} {
		assert.Contains(t, o.command(t, text), "shop/rules")
	}
	o.becomes(t, aTester, true)
	assert.Equal(t, 117, o.gray(t))

	pair, _, err := agent.Client().KV().Get("shop/rules", nil)
	require.NoError(t, err)
	pair.Value = bytes.Replace(pair.Value, []byte(`"percent": 10`), []byte(`"percent": 50`), 1)
	_, err = agent.Client().KV().Put(pair, nil)
	require.NoError(t, err)
	o.becomes(t, atHalf, true)
	assert.Equal(t, 525, o.gray(t))

	_, err = agent.Client().KV().Delete("shop/rules", nil)
	require.NoError(t, err)
	o.becomes(t, aTester, false)
	assert.Zero(t, o.gray(t))
}

// TestRulesThatAreThereStay also shows visitors without a number.
func TestRulesThatAreThereStay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.json")
	const all = `{"rules": [{"id": "all", "percent": 99.999, "hashBy": ["group"], "tag": "version=v2"}]}`
	require.NoError(t, os.WriteFile(file, []byte(all), 0o644))
	o := open(t, "-rules", file)
	require.Eventually(t, func() bool {
		resp, err := o.client.Get(o.url + "/orders/1")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.Header.Get("X-Version") == "v2" && strings.HasPrefix(resp.Header.Get("Set-Cookie"), "gray_group=")
	}, 30*time.Second, 10*time.Millisecond)
	now, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, all, string(now))
}

func TestTheRulesAreMeant(t *testing.T) {
	for _, document := range []string{rulesAt(10), rulesAt(50), stopped} {
		set, err := rule.Parse([]byte(document))
		require.NoError(t, err)
		assert.Empty(t, rule.Lint(set, nil))
	}
}

func TestFailuresAreErrors(t *testing.T) {
	for _, args := range [][]string{
		{"-nonsense"},
		{"-rules", "rules.json"},
		{"-listen", "127.0.0.1:0", "-rules", "rules.json", "-consul", "127.0.0.1:1"},
		{"-consul", "127.0.0.1:1"},
		{"-listen", "127.0.0.1:0", "-consul", "127.0.0.1:1", "-key", "/"},
		{"-listen", "256.0.0.1:0"},
		{"-listen", "127.0.0.1:0", "-rules", filepath.Join(t.TempDir(), "no", "such", "directory.json")},
	} {
		assert.Error(t, run(t.Context(), args, io.Discard), "%q", args)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.Error(t, run(ctx, nil, io.Discard))
}
