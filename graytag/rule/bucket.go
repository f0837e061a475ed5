package rule

import (
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

// Bucket returns the bucket, 0 to 99999, of a user under a salt: XXH64, seed 0,
// over the UTF-8 bytes of salt + ":" + key, modulo 100000. A rule of p percent
// chooses the users whose bucket is less than p*1000. Under one salt a growing
// percentage only adds users; different salts choose independently.
//
// The format is fixed: services in other languages may compute it for
// themselves. It does not allocate.
func Bucket(salt, key string) int {
	switch n := len(salt) + 1 + len(key); {
	case n < 32:
		return int(shortHash(salt, key) % hundred)
	case n <= 64:
		var buf [64]byte // to clear more costs more than to hash
		copy(buf[:], salt)
		buf[len(salt)] = ':'
		copy(buf[len(salt)+1:], key)
		return int(xxhash.Sum64(buf[:n]) % hundred)
	}
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(salt) // never fails
	_, _ = d.WriteString(":")
	_, _ = d.WriteString(key)
	return int(d.Sum64() % hundred)
}

// The primes of XXH64.
const (
	prime1 uint64 = 11400714785074694791
	prime2 uint64 = 14029467366897019727
	prime3 uint64 = 1609587929392839161
	prime4 uint64 = 9650029242287828579
	prime5 uint64 = 2870177450012600261
)

// shortHash is XXH64 of salt + ":" + key where that is less than 32 bytes, which
// most are. It puts the words together in registers: to write the bytes into a
// buffer and to read them again as words stalls the processor for longer than it
// takes to hash them.
func shortHash(salt, key string) uint64 {
	h := prime5 + uint64(len(salt)+1+len(key))
	i := 0
	for ; i+8 <= len(salt); i += 8 {
		h = round(h, word(salt, i))
	}
	// held holds the bytes that fill no word yet, n bits of them, 56 at most.
	n := uint(len(salt)-i) * 8
	held := tail(salt, len(salt)-i) | ':'<<n
	if n += 8; n == 64 {
		h, held, n = round(h, held), 0, 0
	}
	for i = 0; i+8 <= len(key); i += 8 {
		w := word(key, i)
		h = round(h, held|w<<(n&63))
		held = w >> 1 >> ((63 - n) & 63) // n may be 0; & 63 tells the compiler that it is less than 64
	}
	w := tail(key, len(key)-i)
	held |= w << (n & 63)
	if n += uint(len(key)-i) * 8; n >= 64 {
		h = round(h, held)
		n -= 64
		held = w >> (uint(len(key)-i)*8 - n)
	}
	if n >= 32 {
		h = bits.RotateLeft64(h^uint64(uint32(held))*prime1, 23)*prime2 + prime3
		held, n = held>>32, n-32
	}
	for ; n > 0; n -= 8 {
		h = bits.RotateLeft64(h^held&0xff*prime5, 11) * prime1
		held >>= 8
	}
	h = (h ^ h>>33) * prime2
	h = (h ^ h>>29) * prime3
	return h ^ h>>32
}

func round(h, w uint64) uint64 {
	return bits.RotateLeft64(h^bits.RotateLeft64(w*prime2, 31)*prime1, 27)*prime1 + prime4
}

// word returns the 8 bytes of s from i on; the compiler makes one load of it.
func word(s string, i int) uint64 {
	s = s[i : i+8]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

func halfWord(s string, i int) uint64 {
	s = s[i : i+4]
	return uint64(uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24)
}

// tail returns the last n bytes of s, which are the last of len(s) modulo 8: n is
// len(s) where that is less than 8. Loads may overlap.
func tail(s string, n int) uint64 {
	switch {
	case n == 0:
		return 0
	case len(s) >= 8:
		return word(s, len(s)-8) >> (64 - 8*uint(n))
	case n >= 4:
		return halfWord(s, 0) | halfWord(s, n-4)<<(8*uint(n-4))
	}
	return uint64(s[0]) | uint64(s[n/2])<<(8*uint(n/2)) | uint64(s[n-1])<<(8*uint(n-1))
}
