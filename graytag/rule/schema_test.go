package rule_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/schematest"
)

type object = schematest.Object

func schema(t testing.TB) object {
	t.Helper()
	var s object
	require.NoError(t, json.Unmarshal(rule.Schema(), &s))
	return s
}

// Every field of the types is in the schema with the type that it has in JSON,
// and nothing else is.
func TestSchemaIsThatOfTheTypes(t *testing.T) {
	root := schema(t)
	var check func(path string, typ reflect.Type, s object)
	check = func(path string, typ reflect.Type, s object) {
		s = schematest.Resolve(root, s)
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
					assert.NotEmpty(t, schematest.Resolve(root, property)["description"], "%s.%s", path, name)
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
		assert.Empty(t, schematest.Valid(t, root, read([]byte(doc))), doc)
	}
	// What a schema cannot say is left to Parse.
	beyond := []string{"id used twice", "not a tag", "no such attribute", "not a range", "not a regular expression", "more than three decimals", "not after from"}
	for _, v := range vectors.Invalid {
		bad := schematest.Valid(t, root, read(v.Set))
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
