package rollout_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rollout/rollouttest"
)

func TestLocalElector(t *testing.T) {
	defer goleak.VerifyNone(t)
	rollouttest.Elector(t, func(*testing.T) func(string) rollout.Elector {
		var shared rollout.Elector
		return func(id string) rollout.Elector {
			if shared == nil {
				shared = rollout.NewLocalElector(id)
			}
			return shared
		}
	})
}

func TestNewLeader(t *testing.T) {
	l := rollout.NewLeader("")
	host, err := os.Hostname()
	require.NoError(t, err)
	assert.Contains(t, l.ID, host+":")
	assert.Equal(t, host, l.Host)
	assert.Equal(t, "gw-1", rollout.NewLeader("gw-1").ID)
}
