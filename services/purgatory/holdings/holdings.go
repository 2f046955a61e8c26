// Package holdings is the bucket grasp-held as one worker sees it: what waits, by identifier. Ingest writes the bucket; here it is only read.
package holdings

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
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

	mu    sync.Mutex
	by    map[string]map[string]*Entry // identifier → key
	kinds map[int]int
	seq   uint64
	moved chan struct{}
}

// New makes empty holdings.
func New(log *slog.Logger) *Holdings {
	return &Holdings{log: log, by: map[string]map[string]*Entry{}, kinds: map[int]int{}, moved: make(chan struct{})}
}

// Follow reads the bucket and follows it until ctx ends. changed is told of every change, after it is visible; it must not block.
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
	h.seq = m.Seq
	close(h.moved)
	h.moved = make(chan struct{})
	key := m.Subject[len(proto.KVSubject(proto.BucketHeld, "")):]
	if key == proto.HeldMarkKey {
		return Change{}, false
	}
	parsed, err := proto.ParseHeldKey(key)
	if err != nil {
		h.log.Error("a held event cannot be read", "error", err)
		return Change{}, false
	}
	c := Change{Identifier: parsed.Identifier, Before: h.by[parsed.Identifier][key]}
	if m.Header.Get(proto.KVOperation) == "" {
		e := &Entry{Key: key}
		if err := json.Unmarshal(m.Data, &e.Held); err != nil || e.Event == nil {
			h.log.Error("a held event cannot be read", "key", key, "error", err)
			return Change{}, false
		}
		c.Now = e
	}
	h.put(parsed, key, c)
	return c, c.Before != nil || c.Now != nil
}

func (h *Holdings) put(k proto.HeldKey, key string, c Change) {
	if c.Before != nil {
		h.kinds[k.Kind]--
	}
	if c.Now == nil {
		delete(h.by[k.Identifier], key)
		if len(h.by[k.Identifier]) == 0 {
			delete(h.by, k.Identifier)
		}
		return
	}
	h.kinds[k.Kind]++
	if h.by[k.Identifier] == nil {
		h.by[k.Identifier] = map[string]*Entry{}
	}
	h.by[k.Identifier][key] = c.Now
}

// WaitFor waits until the bucket has been read up to a sequence of its stream.
func (h *Holdings) WaitFor(ctx context.Context, seq uint64) error {
	for {
		h.mu.Lock()
		reached, moved := h.seq >= seq, h.moved
		h.mu.Unlock()
		if reached {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Of gives what waits for an identifier, in order of the keys.
func (h *Holdings) Of(identifier string) []Entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]Entry, 0, len(h.by[identifier]))
	for _, e := range h.by[identifier] {
		list = append(list, *e)
	}
	slices.SortFunc(list, func(a, b Entry) int { return cmp.Compare(a.Key, b.Key) })
	return list
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
