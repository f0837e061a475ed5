// Package registrytest tests implementations of [registry.Registrar] and
// [registry.Discovery], as testing/slogtest does for handlers. Whoever writes a
// registry for graylane runs it from a test of his own:
//
//	func TestConformance(t *testing.T) {
//		registrytest.Run(t, func(t *testing.T) registrytest.Registry {
//			r, err := myregistry.New(server.Address())
//			if err != nil {
//				t.Fatal(err)
//			}
//			t.Cleanup(func() { r.Close() })
//			return r
//		})
//	}
//
// Every sentence of the documentation of the interfaces has a subtest. The tests
// use nothing but the interfaces, wait for conditions instead of for times, and
// give every instance and service a name that is used once, so that one server may
// serve all of them and other users as well. They deregister what they register.
//
// What the tests cannot see is whether goroutines end: run them under
// go.uber.org/goleak, and under the race detector.
package registrytest
