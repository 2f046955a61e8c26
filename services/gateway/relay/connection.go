package relay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
)

// connection is one client. Messages are read one after the other by serve; each REQ, COUNT and
// EVENT is then carried on by a goroutine of its own, within bounds. Stored events and answers are
// written at the client's speed, while live ones wait in the clients' memory, and a client for
// which too much waits is disconnected.
type connection struct {
	relay  *Relay
	ws     *websocket.Conn
	socket *socket         // below ws
	client string          // its key
	leave  func()          // gives its place among all connections back
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	work   sync.WaitGroup // all goroutines of the connection
	scans  chan struct{}  // subscriptions that are answered from the index
	events *limit.Rates   // that it may send
	kept   atomic.Int64   // bytes of the clients' memory
	heard  atomic.Int64   // when the last message came, in nanoseconds since 1970
	ended  atomic.Bool    // end was called
	closed chan struct{}  // closed when the WebSocket is

	writing sync.Mutex // held while messages are written

	proved atomic.Pointer[[]string] // keys that the client has proved to hold; nil: none yet
	late   *time.Timer              // ends the connection if a private service is not shown one

	// Of serve's goroutine alone:
	proofs    *proofs
	badProofs int            // answers to the challenge that proved nothing, one after the other
	asked     bool           // the client has heard the challenge
	slow      rate.Sometimes // logs that it sends too much

	mu       sync.Mutex // guards what follows
	stopping bool
	tasks    sync.WaitGroup // messages that are being read, and what is done for them
	open     map[string]*question
	queue    []delivery    // live events that wait to be written
	queued   chan struct{} // there are some
}

// delivery is a live event on its way to a subscription.
type delivery struct {
	to     *question
	json   []byte
	forget func() // gives the memory back that it takes
}

// newConnection makes a connection that has no WebSocket yet: its socket is for that.
func newConnection(r *Relay, client string, leave func()) *connection {
	c := &connection{
		relay: r, client: client, leave: leave, socket: &socket{},
		scans:  make(chan struct{}, scansAtOnce),
		queued: make(chan struct{}, 1),
		closed: make(chan struct{}),
		open:   map[string]*question{},
		proofs: newProofs(r.Domain, proofWindow),
		events: limit.NewRates(r.Limits.EventsPerMinute, time.Minute),
		slow:   rate.Sometimes{Interval: time.Minute},
	}
	if r.Circle.IsPrivate() {
		c.proofs.window = memberWindow
	}
	c.heard.Store(time.Now().UnixNano())
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// end ends the connection with a code and a reason. What it made the relay keep is forgotten at
// once. It does not block, and may be called again.
func (c *connection) end(code websocket.StatusCode, reason string) {
	if c.ended.Swap(true) {
		return
	}
	c.relay.Log.Debug("a client is disconnected", "client", c.client, "reason", reason, "bytes", c.kept.Load())
	c.cancel()
	c.leave()
	go func() {
		defer close(c.closed)
		c.forgetAll()
		c.ws.Close(code, reason)
	}()
}

// abandon ends the connection without a word, because the client takes none.
func (c *connection) abandon() {
	c.cancel()
	c.ws.CloseNow()
}

// forgetAll ends all questions, and forgets the events that wait.
func (c *connection) forgetAll() {
	c.mu.Lock()
	open := slices.Collect(maps.Values(c.open))
	c.mu.Unlock()
	for _, q := range open {
		q.drop()
	}
	for _, d := range c.dequeue(math.MaxInt) {
		d.forget()
	}
}

// serve reads messages until the connection ends, and returns when nothing of it is left.
func (c *connection) serve() {
	defer func() {
		if c.ended.Load() {
			<-c.closed
		}
		c.abandon()
		c.forgetAll()
		c.work.Wait()
		c.forgetAll()
	}()
	c.ws.SetReadLimit(-1) // read does it, and says so in nostr's words
	c.work.Go(c.sendQueued)
	c.work.Go(c.keepAlive)
	if c.relay.Circle.IsPrivate() || c.relay.Limits.AuthToRead() || c.relay.Limits.AuthToWrite() {
		c.challenge()
	}
	if c.relay.Circle.IsPrivate() {
		c.late = time.AfterFunc(proofTime, func() {
			c.end(websocket.StatusPolicyViolation, "auth-required: no proof came in time")
		})
		defer c.late.Stop()
	}
	for {
		// Not c.ctx: its end would cut the socket before the reason is sent. What ends the connection
		// closes the socket too.
		kind, r, err := c.ws.Reader(context.Background())
		if err != nil {
			return
		}
		if !c.begin() { // until the client has heard that the relay stops
			if _, err := io.Copy(io.Discard, r); err != nil {
				return
			}
			continue
		}
		err = c.receive(kind, r)
		c.tasks.Done()
		if err != nil {
			return
		}
	}
}

// begin counts a task. It reports false, and does not count it, if nothing new begins any more.
func (c *connection) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping || c.ended.Load() {
		return false
	}
	c.tasks.Add(1)
	return true
}

