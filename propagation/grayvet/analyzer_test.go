package grayvet_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/graylane/graylane/propagation/grayvet"
)

// All packages in one go: each loads net/http from its source.
func TestReportsAndFixes(t *testing.T) {
	analysistest.RunWithSuggestedFixes(t, analysistest.TestData(), grayvet.Analyzer,
		"request", "background", "goroutine", "detach", "ignore", "generated", "shop/audit", "shop/order", "odd")
}

func TestTestFilesAreLookedAtOnRequest(t *testing.T) {
	flag := grayvet.Analyzer.Flags.Lookup("tests")
	require.NotNil(t, flag)
	require.Equal(t, "false", flag.DefValue)
	require.NoError(t, flag.Value.Set("true"))
	defer func() { require.NoError(t, flag.Value.Set("false")) }()
	analysistest.Run(t, analysistest.TestData(), grayvet.Analyzer, "withtests")
}
