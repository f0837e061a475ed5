package main

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/internal/consultest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// check holds what the program prints to the course of the story.
func check(t *testing.T, args ...string) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), args, &out), out.String())
	text := strings.TrimRight(out.String(), "\n")
	t.Log("\n" + text)
	lines := strings.Split(text, "\n")
	assert.Equal(t, "advanced=3 rolled_back=1 alerts=1 gray_after=0 failed_after=0", lines[len(lines)-1])
	for _, order := range []string{
		`ann +plan december: started, at 0 %: testers first\n.*ann +plan december: promoted, at 10 %.*` +
			`gateway-[12] +plan december: advanced, at 20 %.*gateway-[12] +plan december: advanced, at 30 %.*` +
			`inventory v2 fails every other call.*gateway-[12] +plan december is rolled back, its rules are off: v2 of order: .* gray requests failed.*` +
			`all 400 have ordered again at each gateway: 0 gray, 0 failed.*` +
			`first failed gray request to rollback write: [0-9.]+m?s\nrollback write to last gray request sent: +[0-9.]+[mµ]?s\n`,
		`inventory v2 fails every other call.*webhook +503, the first time.*webhook +got the alert: plan december is rolled back.*all 400`,
	} {
		assert.Regexp(t, regexp.MustCompile("(?s)"+order), text)
	}
}

func TestEmbedded(t *testing.T) { check(t) }

func TestOnConsul(t *testing.T) { check(t, "-consul", consultest.Start(t).Address()) }

func TestFailuresAreErrors(t *testing.T) {
	assert.Error(t, run(t.Context(), []string{"-nonsense"}, &bytes.Buffer{}))
	assert.Error(t, run(t.Context(), []string{"-consul", "127.0.0.1:1"}, &bytes.Buffer{}), "nothing listens there")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.Error(t, run(ctx, nil, &bytes.Buffer{}))
}

func TestThePlanIsMeant(t *testing.T) {
	plans, err := rollout.ParseDocument([]byte(document))
	require.NoError(t, err)
	assert.Equal(t, []string{"inventory", "order"}, plans[plan].Services)
	assert.Equal(t, []rollout.Target{{Service: "order", Version: "v2"}}, plans[plan].Targets)
}
