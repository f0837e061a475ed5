package rule_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
)

func TestParseReportsEveryFault(t *testing.T) {
	_, err := rule.Parse([]byte(`{
		"Key": "version", "key": "ver sion", "attributes": {"uid": ["heder:X", "header:", "cookie:a b"], "ip": [], "a b": []},
		"carry": ["uid", 5, "header:X-A"], "stop": "yes", "default": "a", "plans": [], "meta": {"x": {"a": 1, "a": 2}},
		"rules": [
			{"id": 7, "tag": "version=v2", "priority": 1.5, "enabled": null},
			"rule",
			{"id": "ok", "id": "other", "TAG": "version=v2", "match": [
				{"attr": "uid", "op": "mod", "mod": -1, "values": ["1"]},
				{"attr": "uid", "op": "equals", "values": ["a", 5, null, "b"], "below": 0},
				{"attr": "uid", "op": "exists", "values": ["a"]},
				{"op": "cidr", "values": ["10.0.0.0/8", "x", "10.0.0.0/33"]},
				{"attr": "uid", "op": "semver", "values": ["", ">=1 <"]},
				[],
				{"attr": "uid"}
			]},
			{"id": "times", "tag": "version=v2", "from": "yesterday", "until": "2026-12-01", "percent": "10", "hashBy": [""], "salt": "a b", "services": ["", "a/b", 3]}
		]}`))
	require.Error(t, err)
	assert.Equal(t, []string{
		"Key", "attributes.a b", "attributes.ip", "attributes.uid[0]", "attributes.uid[1]", "attributes.uid[2]",
		"carry[1]", "carry[2]", "default", "key", "meta.x.a", "plans",
		"rules[0].enabled", "rules[0].id", "rules[0].priority",
		"rules[1]",
		"rules[2].TAG", "rules[2].id",
		"rules[2].match[0].below", "rules[2].match[0].mod", "rules[2].match[0].values",
		"rules[2].match[1].below", "rules[2].match[1].values[1]", "rules[2].match[1].values[2]",
		"rules[2].match[2].values",
		"rules[2].match[3].attr", "rules[2].match[3].values[1]", "rules[2].match[3].values[2]",
		"rules[2].match[4].values[0]", "rules[2].match[4].values[1]",
		"rules[2].match[5]",
		"rules[2].match[6].op",
		"rules[3].from", "rules[3].hashBy[0]", "rules[3].percent", "rules[3].salt", "rules[3].services[0]", "rules[3].services[1]", "rules[3].services[2]", "rules[3].until",
		"stop",
	}, paths(err))

	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok)
	assert.Len(t, joined.Unwrap(), len(rule.Faults(err)))
	assert.Less(t, len(err.Error()), 4096, "the text is for a log")
	assert.Contains(t, err.Error(), "more")
	assert.Equal(t, rule.Faults(err), rule.Faults(fmt.Errorf("wrapped: %w", err)))
	assert.Len(t, rule.Faults(&rule.Error{Path: "x"}), 1)
	assert.Nil(t, rule.Faults(errors.New("other")))
	assert.Nil(t, rule.Faults(nil))
}

func TestParseDocumentsThatAreNone(t *testing.T) {
	for doc, reason := range map[string]string{
		"":                                   "empty document",
		" \n":                                "empty document",
		`{"rules":[]`:                        "line 1, column 11",
		"{\n  \"rules\": [],\n}":             "line 3, column 1",
		`{"rules":[]} {}`:                    "not JSON",
		`[]`:                                 "must be an object",
		`null`:                               "null",
		`"x"`:                                "must be an object",
		"{\"meta\":{\"a\":\"\xff\"}}":        "not UTF-8",
		`{"meta":{"a":"\ud800"}}`:            "surrogate",
		`{"meta":{"\ud800":1}}`:              "surrogate",
		strings.Repeat(" ", rule.MaxBytes+1): "at most",
		`{"meta":` + strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 101): "nested deeper than 32",
		strings.Repeat(`[`, 100_000): "not JSON",
		`{"rules":[{"id":"a","match":[{"attr":"uid","op":"is","values":["1"]}],"tag":"version=v2"}]}`: "no such operator: is, want one of [equals ",
	} {
		set, err := rule.Parse([]byte(doc))
		require.Error(t, err)
		assert.Nil(t, set)
		assert.ErrorContains(t, err, reason)
		assert.Len(t, rule.Faults(err), 1)
	}
	for _, doc := range []string{`{}`, ` {"rules" : [ ] , "meta" : { } } `, `{"meta":{"a":"\ud83d\ude00 \ufffd �"}}`} {
		_, err := rule.Parse([]byte(doc))
		assert.NoError(t, err, doc)
	}
}

