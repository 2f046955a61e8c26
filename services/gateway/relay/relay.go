// Package relay speaks NIP-01 with clients, each over one WebSocket: it takes events to ingest and
// brings the verdicts back, and answers subscriptions from the index and from what is accepted
// meanwhile. What clients say was written by strangers: it is parsed strictly, within limits, and
// refused in one sentence that says why. It does not decide which events are accepted: ingest does.
package relay

import (
	"context"
	"errors"
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
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/obs"
	"tendril.dev/lib/reconcile"
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

// Circle is who may read: everyone, or the members of a private service (GRASP-08).
type Circle interface {
	IsPrivate() bool
	// Has reports whether a key is a member's at this moment.
	Has(key string) bool
	// OnChange has fn called when there may be other members than before.
	OnChange(fn func())
}

// Options is what a relay needs. Limits are used as they are: what is 0 there allows nothing. All
// else must be set.
type Options struct {
	Limits      Limits
	Domain      string // address of the service: host, port if it is not a default one, and base path
	Circle      Circle // who may read
	Index       Index
	Ingest      Offerer
	Connections *limit.Fair // of WebSockets
	Work        *limit.Fair // over messages and the index; one place for each processor
	Metrics     *Metrics
	Met         *limit.Met // hears of clients that meet a limit
	Log         *slog.Logger
	Trace       *obs.Tracer // nil: no spans
	// Banned says why a client may have no connection; nil: it may. Optional.
	Banned func(client string) error
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
	// batchBytes is how many bytes of events are gathered before they are written: with one more
	// event and the frames, they are mostly one chunk of an answer (config.AnswerChunk).
	batchBytes = 30 << 10
	// openQuestion is what a subscription, session or count takes of the memory beside its bytes,
	// openValue each value under which the hub finds it, openRange each iterator of the index while
	// it is answered, and openDelivery an event that waits: there could be millions of small ones,
	// and the process would run out of memory.
	openQuestion = 1 << 10
	openValue    = 256
	openRange    = 16 << 10
	openDelivery = 256
	// mostCounted is where a count stops and says that it is approximate. A count may have to keep
	// that many matches and ids.
	mostCounted = 100_000

	scanTime      = 5 * time.Minute  // for all stored events of one subscription
	countTime     = 15 * time.Second // for a count
	reconcileTime = 30 * time.Second // for the answer to one message of NIP-77
	pingEvery     = 30 * time.Second // and how long an answer may take
)

// Relay serves connections.
type Relay struct {
	Options
	bounds bounds
	hub    *hub
	began  time.Time
	frames reconcile.Limits

	// What clients share, by address.
	events    *limit.Rates
	inbound   *limit.Fair // bytes of large messages until they are handled
	filters   *limit.Fair // of open subscriptions and sessions, and of counts that wait
	gathering *limit.Fair // counts and sets of NIP-77 that are being made: each keeps many ids
	memory    *limit.Fair // bytes of filters, sets of sessions, and events that wait for readers

	mu          sync.Mutex
	connections map[*connection]struct{}
	stopping    bool
	open        sync.WaitGroup
}

// New makes a relay without connections. Run must run, and Feed be told of events, for live ones.
func New(o Options) *Relay {
	processors := int64(runtime.GOMAXPROCS(0))
	defaultLimit, maxLimit := o.Limits.FilterLimits()
	r := &Relay{
		Options: o, began: time.Now(),
		bounds: bounds{
			filters: o.Limits.MaxFilters, values: o.Limits.MaxFilterValues,
			defaultLimit: defaultLimit, maxLimit: maxLimit,
		},
		frames:      reconcile.LimitsFor(o.Limits.MaxMessageBytes),
		events:      limit.NewRates(o.Limits.EventsPerMinutePerIP, time.Minute),
		inbound:     limit.NewFair(allInbound, allInbound/4),
		filters:     limit.NewFair(math.MaxInt64, int64(o.Limits.MaxOpenFiltersPerIP)),
		gathering:   limit.NewFair(processors, processors),
		memory:      limit.NewFair(o.Limits.ClientBytes, o.Limits.ClientBytesPerIP),
		connections: map[*connection]struct{}{},
	}
	r.hub = newHub(r.overrun)
	r.Circle.OnChange(r.disconnectStrangers)
	return r
}

// Feed takes in what the index has just stored. It does not block.
func (r *Relay) Feed(recs []eventdb.Record) {
	for i := range recs {
		if x := &recs[i]; x.Trace != "" && x.At.After(r.began) { // what a new index reads was served before
			r.Trace.Span(x.Trace, "serve", x.Event, x.At, "outcome", "served")
		}
	}
	r.hub.feed(recs)
}

// Run delivers live events until ctx ends.
func (r *Relay) Run(ctx context.Context) { r.hub.run(ctx) }

// overrun disconnects the clients that have missed events, because too many came at once.
func (r *Relay) overrun() {
	r.Log.Warn("events came faster than they could be delivered; clients are disconnected", "subscriptions",
		r.hub.count.Load())
	for _, c := range r.all() {
		c.end(websocket.StatusTryAgainLater, "events came faster than they could be sent; connect again")
	}
}

func (r *Relay) all() []*connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.connections))
}

