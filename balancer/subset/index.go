package subset

// index finds the choice for a version: what a map does, at a third of its
// cost, which is most of what a pick costs; Table.Choose walks it. It is a hash
// table with open addressing, a quarter full. Its hash looks at four bytes, so that the number
// of steps does not depend on what a caller sends but on how alike the
// registered versions are: at worst it is their number.
type index struct {
	slots []slot // a power of two of them
}

type slot struct {
	version string
	choice  *Choice
}

func newIndex(choices map[string]*Choice) index {
	size := 8
	for size < 4*len(choices) {
		size *= 2
	}
	x := index{slots: make([]slot, size)}
	for version, choice := range choices {
		if version == "" {
			continue
		}
		i := x.start(version)
		for x.slots[i].choice != nil {
			i = (i + 1) & (len(x.slots) - 1)
		}
		x.slots[i] = slot{version, choice}
	}
	return x
}

// start is where to look for version first; version is not empty. The last,
// middle and second byte of "v2.1.0" are its three numbers.
func (x *index) start(version string) int {
	n := len(version)
	h := uint32(version[n-1]) | uint32(version[n>>1])<<8 | uint32(version[n>>2])<<16 | uint32(n)<<24
	return int(h*0x9e3779b1>>12) & (len(x.slots) - 1)
}
