// Package strfry is a relay for tests and measurements that treats clients as strfry does, the
// relay that most of the field's events are on: its limits, its words and its order of doing
// things. It is not strfry. Events are in memory and answers are encoded beforehand, so that it is
// never what a client waits for.
package strfry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/nostr"
)

// Limits are what strfry's configuration has; 0 stands for strfry's default.
type Limits struct {
	Page          int  // events a filter is answered with; 500
	Subscriptions int  // of a connection, and as many requests at once; 20
	Filters       int  // of a REQ; 200
	MessageBytes  int  // from a client; 131072
	Reconciled    int  // events that a filter of NIP-77 may match; 1000000
	NoNegentropy  bool // NIP-77 is off
}

func (l Limits) orDefault() Limits {
	for _, limit := range []struct {
		value *int
		usual int
	}{{&l.Page, 500}, {&l.Subscriptions, 20}, {&l.Filters, 200}, {&l.MessageBytes, 131072}, {&l.Reconciled, 1_000_000}} {
		if *limit.value == 0 {
			*limit.value = limit.usual
		}
	}
	return l
}

// Relay is such a relay. Several may share their events ([Relay.Twin]).
type Relay struct {
	limits  Limits
	store   *store
	traffic traffic

	mu     sync.Mutex
	open   map[*connection]bool
	closed bool // connections are refused
}

// New makes a relay without events.
func New(limits Limits) *Relay {
	return &Relay{limits: limits.orDefault(), store: newStore(), open: map[*connection]bool{}}
}

// Twin makes another relay with the same limits and the same events.
func (r *Relay) Twin() *Relay {
	return &Relay{limits: r.limits, store: r.store, open: map[*connection]bool{}}
}

// Load adds events, one JSON text each, without checking them and without telling anybody. It keeps
// the texts. It returns how many were new.
func (r *Relay) Load(raws [][]byte) (added int, err error) {
	entries := make([]*entry, len(raws))
	for i, raw := range raws {
		if entries[i], _, err = read(raw); err != nil {
			return 0, err
		}
	}
	return r.store.load(entries), nil
}

// LoadAmong adds events, one JSON text each, to the relays that homes names for each, without
// checking them and without telling anybody. It keeps each text once, however many relays have it.
func LoadAmong(raws [][]byte, homes func(*nostr.Event) []*Relay) error {
	loads := map[*Relay][]*entry{}
	for _, raw := range raws {
		e, ev, err := read(raw)
		if err != nil {
			return err
		}
		for _, r := range homes(ev) {
			loads[r] = append(loads[r], e)
		}
	}
	for r, entries := range loads {
		r.store.load(entries)
	}
	return nil
}

// Publish adds events and tells subscribers, as if clients had sent them.
func (r *Relay) Publish(events ...*nostr.Event) error {
	for _, ev := range events {
		e, _, err := read([]byte(ev.String()))
		if err != nil {
			return err
		}
		if r.store.add(e) {
			r.tell(e)
		}
	}
	return nil
}

// Size is how many events there are.
func (r *Relay) Size() int { return r.store.size() }

// Traffic is what went through its sockets so far.
func (r *Relay) Traffic() Traffic { return r.traffic.read() }

// ResetTraffic sets what is counted to nothing. A client that is connected stays so.
func (r *Relay) ResetTraffic() { r.traffic.reset() }

// Shut refuses connections, or allows them again.
func (r *Relay) Shut(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = yes
}

// HangUp closes all connections.
func (r *Relay) HangUp() {
	for _, c := range r.connections() {
		c.end()
	}
}

// Listening is how many subscriptions wait for new events.
func (r *Relay) Listening() (n int) {
	for _, c := range r.connections() {
		n += c.monitored()
	}
	return n
}

func (r *Relay) connections() (all []*connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		all = append(all, c)
	}
	return all
}

// tell gives a new event to those who subscribed.
func (r *Relay) tell(e *entry) {
	for _, c := range r.connections() {
		c.live(e)
	}
}

// Serve answers clients until the listener is closed.
func (r *Relay) Serve(l net.Listener) error {
	server := &http.Server{
		Handler: r, ReadHeaderTimeout: time.Minute,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, socketKey{}, c) },
	}
	defer r.HangUp()
	if err := server.Serve(sockets{l, &r.traffic}); !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serve a relay: %w", err)
	}
	return nil
}

type socketKey struct{}

// ServeHTTP answers a client of [Relay.Serve].
func (r *Relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	switch {
	case closed:
		http.Error(w, "closed today", http.StatusServiceUnavailable)
	case strings.EqualFold(req.Header.Get("Upgrade"), "websocket"):
		r.connect(w, req)
	case strings.Contains(req.Header.Get("Accept"), "application/nostr+json"):
		w.Header().Set("Content-Type", "application/nostr+json")
		json.NewEncoder(w).Encode(r.information())
	default:
		fmt.Fprintln(w, "Please use a Nostr client to connect.")
	}
}

// information is the document of NIP-11, with what strfry says there.
func (r *Relay) information() map[string]any {
	nips := []int{1, 2, 4, 9, 11, 22, 28, 40, 70}
	doc := map[string]any{
		"name": "a relay of tests", "software": "git+https://github.com/hoytech/strfry.git", "version": "as in tests",
		"limitation": map[string]any{
			"max_message_length": r.limits.MessageBytes, "max_subscriptions": r.limits.Subscriptions, "max_limit": r.limits.Page,
		},
	}
	if !r.limits.NoNegentropy {
		nips = append(nips, 77)
		doc["negentropy"] = 1
	}
	doc["supported_nips"] = nips
	return doc
}

func (r *Relay) connect(w http.ResponseWriter, req *http.Request) {
	s, ours := req.Context().Value(socketKey{}).(*socket)
	if !ours {
		http.Error(w, "no connection of Relay.Serve", http.StatusInternalServerError)
		return
	}
	ws, err := websocket.Accept(w, req, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // the answer is written
	}
	ws.SetReadLimit(int64(r.limits.MessageBytes))
	r.traffic.connections.Add(1)
	r.traffic.connected.CompareAndSwap(0, time.Now().UnixNano())
	c := newConnection(r, ws, s)
	r.mu.Lock()
	r.open[c] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.open, c)
		r.mu.Unlock()
	}()
	c.run()
}
