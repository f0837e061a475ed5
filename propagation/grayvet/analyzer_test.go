package grayvet_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/graylane/graylane/propagation/grayvet"
)

func TestFixes(t *testing.T) {
	for _, pkg := range []string{"request", "background", "goroutine", "detach"} {
		t.Run(pkg, func(t *testing.T) {
			analysistest.RunWithSuggestedFixes(t, analysistest.TestData(), grayvet.Analyzer, pkg)
		})
	}
}

func TestReports(t *testing.T) {
	for _, pkg := range []string{"ignore", "generated", "shop/audit", "shop/order", "odd"} {
		t.Run(pkg, func(t *testing.T) { analysistest.Run(t, analysistest.TestData(), grayvet.Analyzer, pkg) })
	}
}

func TestTestFilesAreLookedAtOnRequest(t *testing.T) {
	flag := grayvet.Analyzer.Flags.Lookup("tests")
	require.NotNil(t, flag)
	require.Equal(t, "false", flag.DefValue)
	require.NoError(t, flag.Value.Set("true"))
	defer func() { require.NoError(t, flag.Value.Set("false")) }()
	analysistest.Run(t, analysistest.TestData(), grayvet.Analyzer, "withtests")
}