// Serve answers a request for a WebSocket of a client, which is named by its key, and returns when
// the connection has ended.
func (r *Relay) Serve(w http.ResponseWriter, req *http.Request, client string) {
	leave, err := r.admit(r.Connections, client, 1, func(c *connection) int64 { return -c.heard.Load() })
	if err != nil {
		TurnAway(w, err)
		return
	}
	defer leave()
	// Nostr clients are web pages of any origin. Compression would cost memory for each connection.
	c := newConnection(r, client, leave)
	c.ws, err = websocket.Accept(&takeover{w, c.socket}, req,
		&websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		r.Log.Debug("a WebSocket could not be opened", "error", err)
		c.cancel()
		return // Accept has answered
	}
	if !r.enter(c) {
		c.end(websocket.StatusGoingAway, "the relay is stopping")
		<-c.closed
		return
	}
	defer r.remove(c)
	c.endIfBanned() // since it was looked before the connection was opened
	r.Metrics.total.Inc()
	defer func(began time.Time) { r.Metrics.duration.Observe(time.Since(began).Seconds()) }(time.Now())
	c.serve()
}

// admit takes n places of what clients share. Where all are taken, the client that has most loses
// its connection with most weight, if it has more than this client then has. So a few strangers do
// not keep all others out.
func (r *Relay) admit(to *limit.Fair, client string, n int64, weight func(*connection) int64) (leave func(),
	err error) {
	leave, err = to.Try(client, n)
	if !errors.Is(err, limit.ErrFull) {
		return leave, err
	}
	heaviest, more := to.Heaviest(client)
	if more <= n {
		return nil, limit.ErrFull
	}
	var chosen *connection
	for _, c := range r.all() {
		if c.client == heaviest && !c.ended.Load() && (chosen == nil || weight(c) > weight(chosen)) {
			chosen = c
		}
	}
	if chosen != nil { // else its connections are ending already
		chosen.end(websocket.StatusTryAgainLater, "the relay is full, and your address takes the most of it")
	}
	return to.TryOver(client, n)
}

// TurnAway refuses a connection that is one too many.
func TurnAway(w http.ResponseWriter, why error) {
	w.Header().Set("Retry-After", "30")
	if errors.Is(why, limit.ErrShare) {
		http.Error(w, "rate-limited: too many connections from your address; close some first", http.StatusTooManyRequests)
		return
	}
	http.Error(w, "rate-limited: this relay has as many connections as it can serve; try again later",
		http.StatusServiceUnavailable)
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

// EndBanned ends the connections of clients that are banned.
func (r *Relay) EndBanned() {
	for _, c := range r.all() {
		c.endIfBanned()
	}
}

// endIfBanned ends the connection of a client that is banned.
func (c *connection) endIfBanned() {
	if c.relay.Banned == nil {
		return
	}
	if err := c.relay.Banned(c.client); err != nil {
		c.end(websocket.StatusPolicyViolation, err.Error()[:min(len(err.Error()), 120)])
	}
}

// Stop takes no more messages, lets the events that are in flight have their verdicts, closes every
// connection with 1001, and returns when all of them have ended. Once ctx has ended it is less
// patient.
func (r *Relay) Stop(ctx context.Context) {
	r.mu.Lock()
	r.stopping = true
	r.mu.Unlock()
	open := r.all()
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
