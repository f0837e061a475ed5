package balancer_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/credentials/insecure"

	graylane "github.com/graylane/graylane/balancer"
)

func parse(js string) error {
	_, err := balancer.Get(graylane.Name).(balancer.ConfigParser).ParseConfig(json.RawMessage(js))
	return err
}

func TestConfig(t *testing.T) {
	for _, js := range []string{
		`{}`,
		`{"service":"order","key":"gray","stable":["false"],"foldCase":true,"fallback":["stable","any"],"minReady":2,"connectWait":"1.5s","childPolicy":[{"round_robin":{}}]}`,
		`{"strict":true,"stable":[],"connectWait":"0s"}`,
		`{"childPolicy":[{"from_the_future":{}},{"round_robin":{}}]}`,
		`{"childPolicy":[{"least_request_experimental":{"choiceCount":3}}]}`,
	} {
		assert.NoError(t, parse(js), js)
	}
	for js, want := range map[string]string{
		``:                                      "balancer: config: EOF",
		`[]`:                                    "balancer: config: ",
		`{}{}`:                                  "text after the object",
		`{"fallbak":["any"]}`:                   `unknown field "fallbak"`,
		`{"key":"a b"}`:                         `key "a b"`,
		`{"minReady":-1}`:                       "minReady -1",
		`{"strict":true,"fallback":["any"]}`:    "strict and fallback",
		`{"connectWait":"soon"}`:                `connectWait "soon"`,
		`{"connectWait":"-1s"}`:                 `connectWait "-1s"`,
		`{"connectWait":1}`:                     "connectWait",
		`{"childPolicy":{"round_robin":{}}}`:    "childPolicy",
		`{"childPolicy":[]}`:                    "childPolicy",
		`{"childPolicy":[{"a":{},"b":{}}]}`:     "childPolicy[0] has 2 entries",
		`{"childPolicy":[{"round_robbin":{}}]}`: `["round_robbin"]: no such policy is registered`,
		`{"childPolicy":[{"graylane":{}}]}`:     "inside itself",
		`{"childPolicy":[{"ring_hash_experimental":{}}]}`:                    "requestHashHeader",
		`{"childPolicy":[{"pick_first":{}}],"minReady":2}`:                   "minReady 2",
		`{"childPolicy":[{"least_request_experimental":{"choiceCount":1}}]}`: "choiceCount",
	} {
		err := parse(js)
		require.Error(t, err, js)
		assert.Contains(t, err.Error(), want, js)
		assert.Contains(t, err.Error(), "balancer: config: ", js)
	}
}

// The service config as gRPC reads it at dial time.
func TestB7_BadServiceConfigFailsTheDial(t *testing.T) {
	for js, want := range map[string]string{
		`{"loadBalancingConfig":[{"graylan":{}}]}`:                                     "graylan",
		`{"loadBalancingConfig":[{"graylane":{"minReadi":1}}]}`:                        "minReadi",
		`{"loadBalancingConfig":[{"graylane":{"childPolicy":[{"round_robbin":{}}]}}]}`: "round_robbin",
		`{"loadBalancingConfig":[{"graylane":{"childPolicy":[{"round_robin":{}}]}}`:    "unexpected end",
	} {
		_, err := grpc.NewClient("dns:///localhost:1", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(js))
		require.Error(t, err, js)
		assert.Contains(t, err.Error(), want)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add(`{}`)
	f.Add(`{"service":"order","key":"gray","stable":["false"],"foldCase":true,"fallback":["stable","any"],"minReady":2,"connectWait":"1.5s","childPolicy":[{"round_robin":{}}]}`)
	f.Add(`{"childPolicy":[{"ring_hash_experimental":{"requestHashHeader":"x"}}]}`)
	f.Fuzz(func(t *testing.T, js string) {
		cfg, err := balancer.Get(graylane.Name).(balancer.ConfigParser).ParseConfig(json.RawMessage(js))
		if err == nil && cfg == nil {
			t.Error("neither a config nor an error")
		}
	})
}
