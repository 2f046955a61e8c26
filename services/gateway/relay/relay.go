// Package relay speaks NIP-01 with clients, each over one WebSocket: it takes events to ingest and
// brings the verdicts back, and answers subscriptions from the index and from what is accepted
// meanwhile.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/reconcile"
	"tendril.dev/services/gateway/live"
	"tendril.dev/services/gateway/message"
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
	Limits      config.Front
	Domain      string        // of the service: host, and port if it is not a default one
	Future      time.Duration // how far ahead of our clock an event may be
	Index       Index
	Hub         *live.Hub
	Ingest      Offerer
	Connections *limit.Fair // of WebSockets
	Work        *limit.Fair // over messages and the index
	Metrics     *Metrics
	Log         *slog.Logger
}

// Bounds that have no setting.
const (
	// scansAtOnce is how many subscriptions of a connection are answered from the index at once;
	// the others wait.
	scansAtOnce = 4
	// smallMessage is how many bytes of a message are read before there is room for it among the
	// large messages of all clients, of which one has a quarter.
	smallMessage = 32 << 10
	allInbound   = 64 << 20
	// shortMessage is how many bytes a message has whose reading costs less than to wait for a
	// turn.
	shortMessage = 4 << 10
	// batchBytes is how many bytes of events are gathered before they are written.
	batchBytes = 32 << 10
	// openQuestion is what a subscription, session or count takes of the memory beside its bytes:
	// with small ones there could be millions, and the process would run out of memory.
	openQuestion = 1 << 10
	// mostCounted is where a count stops and says that it is approximate. A count may have to keep
	// that many matches and ids.
	mostCounted = 100_000
)

// Times of a connection.
type timing struct {
	write time.Duration // for what one system call is given to be taken by the network
	scan  time.Duration // for all stored events of one subscription
	count time.Duration
	// reconcile is for the answer to one message of NIP-77.
	reconcile time.Duration
	ping      time.Duration // between two pings, and for an answer to one
}

func defaultTiming() timing {
	return timing{write: 20 * time.Second, scan: 5 * time.Minute, count: 15 * time.Second, reconcile: 30 * time.Second, ping: 30 * time.Second}
}

// Relay serves connections.
type Relay struct {
	Options
	limits message.Limits
	timing timing

	// What clients share, by address.
	events    *limit.Rates
	inbound   *limit.Fair // bytes of large messages until they are answered
	questions *limit.Fair // open subscriptions and sessions, and counts that wait
	gathering *limit.Fair // counts and sets of NIP-77 that are being made: each keeps many ids
	memory    *limit.Fair // bytes of filters, sets of sessions, and events that wait for readers
	frames    reconcile.Limits

	mu          sync.Mutex
	connections map[*connection]struct{}
	stopping    bool
	open        sync.WaitGroup
}

// New makes a relay without connections.
func New(o Options) *Relay {
	processors := int64(runtime.GOMAXPROCS(0))
	return &Relay{
		Options: o,
		limits: message.Limits{
			Filters: o.Limits.MaxFilters, Values: o.Limits.MaxFilterValues,
			DefaultLimit: o.Limits.DefaultLimit, MaxLimit: o.Limits.MaxLimit,
		},
		timing:      defaultTiming(),
		events:      limit.NewRates(o.Limits.EventsPerMinutePerIP, time.Minute),
		inbound:     limit.NewFair(allInbound, allInbound/4),
		questions:   limit.NewFair(math.MaxInt64, int64(o.Limits.MaxSubscriptionsPerIP)),
		gathering:   limit.NewFair(processors, processors),
		memory:      limit.NewFair(o.Limits.ClientBytes, o.Limits.ClientBytesPerIP),
		frames:      reconcile.LimitsFor(o.Limits.MaxMessageBytes),
		connections: map[*connection]struct{}{},
	}
}

// Serve answers a request for a WebSocket of a client, which is named by its key, and returns when
// the connection has ended.
func (r *Relay) Serve(w http.ResponseWriter, req *http.Request, client string) {
	leave, err := r.admit(r.Connections, client, 1, func(c *connection) int64 { return -c.heard.Load() })
	if err != nil {
		turnAway(w, err)
		return
	}
	defer leave()
	// Nostr clients are web pages of any origin. Compression would cost memory for each connection.
	c := newConnection(r, client, leave)
	c.ws, err = websocket.Accept(&takeover{w, c.socket}, req,
		&websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		r.Log.Debug("a WebSocket could not be opened", "error", err)
		c.end()
		return // Accept has answered
	}
	if !r.enter(c) {
		c.close(websocket.StatusGoingAway, "the relay is stopping")
		return
	}
	defer r.remove(c)
	r.Metrics.total.Inc()
	defer func(began time.Time) { r.Metrics.duration.Observe(time.Since(began).Seconds()) }(time.Now())
	c.serve()
}

// admit takes n places of what clients share. Where all are taken, the client that has most loses a
// connection, if it has more than this client then has: that with most weight. So a few strangers
// do not keep all others out.
func (r *Relay) admit(to *limit.Fair, client string, n int64, weight func(*connection) int64) (leave func(), err error) {
	leave, err = to.Try(client, n)
	if !errors.Is(err, limit.ErrFull) {
		return leave, err
	}
	heaviest, more := to.Heaviest(client)
	if more <= n {
		return nil, limit.ErrFull
	}
	r.mu.Lock()
	var chosen *connection
	for c := range r.connections {
		if c.client == heaviest && !c.cutOff.Load() && (chosen == nil || weight(c) > weight(chosen)) {
			chosen = c
		}
	}
	r.mu.Unlock()
	if chosen != nil { // else its connections are being cut already
		chosen.cut(websocket.StatusTryAgainLater, "the relay is full, and your address takes the most of it")
	}
	return to.TryOver(client, n)
}

// noMemory tells a client why the relay cannot keep what it wants.
func (r *Relay) noMemory(err error) string {
	if errors.Is(err, limit.ErrShare) {
		return fmt.Sprintf("rate-limited: what this relay keeps for your address takes more than %d bytes; close some subscriptions", r.Limits.ClientBytesPerIP)
	}
	return "rate-limited: the open subscriptions of all clients take as much as this relay keeps; try again later"
}

// turnAway refuses a connection that is one too many.
func turnAway(w http.ResponseWriter, why error) {
	w.Header().Set("Retry-After", "30")
	if errors.Is(why, limit.ErrShare) {
		http.Error(w, "rate-limited: too many connections from your address; close some first", http.StatusTooManyRequests)
		return
	}
	http.Error(w, "rate-limited: this relay has as many connections as it can serve; try again later", http.StatusServiceUnavailable)
}

// enter notes a connection that Stop will wait for; false once Stop was called.
func (r *Relay) enter(c *connection) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return false
	}
	r.open.Add(1)
	r.connections[c] = struct{}{}
	return true
}

func (r *Relay) remove(c *connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.connections, c)
	r.open.Done()
}

// Stop takes no more messages, lets the events that are in flight have their verdicts, closes every
// connection with 1001, and returns when all of them have ended. Once ctx has ended it is less
// patient.
func (r *Relay) Stop(ctx context.Context) {
	r.mu.Lock()
	r.stopping = true
	open := slices.Collect(maps.Keys(r.connections))
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
