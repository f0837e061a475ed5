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
// answer that Consul's ACLs have filtered is an error, not an empty service; without
// a token Consul does not say so, and the agent is asked for service:read. Any
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
// for each client address by default (limits.http_max_conns_per_client). Over TLS
// watches share connections (HTTP/2).
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
// # TLS
//
// An agent that serves HTTPS and asks for client certificates (verify_incoming) is
// reached with
//
//	reg, err := consul.New(&api.Config{
//		Address: "127.0.0.1:8501", Scheme: "https", Token: token,
//		TLSConfig: api.TLSConfig{CAFile: "ca.pem", CertFile: "client.pem", KeyFile: "client-key.pem"},
//	})
//
// or with New(nil) and the environment: CONSUL_HTTP_ADDR, as https://host:port or
// beside CONSUL_HTTP_SSL=true, CONSUL_CACERT, CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY,
// and CONSUL_HTTP_TOKEN or CONSUL_HTTP_TOKEN_FILE. New reads the files, once.
// Certificates that are renewed while the process runs take a Transport with a
// TLSClientConfig of its own (GetClientCertificate); a new token takes a new
// [Registry]. The TLSConfig does not count beside an HttpClient.
//
// # Security
//
// Who can write services or rules in Consul decides where traffic goes. Use ACLs
// that deny by default, and give each process what it needs:
//
//	service "order" { policy = "write" } // to register order
//
//	service "stock" { policy = "read" }  // to watch stock
//	node_prefix ""  { policy = "read" }  // the nodes that it runs on
//
//	key "graylane/rules"                 { policy = "read" } // to follow rules
//	key_prefix "graylane/rules.history/" { policy = "read" } // … with their author; for History
//
//	key "graylane/rules"                 { policy = "write" } // to Put rules
//	key_prefix "graylane/rules.history/" { policy = "write" }
//
//	key "graylane/leader" { policy = "write" } // to stand for leader; "read" for Elector.Leader
//	session "NODE"        { policy = "write" } // NODE is the agent's own
//
// Where acl.enable_key_list_policy is on, History takes "list" in place of "read".
//
// A call that lacks a right returns an error that says so. When a token loses its
// rights while it is used, the last instances and rules stay, a leader steps down
// before its session can expire, and all goes on when the rights are back.
//
// Take a token away only after what was registered with it is deregistered: the
// agent needs it to write the catalog. Without it an instance is neither taken out
// nor shown as critical, whoever asks for it, and goes on to get requests.
//
// Tokens are sent as a header and appear in no error and no log.
package consul
