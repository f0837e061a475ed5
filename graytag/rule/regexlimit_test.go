package rule_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
)

// TestRegexIsBoundedByTheValue: what a client sends must not make a decision slow,
// whatever expression the operator wrote.
func TestRegexIsBoundedByTheValue(t *testing.T) {
	set, err := rule.Parse([]byte(`{"rules":[{"id":"r","match":[{"attr":"header:X-A","op":"regex","values":["^a+$"]}],"tag":"version=v2"}]}`))
	require.NoError(t, err)
	e, err := rule.NewEngine(set)
	require.NoError(t, err)
	for n, want := range map[int]string{1: "version=v2", rule.MaxRegexValueBytes: "version=v2", rule.MaxRegexValueBytes + 1: "", 8000: ""} {
		value := strings.Repeat("a", n)
		d := e.Decide(&rule.Request{Header: func(string) (string, bool) { return value, true }})
		assert.Equal(t, want, d.Tag.String(), "%d bytes", n)
	}
	_, err = rule.Parse([]byte(`{"rules":[{"id":"r","match":[{"attr":"uid","op":"regex","values":["((x{1,9}y?){1,90}z){1,20}"]}],"tag":"version=v2"}]}`))
	assert.ErrorContains(t, err, "rules[0].match[0].values[0]")
}
