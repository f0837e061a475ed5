package promsource_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// program returns the path of a program of Debian's package prometheus.
func program(t *testing.T, name string) string {
	t.Helper()
	bin, err := exec.LookPath(name)
	if err != nil {
		how := "no " + name + " on PATH: install the package prometheus (Debian, Ubuntu), or a release of prometheus.io"
		if os.Getenv("CI") == "true" {
			t.Fatal(how)
		}
		t.Skip(how)
	}
	return bin
}

// start runs a program until the test ends. ended is closed when it has ended. On
// Linux the kernel ends it where the test is killed.
func start(t *testing.T, bin string, args ...string) (ended <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second // then it is killed
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		// Pdeathsig looks at the thread that starts the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if started <- err; err == nil {
			_ = cmd.Wait()
		}
	}()
	require.NoError(t, <-started)
	t.Cleanup(func() {
		cancel()
		<-done
		if t.Failed() {
			t.Logf("%s said: %s", filepath.Base(bin), said.Bytes()[:min(said.Len(), 20000)])
		}
	})
	return done
}

func freePort(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	return lis.Addr().String()
}

// startPrometheus runs a Prometheus on the data in dir, which scrapes what config
// says, and returns its URL.
func startPrometheus(t *testing.T, dir, config string) (url string) {
	t.Helper()
	bin := program(t, "prometheus")
	file := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o644))
	for range 5 { // a free port may not be free any more
		address := freePort(t)
		ended := start(t, bin, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
			"--web.listen-address="+address, "--log.level=warn")
		if ready(ended, "http://"+address+"/-/ready") {
			return "http://" + address
		}
	}
	require.Fail(t, "Prometheus does not start")
	return ""
}

// ready waits until url answers 200; false if the program ends first.
func ready(ended <-chan struct{}, url string) bool {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	for {
		if resp, err := client.Get(url); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return true
			}
		}
		select {
		case <-ended:
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// backfill writes samples, in the text format of OpenMetrics, into a new directory
// of data. They are there without any waiting.
func backfill(t *testing.T, text string) (dir string) {
	t.Helper()
	bin := program(t, "promtool")
	dir = t.TempDir()
	file := filepath.Join(dir, "samples")
	require.NoError(t, os.WriteFile(file, []byte(text+"# EOF\n"), 0o644))
	out, err := exec.Command(bin, "tsdb", "create-blocks-from", "openmetrics", file, filepath.Join(dir, "data")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

const scrapeConfig = `
global: {scrape_interval: %[1]s, scrape_timeout: %[1]s}
scrape_configs:
- job_name: example
  static_configs: [{targets: ["%[2]s"]}]
`

func scrape(every time.Duration, target string) string {
	return fmt.Sprintf(scrapeConfig, every, target)
}
