// Package outside is relays that a Tendril meets. Nothing in it knows of tests: programs use it
// too.
package outside

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gobwas/ws"

	"tendril.dev/lib/nostr"
)

// Behaviour says how a relay treats its clients. The limits are those of strfry's configuration; 0
// stands for strfry's default.
type Behaviour struct {
	Page          int           // events a filter is answered with; 500
	Subscriptions int           // of a connection, and as many requests at once; 20
	Filters       int           // of a REQ; 200
	MessageBytes  int           // from a client; 131072
	Reconciled    int           // events that a filter of NIP-77 may match; 1000000
	NoNegentropy  bool          // NIP-77 is off
	Delay         time.Duration // before each message of a client is answered
	Trick         Trick         // what a hostile relay does in place of an answer; nil: it is not hostile
}

// Relay treats clients as strfry does, the relay that most of the field's events are on: its
// limits, its words and its order of doing things. It is not strfry. Events are in memory and
// answers are encoded beforehand, so that it is never what a client waits for.
type Relay struct {
	is    Behaviour
	store *store

	mu      sync.Mutex
	open    map[*connection]bool
	closed  bool // connections are refused
	asked   []nostr.Filter
	spans   []*Span
	traffic Traffic
	left    int           // how many stored events are shown while held is open
	held    chan struct{} // nil: all are
}

// Span is one WebSocket to a relay.
type Span struct {
	Relay  string    `json:"relay"` // set by who collects the spans of many
	From   string    `json:"from"`  // address of the client, without its port
	Opened time.Time `json:"opened"`
	Closed time.Time `json:"closed,omitzero"` // zero: still open
}

// Traffic is what went through a relay's sockets since it was made, or reset.
type Traffic struct {
	Connections int       `json:"connections"`
	Messages    int       `json:"messages"`  // of clients, of all kinds
	Requests    int       `json:"requests"`  // REQ
	Reconciled  int       `json:"neg_open"`  // NEG-OPEN
	Sent        int       `json:"sent"`      // EVENT messages
	In          int       `json:"in"`        // bytes
	Live        int       `json:"live"`      // bytes of these that were REQ for what is new only
	Out         int       `json:"out"`       // bytes
	Connected   time.Time `json:"connected"` // the first WebSocket; zero: none yet
	Last        time.Time `json:"last"`      // the last message that a client sent, or that was sent to one
}

// NewRelay makes a relay without events.
func NewRelay(is Behaviour) *Relay {
	is.Page, is.Subscriptions, is.Filters = cmp.Or(is.Page, 500), cmp.Or(is.Subscriptions, 20), cmp.Or(is.Filters, 200)
	is.MessageBytes, is.Reconciled = cmp.Or(is.MessageBytes, 131072), cmp.Or(is.Reconciled, 1_000_000)
	return &Relay{is: is, store: newStore(), open: map[*connection]bool{}}
}

// Twin makes another relay that behaves the same and has the same events.
func (r *Relay) Twin() *Relay {
	return &Relay{is: r.is, store: r.store, open: map[*connection]bool{}}
}

// Load adds events, one JSON text each, to the relays that homes names for each, without checking
// them and without telling a subscriber. It keeps each text once, however many relays have it.
func Load(raws [][]byte, homes func(*nostr.Event) []*Relay) error {
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

// Traffic is what went through its sockets so far.
func (r *Relay) Traffic() Traffic {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.traffic
}

// ResetTraffic sets what is counted to nothing. A client that is connected stays so.
func (r *Relay) ResetTraffic() { r.count(func(t *Traffic) { *t = Traffic{} }) }

func (r *Relay) count(change func(t *Traffic)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.traffic)
}

// Asked is every filter that the relay was asked for stored events.
func (r *Relay) Asked() []nostr.Filter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

// Spans are all WebSockets so far, in the order in which they were opened.
func (r *Relay) Spans() (all []Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		all = append(all, *s)
	}
	return all
}

// Hold shows so many stored events, or a page more, and lets requests for others wait until release
// is called.
func (r *Relay) Hold(after int) (release func()) {
	held := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left, r.held = after, held
	return sync.OnceFunc(func() { close(held) })
}

// wait waits until n stored events may be shown, or done is closed.
func (r *Relay) wait(n int, done <-chan struct{}) {
	r.mu.Lock()
	held, now := r.held, r.held == nil || r.left > 0 || n == 0
	r.left -= n
	r.mu.Unlock()
	if now {
		return
	}
	select {
	case <-held:
	case <-done:
	}
}

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

// Listening is how many filters wait for new events.
func (r *Relay) Listening() (n int) {
	for _, c := range r.connections() {
		n += c.listening()
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
	server := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	defer r.HangUp()
	if err := server.Serve(counting{l, r}); !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serve a relay: %w", err)
	}
	return nil
}

// ServeHTTP answers a client.
func (r *Relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	switch {
	case closed:
		http.Error(w, "closed today", http.StatusServiceUnavailable)
	case strings.EqualFold(req.Header.Get("Upgrade"), "websocket"):
		r.connect(w, req)
	default:
		w.Header().Set("Content-Type", "application/nostr+json")
		json.NewEncoder(w).Encode(r.information())
	}
}

// information is the document of NIP-11, with what strfry says there.
func (r *Relay) information() map[string]any {
	doc := map[string]any{
		"name": "a relay of tests", "software": "git+https://github.com/hoytech/strfry.git", "version": "as in tests",
		"supported_nips": []int{1, 2, 4, 9, 11, 22, 28, 40, 70},
		"limitation": map[string]any{
			"max_message_length": r.is.MessageBytes, "max_subscriptions": r.is.Subscriptions, "max_limit": r.is.Page,
		},
	}
	if !r.is.NoNegentropy {
		doc["supported_nips"], doc["negentropy"] = []int{1, 2, 4, 9, 11, 22, 28, 40, 70, 77}, 1
	}
	return doc
}

func (r *Relay) connect(w http.ResponseWriter, req *http.Request) {
	conn, in, _, err := ws.UpgradeHTTP(req, w)
	if err != nil {
		return // the answer is written
	}
	from, _, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil {
		from = req.RemoteAddr
	}
	c := newConnection(r, conn, in.Reader)
	span := &Span{From: from, Opened: time.Now()}
	r.mu.Lock()
	r.open[c] = true
	r.spans = append(r.spans, span)
	r.traffic.Connections++
	if r.traffic.Connected.IsZero() {
		r.traffic.Connected = span.Opened
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.open, c)
		span.Closed = time.Now()
	}()
	if r.is.Trick != nil {
		c.playTrick(r.is.Trick)
		return
	}
	c.run()
}

// counting is a listener whose connections count their bytes.
type counting struct {
	net.Listener
	relay *Relay
}

func (l counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &counted{c, l.relay}, nil
}

type counted struct {
	net.Conn
	relay *Relay
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.relay.count(func(t *Traffic) { t.In += n })
	return n, err
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.relay.count(func(t *Traffic) { t.Out += n })
	return n, err
}
