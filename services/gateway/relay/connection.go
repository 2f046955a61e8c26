package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/services/gateway/auth"
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

	writing sync.Mutex // guards what follows
	buf     []byte

	queue   chan delivery
	backlog atomic.Int64 // live events that wait, in the queue or for the stored part of their subscription to end
	waiting atomic.Int64 // their bytes
	closing atomic.Bool  // because the client is too slow
	leaving atomic.Bool  // because others need its place
	heard   atomic.Int64 // when the last message came, in nanoseconds since 1970

	mu            sync.Mutex // guards what follows
	subscriptions map[string]*subscription
	// reconciliations are the sessions of NIP-77, whose ids are another matter than those of
	// subscriptions.
	reconciliations map[string]*reconciliation

	auth     *auth.Session // who the client has proved to be
	asked    atomic.Bool   // the client has heard the challenge
	late     *time.Timer   // closes the connection if a message takes too long
	inFlight chan struct{} // events
	scans    chan struct{}
	tasks    tasks
}

// delivery is a live event on its way to a subscription. Without an event it says that the
// subscription has lost some.
type delivery struct {
	to    *subscription
	event *live.Event
}

// keptBuffer is the largest buffer that a connection keeps between two messages.
const keptBuffer = 32 << 10

// newConnection makes a connection that has no WebSocket yet: its socket is for that.
func newConnection(r *Relay, client string, leave func()) *connection {
	c := &connection{
		relay: r, client: client, leave: leave,
		queue:         make(chan delivery, r.Limits.SendQueue),
		subscriptions: map[string]*subscription{}, reconciliations: map[string]*reconciliation{},
		auth:     auth.New(r.Domain),
		inFlight: make(chan struct{}, eventsInFlight),
		scans:    make(chan struct{}, scansAtOnce),
	}
	c.heard.Store(time.Now().UnixNano())
	c.ctx, c.end = context.WithCancel(context.Background())
	c.socket = newSocket(r.timing.write, c.abandon)
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

// serve reads messages until the connection ends, and returns when nothing of it is left.
func (c *connection) serve() {
	defer func() {
		c.end()
		c.ws.CloseNow()
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
		kind, data, room, err := c.read()
		if errors.Is(err, errStopping) {
			continue // until the client has heard of it
		}
		if err != nil {
			return
		}
		c.heard.Store(time.Now().UnixNano())
		c.relay.Metrics.received(data)
		if kind == websocket.MessageBinary {
			room()
			c.say(message.Notice("invalid: messages are text, not binary"))
		} else {
			c.handle(data, room)
		}
		c.tasks.done()
	}
}

var errTooLarge = errors.New("message too large")

// errStopping: a message came when the relay had begun to close the connection.
var errStopping = errors.New("the relay is stopping")

// read reads a message, which is a task under way from its first byte on if there is no error. A
// large one is read once there is room for it among those of all clients, which the caller gives
// back by calling room.
func (c *connection) read() (kind websocket.MessageType, data []byte, room func(), err error) {
	// Not c.ctx: its end would cut the socket before a goodbye is said. Whoever ends the connection
	// closes the socket too.
	kind, r, err := c.ws.Reader(context.Background())
	if err != nil {
		return 0, nil, nil, fmt.Errorf("read: %w", err)
	}
	if !c.tasks.begin() {
		if _, err := io.Copy(io.Discard, r); err != nil {
			return 0, nil, nil, fmt.Errorf("read: %w", err)
		}
		return 0, nil, nil, errStopping
	}
	defer func() {
		if err != nil {
			c.tasks.done()
		}
	}()
	c.late.Reset(c.relay.Limits.MessageTime)
	defer c.late.Stop()
	most := c.relay.Limits.MaxMessageBytes
	data, err = io.ReadAll(io.LimitReader(r, min(smallMessage, most+1)))
	room = func() {}
	if err == nil && len(data) == smallMessage {
		if room, err = c.relay.inbound.AcquireN(c.ctx, c.client, most); err != nil {
			return 0, nil, nil, fmt.Errorf("wait for room for a message: %w", err)
		}
		whole := bytes.NewBuffer(data)
		_, err = whole.ReadFrom(io.LimitReader(r, most+1-smallMessage))
		data = whole.Bytes()
	}
	if err != nil {
		room()
		return 0, nil, nil, fmt.Errorf("read: %w", err)
	}
	if int64(len(data)) > most {
		room()
		c.say(message.Notice(fmt.Sprintf("invalid: message larger than %d bytes", most)))
		c.close(websocket.StatusMessageTooBig, fmt.Sprintf("message larger than %d bytes", most))
		return 0, nil, nil, errTooLarge
	}
	return kind, data, room, nil
}

// handle does what a message asks for. It sees to it that room is called once the message is not
// kept any more.
func (c *connection) handle(data []byte, room func()) {
	m, err := c.parse(data)
	if refusal := c.unauthenticated(m); refusal != nil {
		room()
		c.challenge()
		c.say(refusal)
		return
	}
	switch m := m.(type) {
	case message.Event:
		c.offer(m.Event, int64(len(data)), room)
		return
	case message.NegOpen:
		c.negOpen(m, room)
		return
	case message.NegMsg:
		c.negMsg(m, room)
		return
	}
	defer room()
	if err != nil {
		var refused *message.Error
		if errors.As(err, &refused) {
			if refused.Subscription != "" {
				c.unsubscribe(refused.Subscription) // CLOSED says that there is none of that id, so there is none
			}
			c.negClose(refused.Session) // so does NEG-ERR
			c.say(refused.Answer())
		}
		return
	}
	switch m := m.(type) {
	case message.Auth:
		c.authenticate(m)
	case message.Request:
		c.subscribe(m)
	case message.Count:
		c.count(m, len(data))
	case message.Close:
		c.unsubscribe(m.ID)
	case message.NegClose:
		c.negClose(m.ID)
	}
}

// parse reads a message. A longer one is read when it is the client's turn: the longest keep a
// processor busy for as long as many queries do.
func (c *connection) parse(data []byte) (message.Message, error) {
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
	c.relay.Metrics.sent(p)
	return nil
}

// together passes on what fn writes with few system calls; the caller holds the lock.
func (c *connection) together(fn func() error) error {
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

// writeFor writes messages of a subscription together, as long as it has not ended.
func (c *connection) writeFor(s *subscription, messages iter.Seq[[]byte]) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.together(func() error {
		for m := range messages {
			if s.ended.Load() {
				return errClosed
			}
			if err := c.write(m); err != nil {
				return err
			}
		}
		return nil
	})
}

// reserve makes room for one more live event to wait. If there is none, the client is too slow, and
// is disconnected.
func (c *connection) reserve(d delivery) bool {
	if c.closing.Load() {
		return false
	}
	limits := c.relay.Limits
	n, total := c.backlog.Add(1), int64(0)
	if d.event != nil {
		c.waiting.Add(int64(len(d.event.JSON)))
		total = c.relay.waiting.Add(d.event)
	}
	if n > int64(cap(c.queue)) || n > 1 && c.waiting.Load() > limits.SendQueueBytes {
		c.release(d)
		c.tooSlow()
		return false
	}
	if total > limits.SendQueuesBytes {
		c.relay.dropSlowest()
	}
	return true
}

// release gives the room back that reserve made.
func (c *connection) release(d delivery) {
	c.backlog.Add(-1)
	if d.event != nil {
		c.waiting.Add(-int64(len(d.event.JSON)))
		c.relay.waiting.Done(d.event)
	}
}

// tooSlow disconnects the client. What waits for it is forgotten at once.
func (c *connection) tooSlow() {
	if c.closing.Swap(true) {
		return
	}
	c.relay.Metrics.slowReader()
	c.relay.Log.Debug("a client reads too slowly and is disconnected", "waiting", c.backlog.Load(), "bytes", c.waiting.Load())
	c.end()
	c.discard()
	go func() {
		c.closeAll()
		c.close(websocket.StatusPolicyViolation, "too slow: more events wait than the relay keeps")
	}()
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

// close says goodbye and ends the connection.
func (c *connection) close(code websocket.StatusCode, reason string) {
	c.end()
	c.ws.Close(code, reason)
}

// sendQueued writes live events until the connection ends.
func (c *connection) sendQueued() {
	for {
		select {
		case d := <-c.queue:
			if lost := c.sendFrom(d); lost != nil {
				c.lose(lost)
			}
		case <-c.ctx.Done():
			return
		}
	}
}

// sendFrom writes a live event and with it what waits behind it, up to batchBytes. If it comes to
// where a subscription has lost events it ends there and returns the subscription.
func (c *connection) sendFrom(d delivery) (lost *subscription) {
	c.writing.Lock()
	defer c.writing.Unlock()
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

// lastMessages is how long a stop waits for a client to be silent for a moment, so that none of its
// messages is under way when it is told that the relay stops.
const lastMessages = time.Second

// stop closes the connection for the end of the service, when what was read is answered or ctx has
// ended.
func (c *connection) stop(ctx context.Context) {
	last, cancel := context.WithTimeout(c.ctx, lastMessages)
	defer cancel()
	c.tasks.finish(ctx, last)
	c.close(websocket.StatusGoingAway, "the relay is stopping")
}
