package outside

import (
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fiatjaf/eventstore"
	"github.com/fiatjaf/eventstore/slicestore"
	"github.com/fiatjaf/khatru"

	"tendril.dev/lib/nostr"
)

// Relay is a foreign relay: khatru, which no one here wrote, with its events in memory.
type Relay struct {
	relay  *khatru.Relay
	closed atomic.Bool

	mu      sync.Mutex
	asked   []nostr.Filter
	readers map[string]bool // public keys
	sockets []net.Conn
	left    int           // how many stored events are shown while held is open
	held    chan struct{} // nil: all are
}

// NewReconcilingRelay makes a relay without events that speaks NIP-77.
func NewReconcilingRelay() (*Relay, error) {
	r, err := NewRelay()
	if err == nil {
		r.relay.Negentropy = true
	}
	return r, err
}

// NewRelay makes a relay without events.
func NewRelay() (*Relay, error) {
	store := &store{events: slicestore.SliceStore{MaxLimit: math.MaxInt}}
	if err := store.events.Init(); err != nil {
		return nil, fmt.Errorf("open the store of a relay: %w", err)
	}
	r := &Relay{relay: khatru.NewRelay()}
	r.relay.Log = log.New(io.Discard, "", 0)
	r.relay.StoreEvent = append(r.relay.StoreEvent, store.save)
	r.relay.ReplaceEvent = append(r.relay.ReplaceEvent, store.replace)
	r.relay.QueryEvents = append(r.relay.QueryEvents, func(ctx context.Context, f nostr.Filter) (chan *nostr.Event, error) {
		r.mu.Lock()
		r.asked = append(r.asked, f)
		r.mu.Unlock()
		answer, err := store.query(ctx, f)
		if err == nil {
			r.wait(ctx, len(answer))
		}
		return answer, err
	})
	return r, nil
}

// Hold shows so many stored events, or a page more, and lets requests for others wait until
// release is called.
func (r *Relay) Hold(after int) (release func()) {
	held := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left, r.held = after, held
	return sync.OnceFunc(func() { close(held) })
}

// wait waits until so many stored events may be shown.
func (r *Relay) wait(ctx context.Context, n int) {
	r.mu.Lock()
	held, now := r.held, r.held == nil || r.left > 0
	r.left -= n
	r.mu.Unlock()
	if now || n == 0 {
		return
	}
	select {
	case <-held:
	case <-ctx.Done():
	}
}

// Guard lets only clients read that have authenticated (NIP-42), with any key.
func (r *Relay) Guard() {
	r.relay.RejectFilter = append(r.relay.RejectFilter, func(ctx context.Context, _ nostr.Filter) (bool, string) {
		reader := khatru.GetAuthed(ctx)
		if reader == "" {
			return true, "auth-required: this relay wants to know who reads"
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.readers == nil {
			r.readers = map[string]bool{}
		}
		r.readers[reader] = true
		return false, ""
	})
}

// Readers are the public keys of those who have authenticated and read.
func (r *Relay) Readers() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.readers))
}

// ServeHTTP answers a client.
func (r *Relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if r.closed.Load() {
		http.Error(w, "closed today", http.StatusServiceUnavailable)
		return
	}
	r.relay.ServeHTTP(w, req)
}

// Connection is the ConnState of the relay's http.Server: it notes WebSockets, of which the server
// itself knows nothing any more.
func (r *Relay) Connection(c net.Conn, state http.ConnState) {
	if state == http.StateHijacked {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sockets = append(r.sockets, c)
	}
}

// Publish gives events to the relay, which tells them to its subscribers.
func (r *Relay) Publish(events ...*nostr.Event) error {
	for _, ev := range events {
		skip, err := r.relay.AddEvent(context.Background(), ev)
		if err != nil {
			return fmt.Errorf("publish at a relay: %w", err)
		}
		if !skip {
			r.relay.BroadcastEvent(ev)
		}
	}
	return nil
}

// Asked is every filter that the relay was asked for stored events.
func (r *Relay) Asked() []nostr.Filter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]nostr.Filter(nil), r.asked...)
}

// Listening is how many live filters clients have open.
func (r *Relay) Listening() int { return len(r.relay.GetListeningFilters()) }

// Shut refuses connections, or allows them again.
func (r *Relay) Shut(yes bool) { r.closed.Store(yes) }

// HangUp closes all connections.
func (r *Relay) HangUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.sockets {
		c.Close()
	}
	r.sockets = nil
}

// store is a slice of events. The library's own lets queries read while events are inserted, and
// then the oldest event may be missing from an answer: here an answer is complete before the next
// event is stored.
type store struct {
	mu     sync.RWMutex
	events slicestore.SliceStore
}

func (s *store) save(ctx context.Context, ev *nostr.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events.SaveEvent(ctx, ev)
}

func (s *store) replace(ctx context.Context, ev *nostr.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events.ReplaceEvent(ctx, ev)
}

// page is how many events a filter is answered with at most.
const page = 500

func (s *store) query(ctx context.Context, f nostr.Filter) (chan *nostr.Event, error) {
	if !eventstore.IsNegentropySession(ctx) && (f.Limit > page || f.Limit == 0 && !f.LimitZero) {
		f.Limit = page
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	found, err := s.events.QueryEvents(ctx, f)
	if err != nil {
		return nil, err
	}
	var events []*nostr.Event
	for more := true; more && ctx.Err() == nil; { // when it has ended the store leaves the channel open
		var ev *nostr.Event
		select {
		case ev, more = <-found:
			if more {
				events = append(events, ev)
			}
		case <-ctx.Done():
		}
	}
	answer := make(chan *nostr.Event, len(events))
	for _, ev := range events {
		answer <- ev
	}
	close(answer)
	return answer, nil
}
