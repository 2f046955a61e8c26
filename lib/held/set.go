package held

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Set is the held events as of a sequence of the bucket's stream. It is safe for concurrent use.
type Set struct {
	progress bus.Progress

	mu        sync.RWMutex
	directory *Directory
}

// NewSet makes an empty set at sequence 0.
func NewSet() *Set { return &Set{directory: NewDirectory()} }

// Follow reads the bucket and follows it until ctx ends. changed is called for every change after
// the set has it; it must not block. Changes that were applied before are not reported.
func (s *Set) Follow(ctx context.Context, js jetstream.JetStream, log *slog.Logger, changed func(Change)) error {
	return bus.Follow(ctx, js, bus.Reading{Stream: proto.KVStream(proto.BucketHeld)}, log, func(m bus.Message) {
		c, err := s.Read(m)
		if err != nil {
			log.Error("a held event cannot be read", "error", err)
		}
		if c.Before != nil || c.Entry != nil {
			changed(c)
		}
	})
}

// Read takes a message of the bucket's stream in and returns what it has changed. After an error
// the set has moved on all the same: what cannot be read is not held.
func (s *Set) Read(m bus.Message) (Change, error) {
	c, ok, err := ReadChange(m)
	if !ok {
		s.progress.Advance(m.Seq)
		return Change{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.apply(&c) {
		return Change{}, err
	}
	return c, err
}

// Apply takes changes in, in ascending order. Changes that are not after [Set.Seq] are skipped: the
// writer applies its own changes at once, and reads them once more from the stream.
func (s *Set) Apply(changes ...Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		s.apply(&c)
	}
}

// apply takes a change in and notes what was there before; s.mu is held.
func (s *Set) apply(c *Change) bool {
	if !s.progress.Advance(c.Seq) {
		return false
	}
	c.Before = s.directory.Remove(c.Key)
	if c.Entry != nil {
		s.directory.Add(c.Entry)
	}
	return true
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
func (s *Set) At(address nostr.Address) []*Entry {
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

// Identifiers returns the identifiers for which anything is held, in order.
func (s *Set) Identifiers() []string { return look(s, (*Directory).Identifiers) }

// All returns every held event, in order of their keys.
func (s *Set) All() []*Entry { return look(s, (*Directory).All) }

// Len is how many events are held.
func (s *Set) Len() int { return look(s, (*Directory).Len) }

// Count is how many events of a kind are held.
func (s *Set) Count(kind int) int { return look(s, func(d *Directory) int { return d.kinds[kind] }) }

// Over returns at most max entries whose time ended before now and which match, those first whose
// time ended first. matches must be quick and must not ask the set.
func (s *Set) Over(now time.Time, max int, matches func(*Entry) bool) []*Entry {
	over := look(s, func(d *Directory) (over []*Entry) {
		for _, e := range d.byKey {
			if now.After(e.ExpiresAt) && matches(e) {
				over = append(over, e)
			}
		}
		return over
	})
	slices.SortFunc(over, func(a, b *Entry) int {
		return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), cmp.Compare(a.Key, b.Key))
	})
	return over[:min(len(over), max)]
}

func look[T any](s *Set, at func(*Directory) T) T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return at(s.directory)
}

// SortByKey sorts entries by their keys.
func SortByKey(entries []*Entry) {
	slices.SortFunc(entries, func(a, b *Entry) int { return cmp.Compare(a.Key, b.Key) })
}
