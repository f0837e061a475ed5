package loglimit_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/internal/loglimit"
)

func TestLimit(t *testing.T) {
	l := loglimit.New(10, time.Minute)
	now := time.Now()
	for minute := range 3 {
		var allowed atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := range 100 {
					if l.Allow(now.Add(time.Duration(minute)*time.Minute + time.Duration(i)*time.Millisecond)) {
						allowed.Add(1)
					}
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 10, allowed.Load(), "minute %d", minute)
	}
}

func TestWhatWasDroppedIsTold(t *testing.T) {
	l := loglimit.New(2, time.Minute)
	now := time.Now()
	for i := range 7 {
		ok, dropped := l.Take(now)
		assert.Equal(t, i < 2, ok)
		assert.Zero(t, dropped)
	}
	ok, dropped := l.Take(now.Add(time.Minute))
	assert.True(t, ok)
	assert.Equal(t, 5, dropped)
	_, dropped = l.Take(now.Add(time.Minute))
	assert.Zero(t, dropped)
}
