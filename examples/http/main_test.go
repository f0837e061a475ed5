package main

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/internal/consultest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBothRegistries(t *testing.T) {
	for name, args := range map[string][]string{
		"embedded": nil,
		"consul":   {"-consul", consultest.Start(t).Address()},
	} {
		var out bytes.Buffer
		require.NoError(t, run(context.Background(), args, &out), name)
		assert.Equal(t, "version=v2 -> hello from greeter-v2\n -> hello from greeter-stable\n", out.String(), name)
	}
}
