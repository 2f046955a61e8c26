// Package hostile is a relay that does to its clients what one that means harm can do.
package hostile

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"tendril.dev/lib/nostr"
)

// Trick is what a relay does. It begins with the first message of a client.
type Trick string

// The tricks. A relay knows one, and does it on every connection.
const (
	// Forged answers every REQ with events whose signature or content was changed, for any filter that
	// was asked for, and then with EOSE.
	Forged Trick = "forged"
	// Endless answers every REQ with the same events again and again, and never with EOSE.
	Endless Trick = "endless"
	// Silent takes every message and answers none.
	Silent Trick = "silent"
	// Gigantic begins a frame of 1 GiB and sends it as fast as it is taken.
	Gigantic Trick = "gigantic"
	// Promising names ids by NIP-77, another set each time, and delivers none of them.
	Promising Trick = "promising"
	// Dripping answers with an event of which there comes one byte in a while.
	Dripping Trick = "dripping"
	// Abrupt closes the connection in the middle of an answer.
	Abrupt Trick = "abrupt"
	// Noticing floods with NOTICE.
	Noticing Trick = "noticing"
	// Closing closes every subscription at once, and floods with CLOSED, for others too.
	Closing Trick = "closing"
)

// Tricks are all of them.
var Tricks = []Trick{Forged, Endless, Silent, Gigantic, Promising, Dripping, Abrupt, Noticing, Closing}

// Relay is such a relay.
type Relay struct {
	trick  Trick
	events []string // as JSON
	forged []string

	connections, heard atomic.Int64

	mu   sync.Mutex
	open map[net.Conn]bool
}

// New makes a relay. The events are good ones, which it uses for its trick.
func New(trick Trick, events ...*nostr.Event) (*Relay, error) {
	if _, known := tricks[trick]; !known {
		return nil, fmt.Errorf("no trick is named %q", trick)
	}
	r := &Relay{trick: trick, open: map[net.Conn]bool{}}
	for i, ev := range events {
		r.events = append(r.events, ev.String())
		r.forged = append(r.forged, forge(*ev, i).String())
	}
	return r, nil
}

// forge changes an event so that its signature or its id is wrong.
func forge(ev nostr.Event, n int) *nostr.Event {
	switch n % 3 {
	case 0: // a signature of something else
		ev.Content += " forged"
		ev.ID = ev.GetID()
	case 1: // an id of something else
		ev.Content += " forged"
	default:
		last := byte('0')
		if ev.Sig[len(ev.Sig)-1] == last {
			last = '1'
		}
		ev.Sig = ev.Sig[:len(ev.Sig)-1] + string(last)
		ev.CreatedAt--
		ev.ID = ev.GetID()
	}
	return &ev
}

// Connections is how many there were.
func (r *Relay) Connections() int64 { return r.connections.Load() }

// Heard is how many messages clients have sent.
func (r *Relay) Heard() int64 { return r.heard.Load() }

// Serve does harm to clients until the listener is closed.
func (r *Relay) Serve(l net.Listener) error {
	server := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	defer r.hangUp()
	if err := server.Serve(l); !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serve a hostile relay: %w", err)
	}
	return nil
}

func (r *Relay) hangUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		c.Close()
	}
}

// ServeHTTP takes a WebSocket.
func (r *Relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	c, err := accept(w, req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer c.conn.Close()
	r.connections.Add(1)
	r.mu.Lock()
	r.open[c.conn] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.open, c.conn)
	}()
	r.run(c)
}
