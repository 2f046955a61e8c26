package held

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bus"
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

	mu           sync.RWMutex
	byKey        map[string]*Entry
	byID         map[string]*Entry
	byIdentifier map[string]map[string]*Entry // identifier -> key
	byAuthor     map[string]int               // how many
	bytes        int
}

// Load is how much is held.
type Load struct {
	OfAuthor int // events
	Bytes    int // of all events
}

// NewSet makes an empty set at sequence 0.
func NewSet() *Set {
	return &Set{byKey: map[string]*Entry{}, byID: map[string]*Entry{}, byIdentifier: map[string]map[string]*Entry{}, byAuthor: map[string]int{}}
}

// Apply takes changes in, in ascending order. Those that are not after [Set.Seq] are known already and skipped: the writer applies
// its own changes at once, and reads them once more as everybody else does.
func (s *Set) Apply(changes ...Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		if !s.progress.Advance(c.Seq) {
			continue
		}
		s.remove(c.Key)
		if c.Entry != nil {
			s.add(c.Entry)
		}
	}
}

// Read takes a message of the bucket's stream in. After an error the set has moved on all the same: what cannot be read is not held.
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

func (s *Set) add(e *Entry) {
	s.byKey[e.Key], s.byID[e.Event.ID] = e, e
	of := s.byIdentifier[e.Identifier]
	if of == nil {
		of = map[string]*Entry{}
		s.byIdentifier[e.Identifier] = of
	}
	of[e.Key] = e
	s.byAuthor[e.Event.PubKey]++
	s.bytes += sizeOf(e.Event)
}

func (s *Set) remove(key string) {
	e := s.byKey[key]
	if e == nil {
		return
	}
	delete(s.byKey, key)
	delete(s.byID, e.Event.ID)
	of := s.byIdentifier[e.Identifier]
	delete(of, key)
	if len(of) == 0 {
		delete(s.byIdentifier, e.Identifier)
	}
	if s.byAuthor[e.Event.PubKey]--; s.byAuthor[e.Event.PubKey] == 0 {
		delete(s.byAuthor, e.Event.PubKey)
	}
	s.bytes -= sizeOf(e.Event)
}

// envelope is about what an event's JSON has beside content and tags.
const envelope = 350

// sizeOf is about the size of an event's JSON, in bytes.
func sizeOf(ev *nostr.Event) int {
	size := envelope + len(ev.Content)
	for _, tag := range ev.Tags {
		for _, value := range tag {
			size += len(value) + 3
		}
	}
	return size
}

// Seq is the sequence of the bucket's stream up to which changes are in.
func (s *Set) Seq() uint64 { return s.progress.Seq() }

// WaitFor waits until the set has reached seq, or ctx ends.
func (s *Set) WaitFor(ctx context.Context, seq uint64) error { return s.progress.WaitFor(ctx, seq) }

// ByID gives the held event of that id, or nil.
func (s *Set) ByID(id string) *Entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byID[id]
}

// ByKey gives the entry of that key, or nil.
func (s *Set) ByKey(key string) *Entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byKey[key]
}

// OfIdentifier gives the held events of an identifier, in order of their keys.
func (s *Set) OfIdentifier(identifier string) []*Entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	of := s.byIdentifier[identifier]
	entries := make([]*Entry, 0, len(of))
	for _, e := range of {
		entries = append(entries, e)
	}
	SortByKey(entries)
	return entries
}

// All gives every held event, in order of their keys.
func (s *Set) All() []*Entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	entries := make([]*Entry, 0, len(s.byKey))
	for _, e := range s.byKey {
		entries = append(entries, e)
	}
	SortByKey(entries)
	return entries
}

// Len is how many events are held.
func (s *Set) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.byKey)
}

// Load gives how much is held in all, and how much of it is by an author.
func (s *Set) Load(author string) Load {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Load{OfAuthor: s.byAuthor[author], Bytes: s.bytes}
}

// SortByKey sorts entries by their keys.
func SortByKey(entries []*Entry) {
	slices.SortFunc(entries, func(a, b *Entry) int { return cmp.Compare(a.Key, b.Key) })
}
