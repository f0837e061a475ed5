package rule_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
)

// lint returns the findings as "code rule,rule".
func lint(t testing.TB, doc string, versions func(string) []string) (list []string) {
	t.Helper()
	for _, f := range rule.Lint(parse(t, doc), versions) {
		list = append(list, strings.TrimSpace(f.Code+" "+strings.Join(f.Rules, ",")))
		assert.NotEmpty(t, f.Message)
	}
	return list
}

func TestLintShadowed(t *testing.T) {
	first := func(match, more string) string {
		return `{"id":"first","priority":2,"match":[` + match + `]` + more + `,"tag":"version=v1"}`
	}
	second := func(match, more string) string {
		return `{"id":"second","priority":1,"match":[` + match + `]` + more + `,"tag":"version=v2"}`
	}
	uid := func(op, values string) string { return `{"attr":"uid","op":"` + op + `","values":[` + values + `]}` }
	for i, c := range []struct {
		first, second string
		want          bool
	}{
		{first("", ""), second("", ""), true},
		{first("", ""), second(uid("equals", `"a"`), ""), true},
		{first(uid("equals", `"a"`), ""), second("", ""), false},
		{first(uid("in", `"a","b"`), ""), second(uid("equals", `"b"`), ""), true},
		{first(uid("in", `"a","b"`), ""), second(uid("in", `"b","c"`), ""), false},
		{first(uid("suffix", `"9"`), ""), second(uid("in", `"19","29"`), ""), true},
		{first(uid("suffix", `"9"`), ""), second(uid("suffix", `"99","09"`), ""), true},
		{first(uid("suffix", `"99"`), ""), second(uid("suffix", `"9"`), ""), false},
		{first(uid("prefix", `"a"`), ""), second(uid("prefix", `"ab"`), ""), true},
		{first(uid("contains", `"a"`), ""), second(uid("prefix", `"ba"`), ""), true},
		{first(uid("regex", `"a"`), ""), second(uid("regex", `"a"`), ""), true},
		{first(uid("regex", `"a"`), ""), second(uid("regex", `"b"`), ""), false},
		{first(uid("semver", `">1"`), ""), second(uid("semver", `">1"`), ""), true},
		{first(uid("semver", `">1"`), ""), second(uid("semver", `">1",">0"`), ""), false},
		{first(uid("cidr", `"10.0.0.0/8"`), ""), second(uid("cidr", `"10.1.0.0/16","10.0.0.1"`), ""), true},
		{first(uid("cidr", `"10.1.0.0/16"`), ""), second(uid("cidr", `"10.0.0.0/8"`), ""), false},
		{first(uid("cidr", `"::/0"`), ""), second(uid("cidr", `"10.0.0.0/8"`), ""), false},
		{first(uid("not_in", `"a"`), ""), second(uid("not_in", `"a","b"`), ""), true},
		{first(uid("not_in", `"a","b"`), ""), second(uid("not_in", `"a"`), ""), false},
		{first(uid("not_in", `"a"`), ""), second(uid("in", `"b"`), ""), true},
		{first(`{"attr":"uid","op":"exists"}`, ""), second(uid("contains", `"x"`), ""), true},
		{first(`{"attr":"uid","op":"exists"}`, ""), second(`{"attr":"uid","op":"not_exists"}`, ""), false},
		{first(`{"attr":"uid","op":"not_exists"}`, ""), second(`{"attr":"uid","op":"not_exists"}`, ""), true},
		{first(`{"attr":"uid","op":"mod","mod":100,"below":20}`, ""), second(`{"attr":"uid","op":"mod","mod":100,"below":10}`, ""), true},
		{first(`{"attr":"uid","op":"mod","mod":100,"below":10}`, ""), second(`{"attr":"uid","op":"mod","mod":100,"below":20}`, ""), false},
		{first("", `,"percent":50`), second("", `,"percent":10`), false},
		{first("", `,"percent":50,"salt":"s"`), second("", `,"percent":50,"salt":"s"`), true},
		{first("", `,"percent":100`), second("", `,"percent":50`), true},
		{first("", `,"enabled":false`), second("", ""), false},
		{first("", `,"percent":0`), second("", ""), false},
		{first("", `,"from":"2026-01-01T00:00:00Z"`), second("", ""), false},
		{first("", `,"until":"2099-01-02T00:00:00Z"`), second("", `,"until":"2099-01-01T00:00:00Z"`), true},
		{first("", `,"services":["order"]`), second("", ""), false},
		{first("", `,"services":["order","cart"]`), second("", `,"services":["cart"]`), true},
		{first("", `,"services":["order"]`), second("", `,"services":["order","cart"]`), false},
	} {
		var got bool
		for _, f := range lint(t, `{"rules":[`+c.second+`,`+c.first+`]}`, nil) {
			if f == "shadowed second,first" {
				got = true
			} else {
				assert.NotContains(t, f, "shadowed", i)
			}
		}
		assert.Equal(t, c.want, got, "%d: %s then %s", i, c.first, c.second)
	}
	assert.Empty(t, lint(t, `{"rules":[{"id":"a","priority":1,"services":["s"],"tag":"version=v1"},{"id":"b","services":["s"],"tag":"version=v1;lane=x"}]}`, nil), "it adds a lane")
}

