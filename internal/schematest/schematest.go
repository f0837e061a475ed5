// Package schematest checks documents against the JSON Schemas of this module, in
// tests. It knows as much of JSON Schema as those use.
package schematest

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Object is a schema, or a document, as encoding/json reads it.
type Object = map[string]any

// Resolve follows a reference; what stands beside it stays.
func Resolve(root, s Object) Object {
	ref, ok := s["$ref"].(string)
	if !ok {
		return s
	}
	at := root
	for _, step := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		at = at[step].(Object)
	}
	merged := maps.Clone(Resolve(root, at))
	for k, v := range s {
		if k != "$ref" {
			merged[k] = v
		}
	}
	return merged
}

// Valid returns where v is not as root has it, each with the keyword. A keyword that
// is not known here is a failure of the test.
func Valid(t testing.TB, root Object, v any) (bad []string) {
	t.Helper()
	return valid(t, root, root, v, "")
}

func valid(t testing.TB, root, s Object, v any, path string) (bad []string) {
	t.Helper()
	fail := func(keyword string) { bad = append(bad, path+" "+keyword) }
	sub := func(s any, v any, path string) {
		switch s := s.(type) {
		case bool:
			if !s {
				bad = append(bad, path+" false")
			}
		case Object:
			bad = append(bad, valid(t, root, s, v, path)...)
		}
	}
	s = Resolve(root, s)
	text, isText := v.(string)
	number, isNumber := v.(float64)
	list, isList := v.([]any)
	fields, isObject := v.(Object)
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
			for name, p := range arg.(Object) {
				if e, ok := fields[name]; ok {
					sub(p, e, path+"."+name)
				}
			}
		case "additionalProperties":
			known, _ := s["properties"].(Object)
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
			if len(valid(t, root, arg.(Object), v, path)) == 0 {
				fail(keyword)
			}
		case "if":
			branch := "then"
			if len(valid(t, root, arg.(Object), v, path)) > 0 {
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