func TestParseSuggestsNames(t *testing.T) {
	for field, meant := range map[string]string{"precent": "percent", "Percent": "percent", "percentage": "", "hashby": "hashBy", "priorty": "priority", "nmae": "name", "x": ""} {
		_, err := rule.Parse([]byte(`{"rules":[{"id":"r","tag":"version=v2","` + field + `":1}]}`))
		require.Len(t, rule.Faults(err), 1)
		reason := rule.Faults(err)[0].Reason
		if meant == "" {
			assert.Equal(t, "unknown field", reason, field)
		} else {
			assert.Equal(t, fmt.Sprintf("unknown field; did you mean %q?", meant), reason)
		}
	}
	_, err := rule.Parse([]byte(`{"` + strings.Repeat("x", 1000) + `":1}`))
	assert.Less(t, len(err.Error()), 300, "a long name is cut")
}

func TestParseBounds(t *testing.T) {
	many := func(n int, element string) string { return strings.TrimSuffix(strings.Repeat(element+",", n), ",") }
	r := func(more string) string { return `{"rules":[{"id":"r","tag":"version=v2",` + more + `}]}` }
	for doc, path := range map[string]string{
		`{"carry":[` + many(rule.MaxNames+1, `"uid"`) + `]}`:                                       "carry",
		`{"attributes":{"a":[` + many(rule.MaxSources+1, `"ip"`) + `]}}`:                           "attributes.a",
		r(`"services":[` + many(rule.MaxServices+1, `"s"`) + `]`):                                  "rules[0].services",
		r(`"match":[` + many(rule.MaxConditions+1, `{"attr":"uid","op":"exists"}`) + `]`):          "rules[0].match",
		r(`"hashBy":[` + many(rule.MaxNames+1, `"uid"`) + `]`):                                     "rules[0].hashBy",
		r(`"salt":"` + strings.Repeat("x", rule.MaxIDBytes+1) + `"`):                               "rules[0].salt",
		r(`"match":[{"attr":"path","op":"regex","values":["` + strings.Repeat("x", 5000) + `"]}]`): "rules[0].match[0].values[0]",
		r(`"match":[{"attr":"path","op":"regex","values":["([a-f][0-9]xyzabcdefg){999}"]}]`):       "rules[0].match[0].values[0]",
		r(`"priority":1000000001`): "rules[0].priority",
		r(`"priority":1e3`):        "rules[0].priority",
		r(`"match":[{"attr":"uid","op":"mod","mod":1,"below":-1}]`):           "rules[0].match[0].below",
		r(`"match":[{"attr":"uid","op":"equals","values":["a"],"mod":5}]`):    "rules[0].match[0].mod",
		r(`"match":[{"attr":"uid","op":"equals","values":["a"],"mod":0}]`):    "rules[0].match[0].mod",
		r(`"until":"0001-01-01T00:00:00Z"`):                                   "rules[0].until",
		r(`"services":["` + strings.Repeat("s", 60) + `"]`):                   "rules[0].services[0]",
		`{"rules":[` + many(rule.MaxRules+1, `{"id":"r","tag":"a=b"}`) + `]}`: "rules",
	} {
		_, err := rule.Parse([]byte(doc))
		require.Error(t, err, path)
		assert.Contains(t, paths(err), path)
	}
	_, err := rule.NewEngine(&rule.Set{Rules: make([]rule.Rule, rule.MaxRules+1)})
	assert.Contains(t, paths(err), "rules", "the bounds hold for sets from code, too")
}

func TestParsePercent(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0", "-0": "0", "0.0": "0", "0e9": "0", "100": "100", "100.000": "100", "1e2": "100", "1E+1": "10", "0.001": "0.001", "1e-3": "0.001",
		"99.999": "99.999", "12.5": "12.5", "12.50000": "12.5", "1.005": "1.005", "0.0010000": "0.001", "1000e-1": "100", "0.29": "0.29",
	} {
		p, err := rule.ParsePercent(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, p.String(), text)
		assert.True(t, p.IsSet())
		data, err := json.Marshal(p)
		require.NoError(t, err)
		assert.Equal(t, want, string(data))
		var again rule.Percent
		require.NoError(t, json.Unmarshal(data, &again))
		assert.Equal(t, p, again)
	}
	for _, text := range []string{"", " 1", "1 ", "+1", ".5", "1.", "01", "1e", "NaN", "Inf", "0x1", "null", "true", `"1"`, "1_0", "-1", "100.001", "100.0001", "1e3", "1e-4", strings.Repeat("9", 5000)} {
		p, err := rule.ParsePercent(text)
		assert.Error(t, err, text)
		assert.False(t, p.IsSet())
		assert.Less(t, len(err.Error()), 200)
	}
	assert.Error(t, json.Unmarshal([]byte("null"), new(rule.Percent)), "null is what JavaScript makes of NaN")
	data, err := json.Marshal(rule.Percent{})
	require.NoError(t, err)
	assert.Equal(t, "null", string(data))
	assert.Empty(t, rule.Percent{}.String())
	assert.Panics(t, func() { rule.MustPercent("101") })
	assert.Equal(t, 99_999, rule.MustPercent("99.999").Thousandths())
}

