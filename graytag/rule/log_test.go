package rule_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// logBuffer is a log to look at.
type logBuffer struct {
	mu sync.Mutex // guards b: the engine logs from its own goroutine
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// count returns how many lines hold text.
func (l *logBuffer) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range strings.Split(l.b.String(), "\n") {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
