package rule

import "github.com/cespare/xxhash/v2"

// Bucket returns the bucket, 0 to 99999, of a user under a salt: XXH64, seed 0,
// over the UTF-8 bytes of salt + ":" + key, modulo 100000. A rule of p percent
// chooses the users whose bucket is less than p*1000. Under one salt a growing
// percentage only adds users; different salts choose independently.
//
// The format is fixed: services in other languages may compute it for
// themselves. It does not allocate.
func Bucket(salt, key string) int {
	var buf [64]byte // enough for most; to clear more costs more than to hash
	n := len(salt) + 1 + len(key)
	if n > len(buf) {
		return longBucket(salt, key)
	}
	copy(buf[:], salt)
	buf[len(salt)] = ':'
	copy(buf[len(salt)+1:], key)
	return int(xxhash.Sum64(buf[:n]) % hundred)
}

func longBucket(salt, key string) int {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(salt) // never fails
	_, _ = d.WriteString(":")
	_, _ = d.WriteString(key)
	return int(d.Sum64() % hundred)
}
