package held

import (
	"log/slog"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Set is the held events as of a sequence of the bucket's stream, which it follows while
// [bus.Follower.Run] runs. It is safe for concurrent use.
type Set struct {
	*bus.Follower
	log     *slog.Logger
	changed func(Change)

	mu        sync.RWMutex
	seq       uint64 // everything up to here is in
	directory *Directory
}

// NewSet makes an empty set. changed, if not nil, is called for every change that is read, after
// the set has it; it must not block. What was applied before is not reported.
func NewSet(js jetstream.JetStream, log *slog.Logger, changed func(Change)) *Set {
	s := &Set{log: log, changed: changed, directory: NewDirectory()}
	s.Follower = bus.NewFollower(js, bus.Reading{Stream: proto.KVStream(proto.BucketHeld)}, log, s.read)
	return s
}

// read takes messages of the bucket's stream in. What cannot be read is not held.
func (s *Set) read(messages []bus.Message) error {
	for _, m := range messages {
		c, ok, err := ReadChange(m)
		if err != nil {
			s.log.Error("a held event cannot be read", "error", err)
		}
		if ok && s.apply(&c) && s.changed != nil && (c.Before != nil || c.Entry != nil) {
			s.changed(c)
		}
	}
	return nil
}

// Apply takes changes in, in ascending order. The writer applies its own changes at once; they are
// skipped when they are read from the stream.
func (s *Set) Apply(changes ...Change) {
	for _, c := range changes {
		s.apply(&c)
		s.Advance(c.Seq)
	}
}

// apply takes a change in and notes what was there before; false: it is in already.
func (s *Set) apply(c *Change) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Seq <= s.seq {
		return false
	}
	s.seq = c.Seq
	c.Before = s.directory.Remove(c.Key)
	if c.Entry != nil {
		s.directory.Add(c.Entry)
	}
	return true
}

// ByID returns the held event of that id, or nil.
func (s *Set) ByID(id string) *Entry { return look(s, func(d *Directory) *Entry { return d.ByID(id) }) }

// ByKey returns the entry of that key, or nil.
func (s *Set) ByKey(key string) *Entry {
	return look(s, func(d *Directory) *Entry { return d.byKey[key] })
}

// At returns the held events at an address.
func (s *Set) At(address nostr.Address) []*Entry {
	return look(s, func(d *Directory) []*Entry { return d.At(address) })
}

// OfIdentifier returns the held events of an identifier, in order of their keys.
func (s *Set) OfIdentifier(identifier string) []*Entry {
	return look(s, func(d *Directory) []*Entry { return d.OfIdentifier(identifier) })
}

// OfKinds returns the held events of an identifier that are of these kinds, in order of their keys.
func (s *Set) OfKinds(identifier string, kinds ...int) []*Entry {
	return look(s, func(d *Directory) []*Entry { return d.OfKinds(identifier, kinds...) })
}

// Identifiers returns the identifiers for which anything is held, in order.
func (s *Set) Identifiers() []string { return look(s, (*Directory).identifiers) }

// All returns every held event, in order of their keys.
func (s *Set) All() []*Entry { return look(s, (*Directory).all) }

// Len is how many events are held.
func (s *Set) Len() int { return look(s, func(d *Directory) int { return len(d.byKey) }) }

// Count is how many events of a kind are held.
func (s *Set) Count(kind int) (n int) {
	for _, e := range s.All() {
		if e.Event.Kind == kind {
			n++
		}
	}
	return n
}

func look[T any](s *Set, at func(*Directory) T) T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return at(s.directory)
}
