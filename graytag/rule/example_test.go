package rule_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/graylane/graylane/graytag/rule"
)

func Example() {
	set, err := rule.Parse([]byte(`{
		"rules": [
			{"id": "testers", "match": [{"attr": "uid", "op": "suffix", "values": ["9999"]}], "tag": "version=v2.1.0"},
			{"id": "app-10pct", "match": [{"attr": "channel", "op": "in", "values": ["app"]}], "percent": 10, "tag": "version=v2.1.0"}
		],
		"default": "version=stable"
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	engine, err := rule.NewEngine(set)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, uid := range []string{"19999", "10012", "10086"} {
		headers := map[string]string{"X-User-Id": uid, "X-Channel": "app"}
		d := engine.Decide(&rule.Request{
			Header: func(name string) (string, bool) { v, ok := headers[name]; return v, ok },
			IP:     netip.MustParseAddr("203.0.113.7"),
		})
		fmt.Println(uid, d.Tag, d.Rules)
	}
	// Output:
	// 19999 version=v2.1.0 [testers]
	// 10012 version=v2.1.0 [app-10pct]
	// 10086 version=stable []
}

// All faults of a document come at once, each with its path.
func ExampleParse() {
	_, err := rule.Parse([]byte(`{"rules": [
		{"id": "a", "precent": 5, "tag": "version=v2"},
		{"id": "b", "match": [{"attr": "shoe", "op": "equals", "values": ["x"]}], "tag": "version=v2"}
	]}`))
	for _, fault := range rule.Faults(err) {
		fmt.Printf("%s: %s\n", fault.Path, fault.Reason)
	}
	// Output:
	// rules[0].precent: unknown field; did you mean "percent"?
	// rules[1].match[0].attr: no such attribute: shoe
}

// An engine follows a store: a good document is in force at once, a bad one
// changes nothing.
func ExampleEngine_Follow() {
	ctx, cancel := context.WithCancel(context.Background())
	store := rule.NewMemoryStore()
	changes := make(chan rule.Status, 10)
	engine, _ := rule.NewEngine(nil, rule.WithNotify(func(s rule.Status) { changes <- s }), rule.WithLogger(slog.New(slog.DiscardHandler)))
	done := make(chan error)
	go func() { done <- engine.Follow(ctx, store) }()

	revision, err := store.Put(ctx, rule.Document{
		Data:   []byte(`{"rules": [{"id": "all", "tag": "version=v2"}]}`),
		Author: "ann", Reason: "v2 for everyone",
	}, 0)
	if err != nil {
		fmt.Println(err)
	}
	for s := range changes { // a program need not wait
		if s.Revision == revision {
			break
		}
	}
	fmt.Println(engine.Decide(nil).Tag, "by", engine.Status().Author)

	_, err = store.Put(ctx, rule.Document{Data: []byte(`{}`)}, revision+1)
	fmt.Println(errors.Is(err, rule.ErrConflict))

	cancel()
	fmt.Println(<-done)
	// Output:
	// version=v2 by ann
	// true
	// context canceled
}

// Why a request got what it got.
func ExampleEngine_Explain() {
	set, _ := rule.Parse([]byte(`{"rules": [
		{"id": "office", "match": [{"attr": "ip", "op": "cidr", "values": ["10.0.0.0/8"]}], "tag": "version=v2"},
		{"id": "some", "percent": 50, "hashBy": ["uid", "ip"], "salt": "r", "tag": "version=v2"}
	]}`))
	engine, _ := rule.NewEngine(set)
	x := engine.Explain(&rule.Request{IP: netip.MustParseAddr("203.0.113.7")})
	for _, r := range x.Rules {
		fmt.Printf("%s: %s attr=%q value=%q bucket=%d hashBy=%q\n", r.ID, r.Verdict, r.Attr, r.Value, r.Bucket, r.HashBy)
	}
	fmt.Println(x.Decision.Tag)
	// Output:
	// office: condition attr="ip" value="203.0.113.7" bucket=-1 hashBy=""
	// some: matched attr="" value="" bucket=31788 hashBy="ip"
	// version=v2
}

func ExampleLint() {
	set, _ := rule.Parse([]byte(`{"rules": [
		{"id": "order", "services": ["order"], "percent": 10, "tag": "version=v2"},
		{"id": "cart", "services": ["cart"], "percent": 10, "tag": "version=v2"}
	]}`))
	versions := map[string][]string{"order": {"", "v2"}, "cart": {""}}
	for _, f := range rule.Lint(set, func(service string) []string { return versions[service] }) {
		fmt.Println(f.Code+":", f.Message)
	}
	// Output:
	// different_users: rules order and cart are of one lane (version=v2) and choose different users: give them one salt and one hashBy
	// no_instance: rule cart names version v2 of cart, which has no such instance
}

func ExampleBucket() {
	percent := rule.MustPercent("12.5")
	bucket := rule.Bucket("checkout-v2", "10086")
	fmt.Println(bucket, bucket < percent.Thousandths())
	// Output: 6842 true
}
