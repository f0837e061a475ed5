package memory_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/graylane/graylane/registry/memory"
	"github.com/graylane/graylane/registry/registrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	registrytest.Run(t, func(*testing.T) registrytest.Registry { return memory.New() })
}
