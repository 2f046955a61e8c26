package world

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fiatjaf/eventstore/slicestore"
	"github.com/fiatjaf/khatru"
	"github.com/nbd-wtf/go-nostr"
)

// Relay is a foreign relay: khatru, which no one here wrote.
type Relay struct {
	URL    string
	relay  *khatru.Relay
	server *httptest.Server
	t      testing.TB

	closed atomic.Bool

	mu      sync.Mutex
	asked   []nostr.Filter
	sockets []net.Conn
}

// NewRelay starts a relay that holds events.
func NewRelay(t testing.TB, events ...*nostr.Event) *Relay {
	t.Helper()
	store := &slicestore.SliceStore{}
	if err := store.Init(); err != nil {
		t.Fatal(err)
	}
	r := &Relay{relay: khatru.NewRelay(), t: t}
	r.relay.Log = log.New(io.Discard, "", 0)
	r.relay.StoreEvent = append(r.relay.StoreEvent, store.SaveEvent)
	r.relay.ReplaceEvent = append(r.relay.ReplaceEvent, store.ReplaceEvent)
	r.relay.QueryEvents = append(r.relay.QueryEvents, func(ctx context.Context, f nostr.Filter) (chan *nostr.Event, error) {
		r.mu.Lock()
		r.asked = append(r.asked, f)
		r.mu.Unlock()
		return store.QueryEvents(ctx, f)
	})
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r.closed.Load() {
			http.Error(w, "closed today", http.StatusServiceUnavailable)
			return
		}
		r.relay.ServeHTTP(w, req)
	}))
	r.server.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateHijacked { // a WebSocket, of which the server itself knows nothing any more
			r.mu.Lock()
			defer r.mu.Unlock()
			r.sockets = append(r.sockets, c)
		}
	}
	r.server.Start()
	t.Cleanup(r.server.Close)
	r.URL = "ws" + strings.TrimPrefix(r.server.URL, "http")
	r.Publish(events...)
	return r
}

// Publish gives events to the relay, which tells them to its subscribers.
func (r *Relay) Publish(events ...*nostr.Event) {
	r.t.Helper()
	for _, ev := range events {
		skip, err := r.relay.AddEvent(context.Background(), ev)
		if err != nil {
			r.t.Fatal(err)
		}
		if !skip {
			r.relay.BroadcastEvent(ev)
		}
	}
}

// Asked is every filter that the relay was asked for stored events.
func (r *Relay) Asked() []nostr.Filter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]nostr.Filter(nil), r.asked...)
}

// Listening is how many live filters clients have open.
func (r *Relay) Listening() int { return len(r.relay.GetListeningFilters()) }

// Shut lets nobody connect, or anybody again.
func (r *Relay) Shut(yes bool) { r.closed.Store(yes) }

// HangUp closes all connections, and waits until the relay has forgotten who listened there.
func (r *Relay) HangUp() {
	r.t.Helper()
	r.mu.Lock()
	for _, c := range r.sockets {
		c.Close()
	}
	r.sockets = nil
	r.mu.Unlock()
	Await(r.t, "nobody listens any more", func() bool { return r.Listening() == 0 })
}
