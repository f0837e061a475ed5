package ruletest_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/graytag/rule/ruletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryStore(t *testing.T) {
	ruletest.Run(t, func(*testing.T) ruletest.Harness {
		s := rule.NewMemoryStore()
		return ruletest.Harness{
			Store:    s,
			Delete:   func(context.Context) error { s.Delete(); return nil },
			TooLarge: rule.MaxBytes + 1,
		}
	})
}

func TestFileStore(t *testing.T) {
	ruletest.Run(t, func(t *testing.T) ruletest.Harness {
		path := filepath.Join(t.TempDir(), "rules.json")
		return ruletest.Harness{
			Store:    rule.NewFileStore(path, rule.WithInterval(5*time.Millisecond), rule.WithDeletedAfter(50*time.Millisecond)),
			Delete:   func(context.Context) error { return os.Remove(path) },
			TooLarge: rule.MaxBytes + 1,
		}
	})
}
