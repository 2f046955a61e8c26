// Package holdings is the bucket grasp-held as one worker sees it: what waits, by identifier.
// Ingest writes the bucket; here it is only read.
package holdings

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/progress"
	"tendril.dev/proto"
)

// Entry is one held event and its key.
type Entry struct {
	Key string
	proto.Held
}

// Change is an entry that came, changed (Before and Now) or went (Now is nil).
type Change struct {
	Identifier  string
	Before, Now *Entry
}

// Holdings is what waits. It is safe for concurrent use.
type Holdings struct {
	log *slog.Logger

	mu     sync.Mutex
	by     map[string]map[string]*waiting // identifier → key
	ids    map[string]*waiting            // event id
	clocks clocks
	kinds  map[int]int
	read   progress.Progress
}

// New makes empty holdings.
func New(log *slog.Logger) *Holdings {
	return &Holdings{log: log, by: map[string]map[string]*waiting{}, ids: map[string]*waiting{}, kinds: map[int]int{}}
}

// Follow reads the bucket and follows it until ctx ends. changed is told of every change, after it
// is visible; it must not block.
func (h *Holdings) Follow(ctx context.Context, js jetstream.JetStream, changed func(Change)) error {
	return bus.Follow(ctx, js, bus.Reading{Stream: proto.KVStream(proto.BucketHeld)}, h.log, func(m bus.Message) {
		c, ok := h.fold(m)
		if ok {
			changed(c)
		}
	})
}

func (h *Holdings) fold(m bus.Message) (Change, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.read.Advance(m.Seq)
	key := m.Subject[len(proto.KVSubject(proto.BucketHeld, "")):]
	if key == proto.HeldMarkKey {
		return Change{}, false
	}
	parsed, err := proto.ParseHeldKey(key)
	if err != nil {
		h.log.Error("a held event cannot be read", "error", err)
		return Change{}, false
	}
	c := Change{Identifier: parsed.Identifier}
	if before := h.by[parsed.Identifier][key]; before != nil {
		c.Before = &before.Entry
	}
	if m.Header.Get(proto.KVOperation) == "" {
		// What cannot be read is not held, whatever stood there before.
		if c.Now, err = decode(key, m.Data); err != nil {
			h.log.Error("a held event cannot be read", "key", key, "error", err)
		}
	}
	h.put(parsed, key, c.Now)
	return c, c.Before != nil || c.Now != nil
}

// decode reads the value of a key.
func decode(key string, value []byte) (*Entry, error) {
	e := &Entry{Key: key}
	if err := json.Unmarshal(value, &e.Held); err != nil {
		return nil, err
	}
	if e.Event == nil {
		return nil, errors.New("it has no event")
	}
	if belongs, err := proto.HeldKeyOf(e.Identifier, e.Event).Key(); err != nil || belongs != key {
		return nil, fmt.Errorf("its event belongs at %q (%w)", belongs, err)
	}
	return e, nil
}

func (h *Holdings) put(k proto.HeldKey, key string, now *Entry) {
	if before := h.by[k.Identifier][key]; before != nil {
		heap.Remove(&h.clocks, before.place)
		h.kinds[k.Kind]--
		if id := before.Event.ID; h.ids[id] == before {
			delete(h.ids, id)
		}
		delete(h.by[k.Identifier], key)
		if len(h.by[k.Identifier]) == 0 {
			delete(h.by, k.Identifier)
		}
	}
	if now == nil {
		return
	}
	h.kinds[k.Kind]++
	if h.by[k.Identifier] == nil {
		h.by[k.Identifier] = map[string]*waiting{}
	}
	w := &waiting{Entry: *now}
	h.by[k.Identifier][key] = w
	h.ids[w.Event.ID] = w
	heap.Push(&h.clocks, w)
}

// Seq is the sequence of the bucket's stream that has been read.
func (h *Holdings) Seq() uint64 { return h.read.Seq() }

// WaitFor waits until the bucket has been read up to a sequence of its stream.
func (h *Holdings) WaitFor(ctx context.Context, seq uint64) error { return h.read.WaitFor(ctx, seq) }

// Of returns what waits for an identifier, in order of the keys.
func (h *Holdings) Of(identifier string) []Entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]Entry, 0, len(h.by[identifier]))
	for _, e := range h.by[identifier] {
		list = append(list, e.Entry)
	}
	slices.SortFunc(list, func(a, b Entry) int { return cmp.Compare(a.Key, b.Key) })
	return list
}

// Event returns the entry of an event, whatever identifier it waits for, or false.
func (h *Holdings) Event(id string) (Entry, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.ids[id]; w != nil {
		return w.Entry, true
	}
	return Entry{}, false
}

// Over returns at most max entries whose time is over, of those that which names, those over the
// longest first. It looks at nothing whose time is not over. which must be quick and must not ask
// the holdings.
func (h *Holdings) Over(now time.Time, max int, which func(Entry) bool) []Entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	var over []Entry
	for w := range h.clocks.before(now) {
		if which(w.Entry) {
			over = append(over, w.Entry)
		}
	}
	slices.SortFunc(over, func(a, b Entry) int { return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), cmp.Compare(a.Key, b.Key)) })
	return over[:min(len(over), max)]
}

// Now returns the entry of a key as it is now, or false.
func (h *Holdings) Now(identifier, key string) (Entry, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.by[identifier][key]; w != nil {
		return w.Entry, true
	}
	return Entry{}, false
}

// Identifiers are those for which anything waits.
func (h *Holdings) Identifiers() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]string, 0, len(h.by))
	for id := range h.by {
		list = append(list, id)
	}
	slices.Sort(list)
	return list
}

// Count is how many events of a kind wait.
func (h *Holdings) Count(kind int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.kinds[kind]
}
