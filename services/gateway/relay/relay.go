// Package relay speaks NIP-01 with clients, each over one WebSocket: it takes events to ingest and
// brings the verdicts back, and answers subscriptions from the index and from what is accepted
// meanwhile.
package relay

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
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
	// eventsInFlight is how many events of a connection wait for their verdicts; the next is not
	// read before. A connection can send that many events in the time of two commits. Their bytes
	// are bounded by InboundBytes.
	eventsInFlight = 64
	// scansAtOnce is how many subscriptions of a connection are answered from the index at once;
	// the others wait.
	scansAtOnce = 4
	// smallMessage is how many bytes of a message are read before there is room for it among the
	// inbound bytes of all clients.
	smallMessage = 32 << 10
	// shortMessage is how many bytes a message has whose reading costs less than to wait for a
	// turn.
	shortMessage = 4 << 10
	// batchBytes is how many bytes of events are gathered before they are written.
	batchBytes = 32 << 10
	// quarter is how much one client has of a memory that all share: a fourth.
	quarter = 4
	// openQuestion is what a subscription, session or count takes of the memory for filters beside
	// their bytes: with small ones there could be millions, and the process would run out of memory.
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
	inbound   *limit.Fair // bytes of large messages, and of events without a verdict
	questions *limit.Fair // open subscriptions and sessions, and counts that wait
	filters   *limit.Fair // bytes of these
	gathering *limit.Fair // counts and sets of NIP-77 that are being made: each keeps many ids
	kept      *limit.Fair // bytes of sets that sessions keep between two messages
	sessions  atomic.Int64
	frames    reconcile.Limits
	waiting   live.Waiting // in all queues

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
		events:      limit.NewRates(o.Limits.EventsPerMinutePerIP, time.Minute),
		inbound:     limit.NewFair(o.Limits.InboundBytes, o.Limits.InboundBytes/quarter),
		questions:   limit.NewFair(math.MaxInt64, int64(o.Limits.MaxSubscriptionsPerIP)),
		filters:     limit.NewFair(o.Limits.OpenFilterBytes, o.Limits.OpenFilterBytesPerIP),
		gathering:   limit.NewFair(int64(runtime.GOMAXPROCS(0)), int64(runtime.GOMAXPROCS(0))),
		kept:        limit.NewFair(o.Limits.ReconciliationBytes, o.Limits.ReconciliationBytes/quarter),
		frames:      reconcile.LimitsFor(o.Limits.MaxMessageBytes),
		connections: map[*connection]struct{}{},
	}
}

// Serve answers a request for a WebSocket of a client, which is named by its key, and returns when
// the connection has ended.
func (r *Relay) Serve(w http.ResponseWriter, req *http.Request, client string) {
	leave, err := r.Connections.Try(client, 1)
	if errors.Is(err, limit.ErrFull) {
		leave, err = r.makeRoom(client)
	}
	if err != nil {
		turnAway(w, err)
		return
	}
	defer leave()
	if !r.enter() {
		http.Error(w, "this relay is stopping", http.StatusServiceUnavailable)
		return
	}
	defer r.open.Done()
	// Nostr clients are web pages of any origin. Compression would cost memory for each connection.
	c := newConnection(r, client, leave)
	c.ws, err = websocket.Accept(&takeover{w, c.socket}, req,
		&websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		r.Log.Debug("a WebSocket could not be opened", "error", err)
		c.end()
		return // Accept has answered
	}
	if !r.add(c) {
		c.close(websocket.StatusGoingAway, "the relay is stopping")
		return
	}
	defer r.remove(c)
	defer r.Metrics.connected()()
	c.serve()
}

// makeRoom closes the connection that has been quiet longest of the client that has most, if that is
// more than client then has, and gives its place to client. So a few strangers do not keep all
// others out.
func (r *Relay) makeRoom(client string) (leave func(), err error) {
	heaviest, more := r.Connections.Heaviest(client)
	if more < 2 {
		return nil, limit.ErrFull
	}
	r.mu.Lock()
	var quietest *connection
	for c := range r.connections {
		if c.client == heaviest && !c.leaving.Load() && (quietest == nil || c.heard.Load() < quietest.heard.Load()) {
			quietest = c
		}
	}
	r.mu.Unlock()
	if quietest == nil || quietest.leaving.Swap(true) {
		return nil, limit.ErrFull
	}
	leave, err = r.Connections.TryOver(client, 1)
	quietest.leave()
	go quietest.close(websocket.StatusTryAgainLater, "the relay is full, and your address has the most connections")
	return leave, err
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

// dropSlowest disconnects the connection for which most bytes wait.
func (r *Relay) dropSlowest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	var slowest *connection
	most := int64(0)
	for c := range r.connections {
		if n := c.waiting.Load(); n > most {
			slowest, most = c, n
		}
	}
	if slowest != nil {
		slowest.tooSlow()
	}
}

// Stop takes no more messages, lets the events that are in flight have their verdicts, closes every
// connection with 1001, and returns when all of them have ended. Once ctx has ended it is less
// patient.
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
