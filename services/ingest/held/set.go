package held

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nip34"
	"tendril.dev/lib/progress"
	"tendril.dev/proto"
)

// Change is one change of the bucket: an entry written, or the key of an entry deleted.
type Change struct {
	Seq   uint64 // of its message in the bucket's stream
	Key   string
	Entry *Entry // nil: deleted
}

// Set is the held events as of a sequence of the bucket's stream. It is safe for concurrent use.
type Set struct {
	progress progress.Progress

	mu        sync.RWMutex
	directory *Directory
	ledger    *Ledger
}

// NewSet makes an empty set at sequence 0.
func NewSet() *Set { return &Set{directory: NewDirectory(), ledger: NewLedger()} }

// Apply takes changes in, in ascending order. Those that are not after [Set.Seq] are known already
// and skipped: the writer applies its own changes at once, and reads them once more as everybody
// else does.
func (s *Set) Apply(changes ...Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		if !s.progress.Advance(c.Seq) {
			continue
		}
		if before := s.directory.Remove(c.Key); before != nil {
			s.ledger.Remove(before)
		}
		if c.Entry != nil {
			s.directory.Add(c.Entry)
			s.ledger.Add(c.Entry)
		}
	}
}

// Read takes a message of the bucket's stream in. After an error the set has moved on all the same:
// what cannot be read is not held.
func (s *Set) Read(m bus.Message) error {
	key, ok := strings.CutPrefix(m.Subject, proto.KVSubject(proto.BucketHeld, ""))
	if !ok || key == proto.HeldMarkKey {
		s.progress.Advance(m.Seq)
		return nil
	}
	change := Change{Seq: m.Seq, Key: key}
	var err error
	if m.Header.Get(proto.KVOperation) == "" {
		change.Entry, err = Decode(key, m.Data)
	}
	s.Apply(change)
	return err
}

// Seq is the sequence of the bucket's stream up to which changes are in.
func (s *Set) Seq() uint64 { return s.progress.Seq() }

// WaitFor waits until the set has reached seq, or ctx ends.
func (s *Set) WaitFor(ctx context.Context, seq uint64) error { return s.progress.WaitFor(ctx, seq) }

// ByID returns the held event of that id, or nil.
func (s *Set) ByID(id string) *Entry { return look(s, func(d *Directory) *Entry { return d.ByID(id) }) }

// ByKey returns the entry of that key, or nil.
func (s *Set) ByKey(key string) *Entry {
	return look(s, func(d *Directory) *Entry { return d.ByKey(key) })
}

// At returns the held events at an address.
func (s *Set) At(address nip34.Address) []*Entry {
	return look(s, func(d *Directory) []*Entry { return d.At(address) })
}

// Announcements returns the held announcements of an identifier.
func (s *Set) Announcements(identifier string) []*Entry {
	return look(s, func(d *Directory) []*Entry { return d.Announcements(identifier) })
}

// Naming returns the held announcements of an identifier that name this key among their
// maintainers.
func (s *Set) Naming(identifier, pubkey string) []*Entry {
	return look(s, func(d *Directory) []*Entry { return d.Naming(identifier, pubkey) })
}

// OfIdentifier returns the held events of an identifier, in order of their keys.
func (s *Set) OfIdentifier(identifier string) []*Entry {
	return look(s, func(d *Directory) []*Entry { return d.OfIdentifier(identifier) })
}

// All returns every held event, in order of their keys.
func (s *Set) All() []*Entry { return look(s, (*Directory).All) }

// Len is how many events are held.
func (s *Set) Len() int { return look(s, (*Directory).Len) }

func look[T any](s *Set, at func(*Directory) T) T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return at(s.directory)
}

// Ledger returns a copy of what is counted, which is the caller's own.
func (s *Set) Ledger() *Ledger {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Copy()
}

// SortByKey sorts entries by their keys.
func SortByKey(entries []*Entry) {
	slices.SortFunc(entries, func(a, b *Entry) int { return cmp.Compare(a.Key, b.Key) })
}