// everything uses each field.
const everything = `{"key":"v","attributes":{"tenant":["host","header:x-tenant"],"user":[]},"carry":["uid","tenant"],` +
	`"rules":[{"id":"a","name":"<Ä & B>","enabled":false,"priority":-5,"services":["order","cart"],` +
	`"match":[{"attr":"uid","op":"mod","mod":100,"below":0},{"attr":"header:X","op":"regex","values":["<a>&"]},{"attr":"ip","op":"exists"}],` +
	`"percent":0,"hashBy":["uid","ip"],"salt":"s","from":"2026-12-01T00:00:00Z","until":"2026-12-02T00:00:00.5+08:00","tag":" v = x ;lane=%41"},` +
	`{"id":"b","enabled":true,"percent":99.999,"tag":"v=y"}],` +
	`"default":"v=stable","stop":true,"plans":{"p":{ "x" :  [1e300, 12345678901234567890, "<&>"] }},"meta":{"a":null,"note": "\u00e4"}}`

func TestMarshalRoundTrip(t *testing.T) {
	docs := []string{everything, `{}`}
	for _, s := range loadRules(t).Sets {
		docs = append(docs, string(s.Set))
	}
	for _, doc := range docs {
		set := parse(t, doc)
		data, err := rule.Marshal(set)
		require.NoError(t, err)
		assert.Equal(t, set, parse(t, string(data)), string(data))
		assert.Equal(t, set, set.Clone())

		// Through encoding/json the meaning stays, too.
		std, err := json.MarshalIndent(set, "", "\t")
		require.NoError(t, err)
		assert.JSONEq(t, string(data), string(std))
		var again rule.Set
		require.NoError(t, json.Unmarshal(std, &again))
		assert.Equal(t, set.Rules, again.Rules)
	}
	set := parse(t, everything)
	data, err := rule.Marshal(set)
	require.NoError(t, err)
	for _, raw := range []string{`{ "x" :  [1e300, 12345678901234567890, "<&>"] }`, `"note":"\u00e4"`, `<Ä & B>`, `"<a>&"`, `"below":0`, `"percent":0`, `"user":[]`, ` v = x ;lane=%41`} {
		assert.Contains(t, string(data), raw)
	}
	empty, err := rule.Marshal(&rule.Set{})
	require.NoError(t, err)
	assert.Equal(t, `{"rules":[]}`, string(empty))
}

func TestMarshalRefuses(t *testing.T) {
	_, err := rule.Marshal(&rule.Set{Meta: map[string]json.RawMessage{"a": json.RawMessage(`{`)}})
	assert.ErrorContains(t, err, "meta.a")
	_, err = rule.Marshal(&rule.Set{Rules: []rule.Rule{{From: time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)}}})
	assert.Error(t, err)
}

func TestUnmarshalIsStrict(t *testing.T) {
	set := rule.Set{Default: "version=v1"}
	err := json.Unmarshal([]byte(`{"rules":[{"id":"r"}]}`), &set)
	assert.Equal(t, []string{"rules[0].tag"}, paths(err))
	assert.Equal(t, "version=v1", set.Default, "it stays as it was")
}

func TestCloneSharesNothing(t *testing.T) {
	set, want := parse(t, everything), parse(t, everything)
	c := set.Clone()
	c.Attributes["tenant"][0] = "x"
	c.Carry[0] = "x"
	*c.Rules[0].Enabled = true
	c.Rules[0].Services[0], c.Rules[0].HashBy[0], c.Rules[0].Match[1].Values[0] = "x", "x", "x"
	c.Plans["p"][0], c.Meta["note"][0] = 'x', 'x'
	assert.Equal(t, want, set)
	assert.Nil(t, (*rule.Set)(nil).Clone())
}