// task does something in the background for the message that is being handled.
func (c *connection) task(fn func()) {
	c.tasks.Add(1)
	c.work.Go(func() {
		defer c.tasks.Done()
		fn()
	})
}

// stop closes the connection for the end of the service, when what was read is answered or ctx has
// ended.
func (c *connection) stop(ctx context.Context) {
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	idle := make(chan struct{})
	go func() { c.tasks.Wait(); close(idle) }()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	c.end(websocket.StatusGoingAway, "the relay is stopping")
}

// receive reads a message, and does what it asks for or begins with it.
func (c *connection) receive(kind websocket.MessageType, r io.Reader) error {
	data, room, err := c.read(r)
	if err != nil {
		return err
	}
	defer room()
	c.heard.Store(time.Now().UnixNano())
	c.relay.Metrics.messagesIn.WithLabelValues(typeOf(data)).Inc()
	if kind == websocket.MessageBinary {
		c.say("NOTICE", "invalid: messages are text, not binary")
		return nil
	}
	c.handle(data)
	return nil
}

// read reads a message. A large one is read once there is room for it among those of all clients,
// which the caller gives back by calling room.
func (c *connection) read(r io.Reader) (data []byte, room func(), err error) {
	limits := c.relay.Limits
	late := time.AfterFunc(limits.MessageTime, func() {
		c.end(websocket.StatusPolicyViolation, fmt.Sprintf("a message took longer than %s", limits.MessageTime))
	})
	defer late.Stop()
	most := limits.MaxMessageBytes
	room = func() {}
	data, err = io.ReadAll(io.LimitReader(r, min(smallMessage, most+1)))
	if err == nil && len(data) == smallMessage {
		late.Stop() // the client waits for us
		if room, err = c.relay.inbound.AcquireN(c.ctx, c.client, most); err != nil {
			return nil, nil, fmt.Errorf("wait for room for a message: %w", err)
		}
		late.Reset(limits.MessageTime)
		whole := bytes.NewBuffer(data)
		_, err = whole.ReadFrom(io.LimitReader(r, most+1-smallMessage))
		data = whole.Bytes()
	}
	if err == nil && int64(len(data)) > most {
		c.say("NOTICE", fmt.Sprintf("invalid: message larger than %d bytes", most))
		c.end(websocket.StatusMessageTooBig, fmt.Sprintf("message larger than %d bytes", most))
		err = errors.New("message too large")
	}
	if err != nil {
		room()
		return nil, nil, fmt.Errorf("read: %w", err)
	}
	return data, room, nil
}

// handle does what a message asks for, or begins with it.
func (c *connection) handle(data []byte) {
	m, err := c.parse(data)
	by, may := c.admit(m)
	switch {
	case m.verb == "AUTH" && err == nil:
		c.authenticate(m)
		return
	case m.verb == "AUTH":
		c.refuse(m, "malformed", err.Error())
		c.countProof(false, false)
		return
	case !may && (err == nil || c.relay.Circle.IsPrivate()):
		c.turnAway(m)
		return
	}
	if name := m.question(); name != "" && m.verb != "NEG-MSG" && m.verb != "COUNT" || err != nil {
		// CLOSE and NEG-CLOSE end a question, REQ and NEG-OPEN replace it, and a CLOSED or NEG-ERR
		// says that there is none of that id.
		c.drop(name)
	}
	switch {
	case err != nil:
		c.refuse(m, "malformed", err.Error())
	case m.verb == "EVENT":
		by.offer(m)
	case m.verb == "REQ":
		by.subscribe(m)
	case m.verb == "COUNT":
		by.count(m)
	case m.verb == "NEG-OPEN":
		by.negOpen(m)
	case m.verb == "NEG-MSG":
		by.negMsg(m)
	}
}

// refuse answers a message that is not looked at further.
func (c *connection) refuse(m message, reason, why string) {
	if m.verb == "EVENT" {
		ev := cmp.Or(m.event, &nostr.Event{ID: m.id, Kind: -1}) // its kind could not be read
		if c.tooFast() != "" {
			reason = tooMany
		}
		c.reject(ev, reason, why)
	}
	c.tellRefusal(m, why)
}

// parse reads a message. A longer one is read when it is the client's turn: the longest keep a
// processor busy for as long as many queries do.
func (c *connection) parse(data []byte) (message, error) {
	if len(data) >= shortMessage {
		turn, err := c.relay.Work.Turn(c.ctx, c.client)
		if err != nil {
			return message{}, errors.New("rate-limited: too many messages wait; try again later")
		}
		defer turn.Pause()
	}
	return c.relay.bounds.parse(data)
}

// keep makes room in the clients' memory for n bytes that this client makes the relay keep.
func (c *connection) keep(n int) (forget func(), err error) {
	r := c.relay
	back, err := r.admit(r.memory, c.client, int64(n), func(other *connection) int64 { return other.kept.Load() })
	if err != nil {
		return nil, err
	}
	c.kept.Add(int64(n))
	return sync.OnceFunc(func() { c.kept.Add(-int64(n)); back() }), nil
}

