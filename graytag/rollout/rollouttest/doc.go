// Package rollouttest tests implementations of [rollout.Elector]: the suite that
// the electors of graylane pass, and that one of your own should.
//
//	func TestElector(t *testing.T) {
//		rollouttest.Elector(t, func(t *testing.T) func(id string) rollout.Elector {
//			group := mygroup.New(t.TempDir())
//			return func(id string) rollout.Elector { return group.Candidate(id) }
//		})
//	}
//
// Run it with -race. The suite waits for what an elector does, up to a bound, and
// asserts no times.
package rollouttest
