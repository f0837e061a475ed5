// Package consultest runs real HashiCorp Consul agents for tests.
//
//	agent := consultest.Start(t)
//	reg, err := consul.New(agent.Config())
//
// [Start] runs one server with its own data folder on free ports of the loopback
// interface, [StartSecure] one that is reached by mTLS with an ACL token only;
// [StartCluster] runs several that elect a leader. An agent can be
// killed and started again on the same ports, with its data or without. Every
// agent is killed when its test ends, on Linux also when the test process dies.
//
// The consul binary comes from the environment variable GRAYLANE_CONSUL, else
// from PATH, else it is built once from the nested module internal/tools/consul
// into the user's cache folder: some minutes the first time. Where none of it
// works the test fails with the reason. It is skipped only where the nested module
// is absent, which is so in a module cache.
package consultest
