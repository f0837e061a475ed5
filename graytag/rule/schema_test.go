package rule_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
)

type object = map[string]any

func schema(t testing.TB) object {
	t.Helper()
	var s object
	require.NoError(t, json.Unmarshal(rule.Schema(), &s))
	return s
}

// resolve follows a reference; what stands beside it stays.
func resolve(root, s object) object {
	ref, ok := s["$ref"].(string)
	if !ok {
		return s
	}
	at := root
	for _, step := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		at = at[step].(object)
	}
	merged := maps.Clone(resolve(root, at))
	for k, v := range s {
		if k != "$ref" {
			merged[k] = v
		}
	}
	return merged
}

// Every field of the types is in the schema with the type that it has in JSON,
// and nothing else is.
func TestSchemaIsThatOfTheTypes(t *testing.T) {
	root := schema(t)
	var check func(path string, typ reflect.Type, s object)
	check = func(path string, typ reflect.Type, s object) {
		s = resolve(root, s)
		want := ""
		switch {
		case typ == reflect.TypeFor[rule.Percent]():
			want = "number"
		case typ == reflect.TypeFor[time.Time]():
			want = "string"
			assert.Equal(t, "date-time", s["format"], path)
		case typ == reflect.TypeFor[rule.Op]():
			var ops []string
			for _, op := range s["enum"].([]any) {
				ops = append(ops, op.(string))
			}
			var all []string
			for _, op := range rule.Ops() {
				all = append(all, string(op))
			}
			assert.Equal(t, all, ops, path)
			return
		case typ.Kind() == reflect.Pointer:
			check(path, typ.Elem(), s)
			return
		case typ.Kind() == reflect.Slice:
			want = "array"
			check(path+"[]", typ.Elem(), s["items"].(object))
		case typ.Kind() == reflect.Map:
			want = "object"
			if typ.Elem() != reflect.TypeFor[json.RawMessage]() {
				check(path+".*", typ.Elem(), s["additionalProperties"].(object))
			}
		case typ.Kind() == reflect.Struct:
			want = "object"
			assert.Equal(t, false, s["additionalProperties"], path)
			properties := s["properties"].(object)
			var names, required []string
			for i := range typ.NumField() {
				name, options, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
				names = append(names, name)
				if options == "" && name != "rules" {
					required = append(required, name)
				}
				property, ok := properties[name].(object)
				if assert.True(t, ok, "%s.%s is missing", path, name) {
					assert.NotEmpty(t, resolve(root, property)["description"], "%s.%s", path, name)
					check(path+"."+name, typ.Field(i).Type, property)
				}
			}
			assert.ElementsMatch(t, names, slices.Collect(maps.Keys(properties)), path)
			got, _ := s["required"].([]any)
			assert.Equal(t, fmt.Sprint(required), fmt.Sprint(got), path)
		default:
			want = map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Int64: "integer"}[typ.Kind()]
		}
		assert.Equal(t, want, s["type"], path)
	}
	check("", reflect.TypeFor[rule.Set](), root)
}

// valid is as much of JSON Schema as the schema uses. What it does not know is a
// failure.
func valid(t testing.TB, root, s object, v any, path string) (bad []string) {
	t.Helper()
	fail := func(keyword string) { bad = append(bad, path+" "+keyword) }
	sub := func(s any, v any, path string) {
		switch s := s.(type) {
		case bool:
			if !s {
				bad = append(bad, path+" false")
			}
		case object:
			bad = append(bad, valid(t, root, s, v, path)...)
		}
	}
	s = resolve(root, s)
	text, isText := v.(string)
	number, isNumber := v.(float64)
	list, isList := v.([]any)
	fields, isObject := v.(object)
	for keyword, arg := range s {
		switch keyword {
		case "$schema", "$id", "$defs", "title", "description", "default", "examples", "then", "else":
		case "type":
			ok := map[any]bool{"string": isText, "number": isNumber, "integer": isNumber && number == math.Trunc(number), "array": isList, "object": isObject, "boolean": v == true || v == false}[arg]
			if !ok {
				fail(keyword)
			}
		case "enum":
			if !slices.Contains(arg.([]any), v) {
				fail(keyword)
			}
		case "const":
			if arg != v {
				fail(keyword)
			}
		case "pattern":
			if isText && !regexp.MustCompile(arg.(string)).MatchString(text) {
				fail(keyword)
			}
		case "minLength", "maxLength":
			if n := float64(len([]rune(text))); isText && (keyword == "minLength" && n < arg.(float64) || keyword == "maxLength" && n > arg.(float64)) {
				fail(keyword)
			}
		case "minimum", "maximum":
			if isNumber && (keyword == "minimum" && number < arg.(float64) || keyword == "maximum" && number > arg.(float64)) {
				fail(keyword)
			}
		case "minItems", "maxItems":
			if n := float64(len(list)); isList && (keyword == "minItems" && n < arg.(float64) || keyword == "maxItems" && n > arg.(float64)) {
				fail(keyword)
			}
		case "maxProperties":
			if isObject && float64(len(fields)) > arg.(float64) {
				fail(keyword)
			}
		case "format":
			if _, err := time.Parse(time.RFC3339, text); isText && err != nil {
				fail(keyword)
			}
		case "items":
			for i, e := range list {
				sub(arg, e, fmt.Sprintf("%s[%d]", path, i))
			}
		case "required":
			for _, name := range arg.([]any) {
				if _, ok := fields[name.(string)]; isObject && !ok {
					fail(keyword)
				}
			}
		case "properties":
			for name, p := range arg.(object) {
				if e, ok := fields[name]; ok {
					sub(p, e, path+"."+name)
				}
			}
		case "additionalProperties":
			known, _ := s["properties"].(object)
			for name, e := range fields {
				if _, ok := known[name]; !ok {
					sub(arg, e, path+"."+name)
				}
			}
		case "propertyNames":
			for name := range fields {
				sub(arg, name, path+"."+name)
			}
		case "not":
			if len(valid(t, root, arg.(object), v, path)) == 0 {
				fail(keyword)
			}
		case "if":
			branch := "then"
			if len(valid(t, root, arg.(object), v, path)) > 0 {
				branch = "else"
			}
			if next, ok := s[branch]; ok {
				sub(next, v, path)
			}
		default:
			t.Errorf("the test does not know the keyword %q", keyword)
		}
	}
	return bad
}

func TestSchemaTakesWhatParseTakes(t *testing.T) {
	root, vectors := schema(t), loadRules(t)
	read := func(doc []byte) (v any) {
		require.NoError(t, json.Unmarshal(doc, &v))
		return v
	}
	docs := []string{everything, `{}`}
	for _, s := range vectors.Sets {
		docs = append(docs, string(s.Set))
	}
	for _, doc := range docs {
		assert.Empty(t, valid(t, root, root, read([]byte(doc)), ""), doc)
	}
	// What a schema cannot say is left to Parse.
	beyond := []string{"id used twice", "not a tag", "no such attribute", "not a range", "not a regular expression", "more than three decimals", "not after from"}
	for _, v := range vectors.Invalid {
		bad := valid(t, root, root, read(v.Set), "")
		if slices.Contains(beyond, v.Why) {
			continue
		}
		assert.NotEmpty(t, bad, "%s: %s", v.Path, v.Why)
	}
}

func TestSchemaIsACopy(t *testing.T) {
	rule.Schema()[0] = 'x'
	assert.Equal(t, byte('{'), rule.Schema()[0])
}
