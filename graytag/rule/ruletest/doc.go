// Package ruletest tests implementations of [rule.Store]: the suite that the
// stores of graylane pass, and that a store of your own should.
//
//	func TestStore(t *testing.T) {
//		ruletest.Run(t, func(t *testing.T) ruletest.Harness {
//			s := mystore.New(t.TempDir())
//			return ruletest.Harness{
//				Store:    s,
//				Delete:   func(ctx context.Context) error { return s.Remove(ctx) },
//				TooLarge: 1 << 20,
//			}
//		})
//	}
//
// Each subtest opens a store of its own, which must be empty. Run it with -race.
// The suite waits for what a store does, up to a bound, and asserts no times.
package ruletest
