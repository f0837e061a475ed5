package rule_test

import (
	"math/rand/v2"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/graylane/graylane/graytag/rule"
)

// Every way to split every length that Bucket treats in a way of its own comes to
// what XXH64 says of the whole.
func TestBucketIsXXH64OfTheWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, 200)
	for i := range text {
		text[i] = byte(rng.Uint32())
	}
	for salt := range 80 {
		for key := range 80 {
			s, k := string(text[:salt]), string(text[100:100+key])
			if want := int(xxhash.Sum64String(s+":"+k) % 100_000); rule.Bucket(s, k) != want {
				t.Fatalf("salt of %d bytes, key of %d: bucket %d, want %d", salt, key, rule.Bucket(s, k), want)
			}
		}
	}
}
