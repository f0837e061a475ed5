package rule_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
)

type vectorRequest struct {
	Header, Query, Cookie                       map[string]string
	Remote, Host, Path, Method, Source, Service string
	Time                                        time.Time
	Tag                                         string
	Rule                                        []string
	Why                                         string
}

func (v *vectorRequest) request() *rule.Request {
	r := &rule.Request{
		Header: lookup(v.Header), Query: exactly(v.Query), Cookie: exactly(v.Cookie),
		Host: v.Host, Path: v.Path, Method: v.Method, Source: v.Source, Service: v.Service, Time: v.Time,
	}
	if v.Remote != "" {
		r.IP = from(v.Remote)
	}
	return r
}

type ruleVectors struct {
	Sets []struct {
		Name     string
		Set      json.RawMessage
		Requests []vectorRequest
	}
	Invalid []struct {
		Set       json.RawMessage
		Path, Why string
	}
}

func loadRules(t testing.TB) ruleVectors {
	t.Helper()
	data, err := os.ReadFile("testdata/rules.json")
	require.NoError(t, err)
	var v ruleVectors
	require.NoError(t, json.Unmarshal(data, &v))
	require.NotEmpty(t, v.Sets)
	require.NotEmpty(t, v.Invalid)
	return v
}

func TestVectors(t *testing.T) {
	for _, s := range loadRules(t).Sets {
		t.Run(s.Name, func(t *testing.T) {
			set, err := rule.Parse(s.Set)
			require.NoError(t, err)
			e, err := rule.NewEngine(set)
			require.NoError(t, err)
			require.NotEmpty(t, s.Requests)
			for i, v := range s.Requests {
				name := fmt.Sprintf("request %d %s", i, v.Why)
				for range 2 { // the second is answered from the cache of combinations
					d := e.Decide(v.request())
					assert.Equal(t, v.Tag, d.Tag.String(), name)
					assert.ElementsMatch(t, v.Rule, d.Rules, name)
					if len(v.Rule) > 0 {
						assert.Equal(t, v.Rule, d.Rules, name)
					}
				}
				x := e.Explain(v.request())
				assert.Equal(t, v.Tag, x.Decision.Tag.String(), name)
				var applied []string
				for _, r := range x.Rules {
					if r.Applied {
						applied = append(applied, r.ID)
					}
				}
				assert.ElementsMatch(t, v.Rule, applied, name)
			}
		})
	}
}

func paths(err error) (list []string) {
	for _, f := range rule.Faults(err) {
		list = append(list, f.Path)
	}
	return list
}

func TestVectorsInvalid(t *testing.T) {
	for _, v := range loadRules(t).Invalid {
		t.Run(v.Path+" "+v.Why, func(t *testing.T) {
			set, err := rule.Parse(v.Set)
			require.Error(t, err)
			assert.Nil(t, set)
			assert.Equal(t, []string{v.Path}, paths(err), err.Error())
			var fault *rule.Error
			require.ErrorAs(t, err, &fault)
			assert.Equal(t, v.Path, fault.Path)
			assert.NotEmpty(t, fault.Reason)
			assert.True(t, strings.HasPrefix(err.Error(), "rule: "+v.Path+": "), err.Error())
		})
	}
}

// What about_invalid in the vectors says in words.
func TestVectorsAboutInvalid(t *testing.T) {
	_, err := rule.Parse([]byte(`{"rules":[{"id":"a b","Percent":5,"match":[{"attr":"uid","op":"regex","values":["a","("]}],"tag":"version=v2"}]}`))
	assert.ElementsMatch(t, []string{"rules[0].id", "rules[0].Percent", "rules[0].match[0].values[1]"}, paths(err))
	_, err = rule.Parse([]byte(`{"rules":[],"rules":[]}`))
	assert.Equal(t, []string{"rules"}, paths(err))
}

func TestVectorsBucket(t *testing.T) {
	data, err := os.ReadFile("testdata/bucket.json")
	require.NoError(t, err)
	var v struct {
		Buckets []struct {
			Salt, Key string
			Bucket    int
		}
		Population map[string]int
	}
	require.NoError(t, json.Unmarshal(data, &v))
	require.NotEmpty(t, v.Buckets)
	require.NotEmpty(t, v.Population)
	for _, b := range v.Buckets {
		assert.Equal(t, b.Bucket, rule.Bucket(b.Salt, b.Key), "%q %q", b.Salt, b.Key)
	}
	buckets, users := make([]int, 100_000), make([]string, 100_000)
	for i := range buckets {
		users[i] = fmt.Sprintf("u%d", i)
		buckets[i] = rule.Bucket("population", users[i])
	}
	for percent, want := range v.Population {
		p, err := rule.ParsePercent(percent)
		require.NoError(t, err)
		in := 0
		for _, b := range buckets {
			if b < p.Thousandths() {
				in++
			}
		}
		assert.Equal(t, want, in, percent)

		// The same through an engine.
		e := engine(t, `{"rules":[{"id":"r","percent":`+percent+`,"salt":"population","tag":"version=v2"}]}`)
		for i, u := range users[:fewer(len(users))] {
			if gray := !e.Decide(user(u)).Tag.IsZero(); gray != (buckets[i] < p.Thousandths()) {
				t.Fatalf("%s at %s %%: %v", u, percent, gray)
			}
		}
	}
}
