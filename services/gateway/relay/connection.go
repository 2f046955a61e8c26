package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/services/gateway/live"
	"tendril.dev/services/gateway/message"
)

// connection is one client. Messages are read one after the other by serve; each REQ, COUNT and
// EVENT is then carried on by a goroutine of its own, within bounds. Stored events and answers are
// written at the client's speed, while live ones wait in a queue, and a client that lets it fill up
// is disconnected.
type connection struct {
	relay  *Relay
	ws     *websocket.Conn
	socket *socket         // below ws
	client string          // its key
	leave  func()          // gives its place among all connections back
	ctx    context.Context // ends with the connection
	end    context.CancelFunc
	work   sync.WaitGroup // all goroutines of the connection
	late   *time.Timer    // closes the connection if a message takes too long
	scans  chan struct{}  // subscriptions that are answered from the index

	writing sync.Mutex // guards what follows
	buf     []byte

	queue   chan delivery
	backlog atomic.Int64 // live events that wait, in the queue or for the stored part of their subscription to end
	kept    atomic.Int64 // bytes of the clients' memory
	heard   atomic.Int64 // when the last message came, in nanoseconds since 1970
	cutOff  atomic.Bool  // for the sake of others

	proofs *proofs
	asked  atomic.Bool // the client has heard the challenge

	mu       sync.Mutex // guards what follows
	stopping bool
	// tasks are messages that are being read, and what is done for them.
	tasks         sync.WaitGroup
	subscriptions map[string]*subscription
	// reconciliations are the sessions of NIP-77, whose ids are another matter than those of
	// subscriptions.
	reconciliations map[string]*reconciliation
}

// delivery is a live event on its way to a subscription. Without an event it says that the
// subscription has lost some.
type delivery struct {
	to     *subscription
	event  *live.Event
	forget func() // gives the memory back that it takes
}

// keptBuffer is the largest buffer that a connection keeps between two messages.
const keptBuffer = 32 << 10

// newConnection makes a connection that has no WebSocket yet: its socket is for that.
func newConnection(r *Relay, client string, leave func()) *connection {
	c := &connection{
		relay: r, client: client, leave: leave,
		queue:         make(chan delivery, r.Limits.SendQueue),
		scans:         make(chan struct{}, scansAtOnce),
		socket:        &socket{patience: r.timing.write},
		subscriptions: map[string]*subscription{}, reconciliations: map[string]*reconciliation{},
		proofs: newProofs(r.Domain),
	}
	c.heard.Store(time.Now().UnixNano())
	c.ctx, c.end = context.WithCancel(context.Background())
	c.late = time.AfterFunc(time.Hour, func() {
		c.close(websocket.StatusPolicyViolation, fmt.Sprintf("a message took longer than %s", r.Limits.MessageTime))
	})
	c.late.Stop()
	return c
}

// abandon ends a connection without a word, because the client takes none.
func (c *connection) abandon() {
	c.end()
	c.ws.CloseNow()
}

// close says goodbye and ends the connection.
func (c *connection) close(code websocket.StatusCode, reason string) {
	c.end()
	c.ws.Close(code, reason)
}

// cut disconnects the client for the sake of others. What it made the relay keep is forgotten at
// once. It does not block, and may be called again.
func (c *connection) cut(code websocket.StatusCode, reason string) {
	if c.cutOff.Swap(true) {
		return
	}
	c.relay.Log.Debug("a client is disconnected", "client", c.client, "reason", reason, "bytes", c.kept.Load())
	c.end()
	c.leave()
	c.discard()
	go func() {
		c.closeAll()
		c.close(code, reason)
	}()
}

