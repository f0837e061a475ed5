package consul_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/registry/consul"
)

// kvStandIn answers like an agent that holds one rule set, so that the example
// runs without one.
func kvStandIn() *httptest.Server {
	rules := `{"rules": [{"id": "testers", "tag": "version=v2.1.0",
		"match": [{"attr": "uid", "op": "suffix", "values": ["9999"]}]}]}`
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("index") {
			<-r.Context().Done() // nothing changes
			return
		}
		w.Header().Set("X-Consul-Index", "7")
		_ = json.NewEncoder(w).Encode([]api.KVPair{{Key: "graylane/rules", Value: []byte(rules), ModifyIndex: 7}})
	}))
}

func ExampleRegistry_RuleStore() {
	agent := kvStandIn() // yours listens on 127.0.0.1:8500
	defer agent.Close()

	reg, err := consul.New(&api.Config{Address: agent.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer reg.Close()
	store, err := reg.RuleStore("graylane/rules")
	if err != nil {
		fmt.Println(err)
		return
	}

	// A gateway lets its engine follow the store:
	//
	//	go engine.Follow(ctx, store)
	//
	// This is what the engine sees.
	for d, err := range store.Watch(context.Background()) {
		if err != nil {
			continue // the last rules stay good
		}
		set, err := rule.Parse(d.Data)
		if err != nil {
			fmt.Println(err)
			return
		}
		engine, err := rule.NewEngine(set)
		if err != nil {
			fmt.Println(err)
			return
		}
		tester := &rule.Request{Query: func(name string) (string, bool) { return "10009999", name == "uid" }}
		fmt.Println(d.Revision, engine.Decide(tester).Tag)
		break
	}
	// Output: 7 version=v2.1.0
}