func TestLintNeverMatches(t *testing.T) {
	for match, want := range map[string]bool{
		`{"attr":"uid","op":"in","values":["a","b"]},{"attr":"uid","op":"in","values":["c"]}`:                   true,
		`{"attr":"uid","op":"in","values":["a","b"]},{"attr":"uid","op":"in","values":["b"]}`:                   false,
		`{"attr":"uid","op":"equals","values":["a"]},{"attr":"uid","op":"not_exists"}`:                          true,
		`{"attr":"uid","op":"exists"},{"attr":"uid","op":"not_exists"}`:                                         true,
		`{"attr":"uid","op":"equals","values":["a"]},{"attr":"uid","op":"suffix","values":["b"]}`:               true,
		`{"attr":"uid","op":"equals","values":["ab"]},{"attr":"uid","op":"suffix","values":["b"]}`:              false,
		`{"attr":"uid","op":"equals","values":[""]}`:                                                            true,
		`{"attr":"cookie:x","op":"equals","values":[""]}`:                                                       false,
		`{"attr":"uid","op":"mod","mod":10,"below":0}`:                                                          true,
		`{"attr":"header:X-A","op":"equals","values":["1"]},{"attr":"header:x-a","op":"equals","values":["2"]}`: true,
		`{"attr":"ip","op":"equals","values":["10.0.0.0/8","office"]}`:                                          true,
		`{"attr":"ip","op":"equals","values":["10.0.0.0/8","10.0.0.1"]}`:                                        false,
		`{"attr":"host","op":"equals","values":["Shop.example"]}`:                                               true,
		`{"attr":"host","op":"equals","values":["shop.example:8080","[::1]"]}`:                                  true,
		`{"attr":"host","op":"equals","values":["shop.example:8080","shop","::1"]}`:                             false,
		`{"attr":"host","op":"suffix","values":["Shop.example"]}`:                                               false,
	} {
		got := lint(t, `{"rules":[{"id":"r","match":[`+match+`],"tag":"version=v2"}]}`, nil)
		assert.Equal(t, want, slices.Contains(got, "never_matches r"), match)
	}
	assert.Equal(t, []string{"expired r"}, lint(t, `{"rules":[{"id":"r","until":"2020-01-01T00:00:00Z","tag":"version=v2"}]}`, nil))
}

