package packscan

import "encoding/binary"

// Watcher sees objects of a pack as they arrive. It cannot refuse any.
type Watcher interface {
	// Watch is shown a file, or the delta of any object, of at most WatchedBytes. It must not keep the
	// bytes.
	Watch(o Object)
}

// WatchedBytes is the size of the largest file that a Watcher is shown, and of the largest delta,
// in bytes.
const WatchedBytes = 1 << 20

// Object is a file in a pack, or a delta, which is one of a file, a tree, a commit or a tag.
type Object struct {
	Offset int64 // where it begins in the pack
	Delta  bool
	// Base is where the object begins that a delta stands on. 0: that is known by its id alone, and may
	// lie elsewhere.
	Base int64
	// Content is the file, or what the delta adds to its base: pieces that do not follow each other
	// are parted by the end of a line.
	Content []byte
}

// show shows an object, of which the content is given as it is in the pack, to the watcher.
func (s *scanner) show(o Object, content []byte) {
	o.Content = content
	if o.Delta {
		s.added = inserts(s.added[:0], content)
		o.Content = s.added
	}
	s.watcher.Watch(o)
}

// inserts appends what a delta (gitformat-pack, "Deltified representation") adds to its base. It
// ends where a delta is damaged.
func inserts(to, delta []byte) []byte {
	for range 2 { // the sizes of the base and of the result
		_, n := binary.Uvarint(delta)
		if n <= 0 {
			return to
		}
		delta = delta[n:]
	}
	for len(delta) > 0 {
		op := delta[0]
		delta = delta[1:]
		if op&0x80 == 0 {
			n := min(int(op), len(delta))
			to, delta = append(to, delta[:n]...), delta[n:]
			continue
		}
		for bit := range 7 { // a copy has as many bytes as bits are set
			if op&(1<<bit) != 0 && len(delta) > 0 {
				delta = delta[1:]
			}
		}
		if n := len(to); n > 0 && to[n-1] != '\n' {
			to = append(to, '\n')
		}
	}
	return to
}
