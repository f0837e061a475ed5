package callsite_test

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/internal/callsite"
)

func TestSites(t *testing.T) {
	var f callsite.Finder
	var all []*callsite.Site
	for range 3 {
		all = append(all, f.Find(0))
	}
	var once sync.Once
	once.Do(func() { all = append(all, f.Find(0)) })
	assert.Same(t, all[0], all[1])
	assert.NotEqual(t, all[0].Label, all[3].Label)
	assert.Equal(t, "callsite_test.go", filepath.Base(all[0].File))
	assert.Regexp(t, `^callsite/callsite_test.go:\d+$`, all[0].String())
	assert.Contains(t, all[0].Function, "callsite_test.TestSites")
	assert.True(t, all[0].First())
	assert.False(t, all[1].First())
	assert.Zero(t, testing.AllocsPerRun(100, func() { f.Find(0) }))
}

func TestNobodyInReach(t *testing.T) {
	var f callsite.Finder
	assert.Equal(t, "unknown", f.Find(100).String())
}