func TestLintUsers(t *testing.T) {
	two := func(a, b, more string) string {
		return `{"rules":[{"id":"a","percent":10,` + a + `},{"id":"b","percent":10,` + b + `}]` + more + `}`
	}
	for name, c := range map[string]struct {
		doc  string
		want []string
	}{
		"same salt, same service":     {two(`"salt":"s","services":["x"],"tag":"version=v2"`, `"salt":"s","services":["x","y"],"tag":"lane=l"`, ""), []string{"same_users b,a"}},
		"same salt, one is global":    {two(`"salt":"s","services":["x"],"tag":"version=v2"`, `"salt":"s","tag":"lane=l"`, ""), []string{"same_users b,a"}},
		"salt is the other's id":      {two(`"services":["x"],"tag":"version=v2"`, `"salt":"a","services":["x"],"tag":"lane=l"`, ""), []string{"same_users b,a"}},
		"in one plan":                 {two(`"salt":"s","services":["x"],"tag":"version=v2"`, `"salt":"s","services":["x"],"tag":"lane=l"`, `,"plans":{"p":{"stages":[{"rules":["a","b"]}]}}`), nil},
		"in two plans":                {two(`"salt":"s","services":["x"],"tag":"version=v2"`, `"salt":"s","services":["x"],"tag":"lane=l"`, `,"plans":{"p":["a"],"q":["b"]}`), []string{"same_users b,a"}},
		"other hash key":              {two(`"salt":"s","hashBy":["ip"],"services":["x"],"tag":"version=v2"`, `"salt":"s","services":["x"],"tag":"lane=l"`, ""), nil},
		"other channel":               {two(`"salt":"s","match":[{"attr":"channel","op":"in","values":["app"]}],"tag":"version=v2"`, `"salt":"s","match":[{"attr":"channel","op":"in","values":["web"]}],"tag":"version=v3"`, ""), nil},
		"one lane, default salts":     {two(`"services":["x"],"tag":"version=v2"`, `"services":["y"],"tag":"version=v2"`, ""), []string{"different_users b,a"}},
		"one lane by name":            {two(`"services":["x"],"tag":"version=v2;lane=l"`, `"services":["y"],"tag":"version=v7;lane=l"`, ""), []string{"different_users b,a"}},
		"one lane, one salt":          {two(`"salt":"s","services":["x"],"tag":"version=v2"`, `"salt":"s","services":["y"],"tag":"version=v2"`, ""), nil},
		"one lane, other hash key":    {two(`"salt":"s","services":["x"],"tag":"version=v2"`, `"salt":"s","hashBy":["ip"],"services":["y"],"tag":"version=v2"`, ""), []string{"different_users b,a"}},
		"two lanes":                   {two(`"services":["x"],"tag":"version=v2"`, `"services":["y"],"tag":"version=v3"`, ""), nil},
		"no lane":                     {two(`"services":["x"],"tag":"version=stable"`, `"services":["y"],"tag":"version=stable"`, ""), nil},
		"one lane, other percentages": {`{"rules":[{"id":"a","percent":10,"salt":"s","services":["x"],"tag":"version=v2"},{"id":"b","percent":20,"salt":"s","services":["y"],"tag":"version=v2"}]}`, []string{"different_users b,a"}},
	} {
		assert.Equal(t, c.want, lint(t, c.doc, nil), name)
	}
}

func TestLintInstances(t *testing.T) {
	versions := func(service string) []string {
		return map[string][]string{"order": {"", "v2"}, "inventory": {"v7", "v2"}, "cart": {"stable"}}[service]
	}
	for name, c := range map[string]struct {
		doc  string
		want []string
	}{
		"there":                      {`{"rules":[{"id":"r","services":["order"],"tag":"version=v2"}]}`, nil},
		"not there":                  {`{"rules":[{"id":"r","services":["order","cart"],"tag":"version=v2"}]}`, []string{"no_instance r"}},
		"no such service":            {`{"rules":[{"id":"r","services":["nope"],"tag":"version=v2"}]}`, []string{"no_instance r"}},
		"stable":                     {`{"rules":[{"id":"r","services":["nope"],"tag":"version=stable"}]}`, nil},
		"by key":                     {`{"rules":[{"id":"r","tag":"version.cart=v2;version.order=v2"}]}`, []string{"no_instance r"}},
		"default":                    {`{"default":"version.cart=v9","rules":[]}`, []string{"no_instance"}},
		"other routing key":          {`{"key":"gray","rules":[{"id":"r","services":["order"],"tag":"version=v9;gray=v9"}]}`, []string{"no_instance r"}},
		"switched off":               {`{"rules":[{"id":"r","enabled":false,"services":["cart"],"tag":"version=v2"}]}`, nil},
		"global fits":                {`{"rules":[{"id":"all","tag":"version=v2"},{"id":"r","priority":1,"services":["inventory"],"tag":"version=v7"}]}`, []string{"global_fits all,r"}},
		"global fits, on purpose":    {`{"rules":[{"id":"all","tag":"version=v2;version.inventory=stable"},{"id":"r","priority":1,"services":["inventory"],"tag":"version=v7"}]}`, nil},
		"global of the same version": {`{"rules":[{"id":"all","tag":"version=v2"},{"id":"r","priority":1,"match":[{"attr":"uid","op":"exists"}],"services":["inventory"],"tag":"version=v2"}]}`, nil},
	} {
		assert.Equal(t, c.want, lint(t, c.doc, versions), name)
		for _, f := range lint(t, c.doc, nil) {
			assert.Fail(t, "without versions there is nothing to say", "%s: %s", name, f)
		}
	}
}

