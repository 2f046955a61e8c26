package packscan

import "encoding/binary"

// Watcher sees the objects of a pack as they arrive. It cannot refuse any, and keeps nothing of
// what it is shown.
type Watcher interface {
	// Begin tells of an object before its content arrives. The content is shown if it returns true.
	Begin(o Object) (show bool)
	// Part shows the next part of the content, of any length, and returns whether to show more. Of
	// a delta that is what it adds to its base: pieces that do not follow each other are parted by
	// the end of a line.
	Part(content []byte) (more bool)
	// End is called after the last Part of an object for which Begin returned true.
	End()
}

// Kind is what an object in a pack is.
type Kind byte

// The kinds of objects. Of what kind a delta's object is, a pack does not say.
const (
	Commit Kind = 1
	Tree   Kind = 2
	Blob   Kind = 3
	Tag    Kind = 4
	Delta  Kind = 6
)

// Object is an object in a pack.
type Object struct {
	Kind   Kind
	Offset int64 // where it begins in the pack
	// Base is where the object begins that a delta stands on. 0: that is known by its id alone, and
	// may lie elsewhere.
	Base int64
}

// inserts picks out of the bytes of a delta (gitformat-pack, "Deltified representation") what it
// adds to its base. The zero value is at the beginning of a delta.
type inserts struct {
	sizes   int  // how many of the two sizes at the beginning have been read
	skip    int  // bytes of a copy that are still to come
	add     int  // bytes of an insert that are still to come
	begun   bool // something was shown
	parted  bool // a copy came since then
	stopped bool // nobody wants to see more
}

var newline = []byte("\n")

// next takes the next bytes of the delta.
func (d *inserts) next(delta []byte, show func([]byte) bool) {
	for len(delta) > 0 && !d.stopped {
		switch {
		case d.sizes < 2:
			if delta[0] < 0x80 {
				d.sizes++
			}
			delta = delta[1:]
		case d.skip > 0:
			n := min(d.skip, len(delta))
			d.skip, delta = d.skip-n, delta[n:]
		case d.add > 0:
			n := min(d.add, len(delta))
			if d.parted && d.begun {
				d.stopped = !show(newline)
			}
			d.stopped = d.stopped || !show(delta[:n])
			d.add, delta, d.begun, d.parted = d.add-n, delta[n:], true, false
		default:
			d.operation(delta[0])
			delta = delta[1:]
		}
	}
}

// operation begins a copy, of which as many bytes follow as it has bits set, or an insert.
func (d *inserts) operation(op byte) {
	if op&0x80 == 0 {
		d.add = int(op)
		return
	}
	d.parted = true
	for bit := range 7 {
		d.skip += int(op >> bit & 1)
	}
}

// deltaSizes reads the sizes of the base and of the result from the beginning of a delta.
func deltaSizes(head []byte) (base, result uint64, ok bool) {
	base, n := binary.Uvarint(head)
	if n <= 0 {
		return 0, 0, false
	}
	result, n = binary.Uvarint(head[n:])
	return base, result, n > 0
}
