// Package consul registers instances with HashiCorp Consul, discovers them there,
// keeps gray rules in its KV store, and elects a leader by a lock in it.
//
//	reg, err := consul.New(nil) // CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN, …
//	if err != nil {
//		return err
//	}
//	defer reg.Close()
//	r, err := reg.Register(ctx, registry.FromEnv(registry.Instance{
//		ID: "inventory-1", Service: "inventory", Address: "10.0.0.7:8080",
//	}))
//
// Address, ACL token, TLS, datacenter, namespace and partition come from the
// [api.Config] given to [New], or from the environment as Consul's own tools read
// it. A process needs one [Registry], both to register and to discover.
//
// # Registration
//
// An instance is registered with the agent, with a TTL check that a background
// goroutine keeps alive ([WithTTL]), or with a check that the agent does itself
// ([WithHTTPCheck], [WithGRPCCheck], [WithCheck]). Where the agent has forgotten
// the instance, after a restart without its data for instance, the instance is
// registered again, at the latest a third of the TTL after the agent is back.
// While the agent cannot be reached that goroutine tries on, with a growing delay
// and a bounded log.
//
// [registry.Registration.Deregister] takes the instance out; where Consul cannot
// be reached it returns an error, no background work goes on, and another call
// tries again. A process that dies without it leaves an instance that turns
// critical when the TTL is over; [WithDeregisterCriticalAfter] lets Consul reap it.
//
// Consul is stricter about metadata than graylane: at most 64 pairs, keys of
// A-Z a-z 0-9 - _ up to 128 bytes that do not begin with "consul-", values up to
// 512 bytes. Anything else is refused with a [*registry.InvalidError] before
// Consul is asked. Weights above 65535 are registered as 65535. An instance
// registered with another status than passing keeps it: warning and critical in
// its TTL check, maintenance as Consul's service maintenance mode.
//
// # Discovery
//
// A watch is a blocking query for the instances of a service in every health
// status; all readers of a service share it. The weight of an instance is Consul's
// weight for passing instances, its Seq the create index of the service, its
// address the one of the service or else of the node. Maintenance mode of the
// service or the node is [registry.StatusMaintenance]. What was registered
// without a port cannot be dialled and is left out.
//
// The queries name the agent in ?near=, which keeps Consul from answering out of
// its streaming cache: that was seen to lose instances. Every wait that brought
// nothing ([WithWaitTime]) is followed by a query that does not wait.
//
// Any server may answer ([WithAllowStale]), so that discovery works while the
// cluster has no leader. An index that goes backwards, which happens when a server
// was restored or has only just started, makes the answer doubtful: it is read
// again, without an index and from the leader, before it is applied. An empty
// answer that Consul's ACLs have filtered is an error, not an empty service. Any
// error is yielded, the last set stays good, and the next try follows after a
// delay that grows up to 30 s; the log gets a line when it begins, one a minute
// while it lasts, and one when it is over.
//
// After an outage of the agent, but not of its servers alone, instances that served
// before it and that the agent has forgotten, or calls critical, are kept for a
// grace ([WithOutageGrace]): an agent that lost its data gets its registrations back
// within moments, and no request has to fail in between.
//
// Every watched service holds one HTTP connection to the agent, which allows 200
// for each client address by default (limits.http_max_conns_per_client).
//
// # Rules
//
// [Registry.RuleStore] is a key of Consul KV as a [rule.Store]: every gateway
// follows it, and whoever writes the key decides who is gray, everywhere, within
// milliseconds.
//
//	store, err := reg.RuleStore("graylane/rules")
//	if err != nil {
//		return err
//	}
//	go engine.Follow(ctx, store)
//
// The key holds the JSON document itself. It may be edited in Consul's UI, or with
//
//	consul kv put graylane/rules @rules.json
//
// but only [RuleStore.Put] keeps two writers from overwriting each other, and notes
// author and reason; the last 50 documents are below graylane/rules.history/. From
// 64 KiB on Put compresses the document with gzip (consul kv get graylane/rules |
// zcat), and any compressed document is understood. How much fits, Put says.
//
// A follower asks again at the latest after 5.5 s, through a new connection where
// the one it has is dead, and it is the leader that answers, after it has made sure
// to be one: a change is never missed for longer than 6 s, and no stale read takes
// it back. Without a leader, or without an agent, the last rules stay. A deleted key
// is no rules: everything is stable. A key that the token may not read is an error,
// not a deleted key.
//
// # Leadership
//
// [Registry.Elector] lets one of several processes lead, the one that moves the
// plans of package rollout for instance:
//
//	elector, err := reg.Elector("graylane/leader")
//	if err != nil {
//		return err
//	}
//	err = elector.Lead(ctx, func(ctx context.Context) error {
//		// this process leads until ctx ends
//	})
//
// A leader that ends is replaced at once, one that has died within 25 s. One that
// cannot reach Consul stops to lead before Consul lets another one; [Elector] says
// why, and what a person can do that breaks it.
//
// # Security
//
// Who can write services in Consul decides where traffic goes: use ACLs with
// service:write for a service's own name only, and service:read and node:read for
// what it calls. The same holds for rules: gateways need
//
//	key_prefix "graylane/rules" { policy = "read" }
//
// and only what operators use, and the gateways that move plans, need "write" there.
// Those that stand for leader also need
//
//	key "graylane/leader" { policy = "write" }
//	session "NODE"        { policy = "write" } // NODE is the agent's own
//
// Without read access to the
// history below the key, rules are followed all the same, and their author is not
// known. Tokens are sent as a header and appear in no error and no log.
package consul