// serve reads messages until the connection ends, and returns when nothing of it is left.
func (c *connection) serve() {
	defer func() {
		c.abandon()
		c.closeAll()
		c.work.Wait()
		c.discard()
		c.late.Stop()
	}()
	c.ws.SetReadLimit(-1) // read does it, and says so in nostr's words
	c.work.Go(c.sendQueued)
	c.work.Go(c.keepAlive)
	if c.relay.Limits.AuthToRead() || c.relay.Limits.AuthToWrite() {
		c.challenge()
	}
	for {
		// Not c.ctx: its end would cut the socket before a goodbye is said. Whoever ends the
		// connection closes the socket too.
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
		data, room, err := c.read(r)
		done := func() { room(); c.tasks.Done() }
		if err != nil {
			done()
			return
		}
		c.heard.Store(time.Now().UnixNano())
		c.relay.Metrics.messagesIn.WithLabelValues(typeOf(data)).Inc()
		if kind == websocket.MessageBinary {
			c.say(message.Notice("invalid: messages are text, not binary"))
			done()
		} else {
			c.handle(data, done)
		}
	}
}

// begin counts a task. It reports false, and does not count it, if nothing new begins any more.
func (c *connection) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopping {
		c.tasks.Add(1)
	}
	return !c.stopping
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
	c.close(websocket.StatusGoingAway, "the relay is stopping")
}

var errTooLarge = errors.New("message too large")

// read reads a message. A large one is read once there is room for it among those of all clients,
// which the caller gives back by calling room.
func (c *connection) read(r io.Reader) (data []byte, room func(), err error) {
	c.late.Reset(c.relay.Limits.MessageTime)
	defer c.late.Stop()
	most := c.relay.Limits.MaxMessageBytes
	room = func() {}
	data, err = io.ReadAll(io.LimitReader(r, min(smallMessage, most+1)))
	if err == nil && len(data) == smallMessage {
		place, err := c.relay.inbound.AcquireN(c.ctx, c.client, most)
		if err != nil {
			return nil, room, fmt.Errorf("wait for room for a message: %w", err)
		}
		room = place
		whole := bytes.NewBuffer(data)
		if _, err := whole.ReadFrom(io.LimitReader(r, most+1-smallMessage)); err != nil {
			return nil, room, fmt.Errorf("read: %w", err)
		}
		data = whole.Bytes()
	}
	if err != nil {
		return nil, room, fmt.Errorf("read: %w", err)
	}
	if int64(len(data)) > most {
		c.say(message.Notice(fmt.Sprintf("invalid: message larger than %d bytes", most)))
		c.close(websocket.StatusMessageTooBig, fmt.Sprintf("message larger than %d bytes", most))
		return nil, room, errTooLarge
	}
	return data, room, nil
}

// handle does what a message asks for. It sees to it that done is called in the end.
func (c *connection) handle(data []byte, done func()) {
	m, err := c.parse(data)
	if answer := c.unauthenticated(m); answer != nil {
		c.challenge()
		c.say(answer)
		done()
		return
	}
	switch m := m.(type) {
	case message.Event:
		c.offer(m.Event, done)
		return
	case message.Request:
		c.subscribe(m, done)
		return
	case message.Count:
		c.count(m, done)
		return
	case message.NegOpen:
		c.negOpen(m, done)
		return
	case message.NegMsg:
		c.negMsg(m, done)
		return
	case message.Auth:
		c.authenticate(m)
	case message.Close:
		c.unsubscribe(m.ID)
	case message.NegClose:
		c.negClose(m.ID)
	default:
		if refused := new(message.Error); errors.As(err, &refused) {
			// A CLOSED or NEG-ERR says that there is none of that id, so there is none.
			c.unsubscribe(refused.Subscription)
			c.negClose(refused.Session)
			c.say(refused.Answer())
		}
	}
	done()
}

