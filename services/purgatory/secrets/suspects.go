package secrets

import "tendril.dev/services/purgatory/packscan"

const (
	// maxSuspects is how many objects of one pack are remembered to be looked at.
	maxSuspects = 10_000
	// maxMarked is how many objects of one pack are remembered that mention what secrets begin with.
	maxMarked = 100_000
)

// Suspects looks at the objects of a pack as they arrive, and remembers which may have secrets: files
// that have some, and deltas that may make such a file. Most packs have none, so that nothing more is
// to be done about them. The zero value works.
type Suspects struct {
	offsets []int64
	marked  map[int64]bool // where objects begin of which a delta may make a secret whole
	dropped int
}

// Watch implements packscan.Watcher.
func (s *Suspects) Watch(o packscan.Object) {
	readable := Readable(o.Content)
	onMarked := o.Delta && (o.Base == 0 || s.marked[o.Base])
	if readable && Mentions(o.Content) || o.Base != 0 && onMarked {
		s.mark(o.Offset)
	}
	switch {
	case !(readable && len(Find(o.Content)) > 0 || onMarked && MayContinue(o.Content)):
	case len(s.offsets) < maxSuspects:
		s.offsets = append(s.offsets, o.Offset)
	default:
		s.dropped++
	}
}

func (s *Suspects) mark(offset int64) {
	if s.marked == nil {
		s.marked = map[int64]bool{}
	}
	if len(s.marked) < maxMarked {
		s.marked[offset] = true
	}
}

// Offsets are where the objects begin in the pack that are to be looked at, in order.
func (s *Suspects) Offsets() []int64 { return s.offsets }

// Dropped is how many more there are than are remembered.
func (s *Suspects) Dropped() int { return s.dropped }