// A document of nothing but faults costs no more than another one.
func TestParseManyFaults(t *testing.T) {
	ones := strings.TrimSuffix(strings.Repeat("1,", 100_000), ",")
	broken := strings.TrimSuffix(strings.Repeat(`"(",`, 100_000), ",")
	_, err := rule.Parse([]byte(`{"rules":[{"id":"r","tag":"a=b","match":[{"attr":"uid","op":"regex","values":[` + broken + `]},{"attr":"uid","op":"in","values":[` + ones + `]}]}]}`))
	faults := rule.Faults(err)
	require.Len(t, faults, 10_001)
	assert.Contains(t, faults[10_000].Reason, "more than")
	assert.Empty(t, faults[10_000].Path)
	assert.Less(t, len(err.Error()), 4096)
}

func TestParseRegexSize(t *testing.T) {
	for re, good := range map[string]bool{`x{999}`: true, `(a|b){500}`: true, `(x{9}){99}`: true, `(abcdefghijklmnop){999}`: false, `(a|bcd|efghijklmn){900}`: false, `\p{L}+`: true, `^/v[0-9]+/(order|cart)/.*$`: true} {
		_, err := rule.Parse([]byte(fmt.Sprintf(`{"rules":[{"id":"r","tag":"a=b","match":[{"attr":"path","op":"regex","values":[%q]}]}]}`, re)))
		assert.Equal(t, good, err == nil, "%s: %v", re, err)
	}

	set := &rule.Set{}
	for i := range 2100 {
		set.Rules = append(set.Rules, rule.Rule{ID: fmt.Sprint(i), Tag: "a=b", Match: []rule.Condition{{Attr: "path", Op: rule.OpRegex, Values: []string{fmt.Sprintf("%d[a-z]{999}", i)}}}})
	}
	_, err := rule.NewEngine(set)
	require.Len(t, rule.Faults(err), 1)
	assert.Contains(t, err.Error(), "together")
}

// Faults of one attribute hide none of another whose name goes on with a dot.
func TestParseFaultsOfDottedNames(t *testing.T) {
	_, err := rule.Parse([]byte(`{"attributes":{"a":5,"a.b":["heder:x"],"a.b.c":["header:"]},"carry":["a.b.d"]}`))
	assert.Equal(t, []string{"attributes.a", "attributes.a.b.c[0]", "attributes.a.b[0]", "carry[0]"}, paths(err))
}

// A time is RFC 3339 and nothing that package time takes beside it: what Parse
// takes Marshal can write, and other readers of the document understand.
func TestParseTimes(t *testing.T) {
	doc := func(at string) []byte {
		return []byte(`{"rules":[{"id":"r","tag":"version=v2","from":"` + at + `"}]}`)
	}
	for _, at := range []string{
		"2026-12-01T00:00:00Z", "2026-12-01T00:00:00.5Z", "2026-12-01T23:59:59.123456789+08:00", "2026-12-01T00:00:00-23:59",
		"0001-01-01T00:00:00-01:00", "9999-12-31T23:59:59.999999999-23:59",
	} {
		set, err := rule.Parse(doc(at))
		require.NoError(t, err, at)
		data, err := rule.Marshal(set)
		require.NoError(t, err, at)
		assert.True(t, set.Rules[0].From.Equal(parse(t, string(data)).Rules[0].From), at)
	}
	for _, at := range []string{
		"", "2026-12-01", "2026-12-01T00:00:00", "2026-12-01 00:00:00Z", "2026-12-01T0:00:00Z", "2026-12-01T00:00:00,5Z",
		"2026-12-01T00:00:00+24:00", "2026-12-01T00:00:00+08:60", "2026-12-01T00:00:00+0800", "2026-12-01T00:00:60Z",
		"2026-12-01T24:00:00Z", "2026-02-30T00:00:00Z", "2026-12-01T00:00:00.Z", "10000-01-01T00:00:00Z", "-001-01-01T00:00:00Z",
	} {
		_, err := rule.Parse(doc(at))
		assert.Equal(t, []string{"rules[0].from"}, paths(err), at)
	}
}

// What stands in a document comes into the log bounded.
func TestParseLongExpressions(t *testing.T) {
	_, err := rule.Parse([]byte(`{"rules":[{"id":"r","tag":"version=v2","match":[{"attr":"path","op":"regex","values":["` + strings.Repeat("(", 4000) + `"]}]}]}`))
	require.Len(t, rule.Faults(err), 1)
	assert.Less(t, len(err.Error()), 300)
}