// parse reads a message. A longer one is read when it is the client's turn: the longest keep a
// processor busy for as long as many queries do.
func (c *connection) parse(data []byte) (any, error) {
	if len(data) < shortMessage {
		return c.relay.limits.Parse(data)
	}
	turn, err := c.relay.Work.Turn(c.ctx, c.client)
	if err != nil {
		return nil, err // the connection has ended
	}
	defer turn.Pause()
	return c.relay.limits.Parse(data)
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

// say writes an answer. An error ends the connection by itself.
func (c *connection) say(answer []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.write(answer)
}

// write writes one message; the caller holds the lock. The context that goes to the WebSocket never
// ends: to watch one for every message would cost more than to write it. The socket watches.
func (c *connection) write(p []byte) error {
	if err := c.ws.Write(context.Background(), websocket.MessageText, p); err != nil {
		c.abandon()
		return fmt.Errorf("write: %w", err)
	}
	c.relay.Metrics.messagesOut.WithLabelValues(typeOf(p)).Inc()
	return nil
}

// together passes on what fn writes with few system calls.
func (c *connection) together(fn func() error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.socket.hold()
	err := fn()
	if released := c.socket.release(); released != nil {
		c.abandon()
		err = errors.Join(err, fmt.Errorf("write: %w", released))
	}
	return err
}

// errClosed: the subscription has ended, so that nothing is sent for it any more.
var errClosed = errors.New("subscription closed")

// writeEvent writes an event of a subscription, unless that has ended; the caller holds the lock.
func (c *connection) writeEvent(s *subscription, json []byte) error {
	if s.ended.Load() {
		return errClosed
	}
	c.buf = append(append(append(c.buf[:0], s.head...), json...), ']')
	err := c.write(c.buf)
	if cap(c.buf) > keptBuffer {
		c.buf = nil
	}
	return err
}

// reserve makes room for one more live event to wait. If there is none, the client is too slow, and
// is disconnected.
func (c *connection) reserve(d *delivery) bool {
	if c.cutOff.Load() {
		return false
	}
	size := 0
	if d.event != nil {
		size = len(d.event.JSON)
	}
	n := c.backlog.Add(1)
	forget, err := c.keep(size)
	if err == nil && n <= int64(cap(c.queue)) {
		d.forget = forget
		return true
	}
	c.backlog.Add(-1)
	if err == nil {
		forget()
	}
	c.relay.Metrics.slow.Inc()
	c.cut(websocket.StatusPolicyViolation, "too slow: more events wait than the relay keeps")
	return false
}

// release gives the room back that reserve made.
func (c *connection) release(d delivery) {
	c.backlog.Add(-1)
	d.forget()
}

// discard forgets what waits in the queue.
func (c *connection) discard() {
	for {
		select {
		case d := <-c.queue:
			c.release(d)
		default:
			return
		}
	}
}

// sendQueued writes live events until the connection ends.
func (c *connection) sendQueued() {
	for {
		select {
		case d := <-c.queue:
			if lost := c.sendFrom(d); lost != nil {
				c.refuse(lost, "error: events came faster than they could be sent; subscribe again")
			}
		case <-c.ctx.Done():
			return
		}
	}
}

// sendFrom writes a live event and with it what waits behind it, up to batchBytes. If it comes to
// where a subscription has lost events it ends there and returns the subscription.
func (c *connection) sendFrom(d delivery) (lost *subscription) {
	_ = c.together(func() error { // an error ends the connection by itself
		for size := 0; ; {
			if d.event == nil {
				lost = d.to
				c.release(d)
				return nil
			}
			err := c.writeEvent(d.to, d.event.JSON)
			size += len(d.event.JSON)
			c.release(d)
			if err != nil && !errors.Is(err, errClosed) || size >= batchBytes {
				return err
			}
			select {
			case d = <-c.queue:
			default:
				return nil
			}
		}
	})
	return lost
}

// keepAlive pings the client, so that a dead connection is noticed and proxies on the way do not
// think it idle.
func (c *connection) keepAlive() {
	tick := time.NewTicker(c.relay.timing.ping)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			return
		}
		// The pong is read by the goroutine that may wait for an event's verdict meanwhile.
		ctx, cancel := context.WithTimeout(c.ctx, c.relay.timing.ping+c.relay.Limits.EventTimeout)
		err := c.ws.Ping(ctx)
		cancel()
		if err != nil {
			c.abandon()
			return
		}
	}
}