func TestLintTheRest(t *testing.T) {
	assert.Nil(t, rule.Lint(nil, nil))
	assert.Nil(t, rule.Lint(&rule.Set{Rules: []rule.Rule{{}}}, nil), "for Parse to say")

	set := &rule.Set{}
	for i := range rule.UnindexedLimit + 1 {
		set.Rules = append(set.Rules, rule.Rule{ID: fmt.Sprint(i), Tag: "version=v2", Match: []rule.Condition{{Attr: "path", Op: rule.OpRegex, Values: []string{fmt.Sprint("^/", i, "$")}}}})
	}
	findings := rule.Lint(set, nil)
	require.Len(t, findings, 1)
	assert.Equal(t, rule.CodeUnindexed, findings[0].Code)
	set.Rules = set.Rules[1:]
	assert.Empty(t, rule.Lint(set, nil))

	wide := rule.Rule{ID: "wide", Tag: "version=v2"}
	for i := range 33 {
		wide.Services = append(wide.Services, fmt.Sprint("s", i))
	}
	findings = rule.Lint(&rule.Set{Carry: []string{"version", "uid"}, Attributes: map[string][]string{"version": {"header:X-Version"}}, Rules: []rule.Rule{wide}}, nil)
	require.Len(t, findings, 2)
	assert.Equal(t, rule.CodeTooLong, findings[0].Code)
	assert.Equal(t, rule.CodeOutsideVersion, findings[1].Code)
	assert.Equal(t, "carry[0]", findings[1].Path)
	data, err := json.Marshal(findings[0])
	require.NoError(t, err)
	assert.Contains(t, string(data), `"code":"too_long","rules":["wide"],"path":"rules[0].services"`)
}

// Sets of a size that occurs are looked at wholly, and what is too much says so.
func TestLintLargeSets(t *testing.T) {
	assert.Empty(t, rule.Lint(others(10_000), nil))
	assert.Empty(t, rule.Lint(whitelist(100_000), nil))
	defer rule.LowerComparisons(10_000)()
	set := &rule.Set{}
	for i := range 200 {
		set.Rules = append(set.Rules, rule.Rule{ID: fmt.Sprint(i), Tag: "version=v2", Percent: rule.MustPercent("1"), Match: []rule.Condition{{Attr: "path", Op: rule.OpPrefix, Values: []string{fmt.Sprint("/", i, "/")}}}})
	}
	var codes []string
	for _, f := range rule.Lint(set, nil) {
		codes = append(codes, f.Code)
	}
	assert.Equal(t, []string{rule.CodeIncomplete, rule.CodeIncomplete}, codes)
}

// What it costs to compare two rules grows with their values, which count as
// comparisons, too.
func TestLintLongLists(t *testing.T) {
	list := func(id string) rule.Rule {
		values := make([]string, 30_000)
		for i := range values {
			values[i] = fmt.Sprintf("%s-%d", id, i)
		}
		return rule.Rule{
			ID: id, Services: []string{id}, Percent: rule.MustPercent("50"), Tag: "version=v2",
			Match: []rule.Condition{{Attr: "uid", Op: rule.OpIn, Values: values}},
		}
	}
	a, b, c := list("a"), list("b"), list("c")
	a.Services, b.Services, c.Services = []string{"x"}, []string{"y"}, []string{"x", "y"}
	c.Match = []rule.Condition{{Attr: "uid", Op: rule.OpIn, Values: slices.Clone(a.Match[0].Values)}}
	c.Salt, a.Salt = "s", "s"
	var codes []string
	for _, f := range rule.Lint(&rule.Set{Rules: []rule.Rule{a, b, c}}, nil) {
		codes = append(codes, f.Code)
	}
	assert.Equal(t, []string{rule.CodeSameUsers}, codes, "two lists are compared wholly")

	defer rule.LowerComparisons(10_000)()
	codes = nil
	for _, f := range rule.Lint(&rule.Set{Rules: []rule.Rule{a, b, c}}, nil) {
		codes = append(codes, f.Code)
	}
	assert.Contains(t, codes, rule.CodeIncomplete)
}