// say writes a message of the relay.
func (c *connection) say(parts ...any) { c.answer(encode(parts...)) }

// tellRefusal tells the client why a message is refused.
func (c *connection) tellRefusal(m message, why string) {
	if strings.HasPrefix(why, "rate-limited:") {
		c.relay.Met.Tell(c.client, m.verb, why)
	}
	c.answer(m.refusal(why))
}

// answer writes a message of the relay. An error ends the connection by itself.
func (c *connection) answer(message []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.write(message)
}

// write writes one message; the caller holds the lock. The context that goes to the WebSocket never
// ends: to watch one for every message would cost more than to write it. The listener's connection
// has a deadline for each write.
func (c *connection) write(p []byte) error {
	if err := c.ws.Write(context.Background(), websocket.MessageText, p); err != nil {
		c.abandon()
		return fmt.Errorf("write: %w", err)
	}
	c.relay.Metrics.messagesOut.WithLabelValues(typeOf(p)).Inc()
	return nil
}

// batch is messages for subscriptions that are not written yet.
type batch struct {
	bytes []byte
	parts []part
}

// batches are kept for use again: to make one large enough costs a tenth of a small REQ.
var batches = sync.Pool{New: func() any { return &batch{bytes: make([]byte, 0, 2*batchBytes)} }}

// done gives a batch back, unless it has grown large.
func (b *batch) done() {
	if cap(b.bytes) <= 8*batchBytes {
		b.bytes, b.parts = b.bytes[:0], b.parts[:0]
		batches.Put(b)
	}
}

// part is one message of a batch.
type part struct {
	to  *question
	end int
}

// event appends the message of an event.
func (b *batch) event(to *question, json []byte) {
	b.bytes = append(append(append(b.bytes, to.head...), json...), ']')
	b.parts = append(b.parts, part{to, len(b.bytes)})
}

// send writes a batch with few system calls, leaves out what is for questions that have ended, and
// empties it.
func (c *connection) send(b *batch) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.socket.hold()
	var failed error
	begin := 0
	for _, p := range b.parts {
		if failed == nil && !p.to.ended.Load() {
			failed = c.write(b.bytes[begin:p.end])
		}
		begin = p.end
	}
	if err := c.socket.release(); err != nil && failed == nil {
		c.abandon()
		failed = fmt.Errorf("write: %w", err)
	}
	b.bytes, b.parts = b.bytes[:0], b.parts[:0]
	return failed
}

// reserve makes room for a live event to wait. If there is none, the client is too slow, and is
// disconnected.
func (c *connection) reserve(to *question, r eventdb.Record) (d delivery, ok bool) {
	if c.ended.Load() {
		return d, false
	}
	forget, err := c.keep(len(r.Raw) + openDelivery)
	if err != nil {
		c.relay.Metrics.slow.Inc()
		c.end(websocket.StatusPolicyViolation, "too slow: more events wait than the relay keeps")
		return d, false
	}
	return delivery{to, r.Raw, forget}, true
}

// enqueue adds live events to those that wait to be written.
func (c *connection) enqueue(more ...delivery) {
	c.mu.Lock()
	c.queue = append(c.queue, more...)
	c.mu.Unlock()
	select {
	case c.queued <- struct{}{}:
	default:
	}
}

// dequeue takes the first events that wait, until they have so many bytes.
func (c *connection) dequeue(most int) (first []delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for size := 0; n < len(c.queue) && size < most; n++ {
		size += len(c.queue[n].json)
	}
	first, c.queue = c.queue[:n], c.queue[n:]
	if len(c.queue) == 0 {
		c.queue = nil
	}
	return first
}

// sendQueued writes live events until the connection ends.
func (c *connection) sendQueued() {
	for {
		select {
		case <-c.queued:
		case <-c.ctx.Done():
			return
		}
		b := batches.Get().(*batch)
		for c.ctx.Err() == nil {
			waiting := c.dequeue(batchBytes)
			if len(waiting) == 0 {
				break
			}
			for _, d := range waiting {
				b.event(d.to, d.json)
			}
			_ = c.send(b) // an error ends the connection by itself
			for _, d := range waiting {
				d.forget()
			}
		}
		b.done()
	}
}

// keepAlive pings the client, so that a dead connection is noticed and proxies on the way do not
// think it idle.
func (c *connection) keepAlive() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			return
		}
		// The goroutine that reads the pong may wait for ingest to take an event. Not c.ctx: its end
		// would cut the socket before the client has heard why.
		ctx, cancel := context.WithTimeout(context.Background(), pingEvery+c.relay.Limits.EventTimeout)
		err := c.ws.Ping(ctx)
		cancel()
		if err != nil {
			c.abandon()
			return
		}
	}
}
