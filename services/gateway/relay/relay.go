// Package relay speaks NIP-01 with clients, each over one WebSocket: it takes events to ingest and brings the verdicts back, and answers
// subscriptions from the index and from what is accepted meanwhile.
package relay

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/services/gateway/live"
	"tendril.dev/services/gateway/message"
	"tendril.dev/services/gateway/visitors"
)

// Index is the projection of the log.
type Index interface {
	View() *eventdb.View
	// WaitFor waits until the log is applied up to seq.
	WaitFor(ctx context.Context, seq uint64) error
}

// Offerer brings events to ingest, and their verdicts back.
type Offerer interface {
	Offer(ctx context.Context, c candidates.Candidate) error
}

// Options is what a relay needs.
type Options struct {
	Limits   config.Front
	Future   time.Duration // how far ahead of our clock an event may be
	Index    Index
	Hub      *live.Hub
	Ingest   Offerer
	Visitors *visitors.Register
	Metrics  *Metrics
	Log      *slog.Logger
}

// Bounds that are nobody's to set.
const (
	// eventsInFlight is how many events of a connection wait for their verdicts; the next is not read before.
	eventsInFlight = 16
	// scansAtOnce is how many subscriptions of a connection are answered from the index at once; the others wait.
	scansAtOnce = 4
	// countsInFlight is how many counts of a connection may wait. They are taken one after the other, so that nobody can take up all of countsAtOnce
	// with one connection.
	countsInFlight = 16
	// mostCounted is where a count stops and says that it is approximate. A count may have to keep that many matches and ids.
	mostCounted = 100_000
)

// countsAtOnce is how many counts of all connections are made at once; the others wait. It bounds the memory that they take, and more of them than
// processors would not be done earlier.
func countsAtOnce() int { return runtime.GOMAXPROCS(0) }

// Times of a connection.
type timing struct {
	write time.Duration // for one message to be taken by the network
	scan  time.Duration // for all stored events of one subscription
	count time.Duration
	ping  time.Duration // between two pings, and for an answer to one
}

func defaultTiming() timing {
	return timing{write: 20 * time.Second, scan: 5 * time.Minute, count: 15 * time.Second, ping: 30 * time.Second}
}

// Relay serves connections.
type Relay struct {
	Options
	limits message.Limits
	timing timing
	// counting holds one for each count that is being made.
	counting chan struct{}

	mu          sync.Mutex
	connections map[*connection]struct{}
	stopping    bool
	open        sync.WaitGroup
}

// New makes a relay without connections.
func New(o Options) *Relay {
	return &Relay{
		Options: o,
		limits: message.Limits{
			Filters: o.Limits.MaxFilters, Values: o.Limits.MaxFilterValues,
			DefaultLimit: o.Limits.DefaultLimit, MaxLimit: o.Limits.MaxLimit,
		},
		timing:      defaultTiming(),
		counting:    make(chan struct{}, countsAtOnce()),
		connections: map[*connection]struct{}{},
	}
}

// Serve answers a request for a WebSocket that came from an address, and returns when the connection has ended.
func (r *Relay) Serve(w http.ResponseWriter, req *http.Request, from netip.Addr) {
	leave, err := r.Visitors.Enter(from)
	if err != nil {
		status := http.StatusServiceUnavailable
		if err == visitors.ErrTooMany {
			status = http.StatusTooManyRequests
		}
		w.Header().Set("Retry-After", "30")
		http.Error(w, err.Error(), status)
		return
	}
	defer leave()
	if !r.enter() {
		http.Error(w, "this relay is stopping", http.StatusServiceUnavailable)
		return
	}
	defer r.open.Done()
	// Nostr clients are web pages of any origin. Compression would cost memory for each connection.
	ws, err := websocket.Accept(w, req, &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		r.Log.Debug("no WebSocket came about", "error", err)
		return // Accept has answered
	}
	c := newConnection(r, ws)
	if !r.add(c) {
		ws.Close(websocket.StatusGoingAway, "the relay is stopping")
		return
	}
	defer r.remove(c)
	defer r.Metrics.connected()()
	c.serve()
}

// enter counts a connection that Stop will wait for; false once Stop was called.
func (r *Relay) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return false
	}
	r.open.Add(1)
	return true
}

func (r *Relay) add(c *connection) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return false
	}
	r.connections[c] = struct{}{}
	return true
}

func (r *Relay) remove(c *connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.connections, c)
}

// Stop takes no more messages, lets the events that are in flight have their verdicts, closes every connection with 1001, and returns when
// all of them have ended. Once ctx has ended it is less patient.
func (r *Relay) Stop(ctx context.Context) {
	r.mu.Lock()
	r.stopping = true
	var open []*connection
	for c := range r.connections {
		open = append(open, c)
	}
	r.mu.Unlock()
	for _, c := range open {
		go c.stop(ctx)
	}
	done := make(chan struct{})
	go func() { r.open.Wait(); close(done) }()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	for _, c := range open {
		c.ws.CloseNow()
	}
	<-done
}
