package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"

	"tendril.dev/services/gateway/live"
	"tendril.dev/services/gateway/message"
)

// connection is one client. Messages are read one after the other by serve; each REQ, COUNT and EVENT is then carried on by a goroutine of
// its own, within bounds. Stored events and answers are written at the client's speed, while live ones wait in a queue, and a client
// that lets it fill up is disconnected.
type connection struct {
	relay *Relay
	ws    *websocket.Conn
	ctx   context.Context // ends with the connection
	end   context.CancelFunc
	work  sync.WaitGroup // all goroutines of the connection

	writing  sync.Mutex // guards what follows
	buf      []byte
	watchdog *time.Timer // closes the connection if a write takes too long

	queue   chan delivery
	backlog atomic.Int64 // live events that wait, in the queue or for the stored part of their subscription to end

	mu            sync.Mutex // guards what follows
	subscriptions map[string]*subscription
	kept          int // bytes of the requests of all subscriptions
	closing       bool

	rate     *rate.Limiter
	inFlight chan struct{} // events
	scans    chan struct{}
	counts   chan struct{} // under way
	counting chan struct{} // the one of them whose turn it is
	stopping atomic.Bool
}

// delivery is a live event on its way to a subscription. Without an event it says that the subscription has lost some.
type delivery struct {
	to    *subscription
	event *live.Event
}

// keptBuffer is the largest buffer that a connection keeps between two messages.
const keptBuffer = 32 << 10

func newConnection(r *Relay, ws *websocket.Conn) *connection {
	c := &connection{
		relay: r, ws: ws,
		queue:         make(chan delivery, r.Limits.SendQueue),
		subscriptions: map[string]*subscription{},
		rate:          rate.NewLimiter(rate.Limit(float64(r.Limits.EventsPerMinute)/60), r.Limits.EventsPerMinute),
		inFlight:      make(chan struct{}, eventsInFlight),
		scans:         make(chan struct{}, scansAtOnce),
		counts:        make(chan struct{}, countsInFlight),
		counting:      make(chan struct{}, 1),
	}
	c.ctx, c.end = context.WithCancel(context.Background())
	c.watchdog = time.AfterFunc(time.Hour, c.abandon)
	c.watchdog.Stop()
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
		c.watchdog.Stop()
	}()
	c.ws.SetReadLimit(-1) // read does it, and says so in nostr's words
	c.work.Go(c.sendQueued)
	c.work.Go(c.keepAlive)
	for {
		kind, data, err := c.read()
		if err != nil {
			return
		}
		if c.stopping.Load() {
			continue
		}
		c.relay.Metrics.received()
		if kind == websocket.MessageBinary {
			c.say(message.Notice("invalid: messages are text, not binary"))
			continue
		}
		c.handle(data)
	}
}

var errTooLarge = errors.New("message too large")

func (c *connection) read() (websocket.MessageType, []byte, error) {
	// Not c.ctx: its end would cut the socket before a goodbye is said. Whoever ends the connection closes the socket too.
	kind, r, err := c.ws.Reader(context.Background())
	if err != nil {
		return 0, nil, fmt.Errorf("read: %w", err)
	}
	most := c.relay.Limits.MaxMessageBytes
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return 0, nil, fmt.Errorf("read: %w", err)
	}
	if int64(len(data)) > most {
		c.say(message.Notice(fmt.Sprintf("invalid: message larger than %d bytes", most)))
		c.close(websocket.StatusMessageTooBig, fmt.Sprintf("message larger than %d bytes", most))
		return 0, nil, errTooLarge
	}
	return kind, data, nil
}

func (c *connection) handle(data []byte) {
	m, err := c.relay.limits.Parse(data)
	if err != nil {
		var refused *message.Error
		if errors.As(err, &refused) {
			if refused.Subscription != "" {
				c.unsubscribe(refused.Subscription) // CLOSED says that there is none of that id, so there is none
			}
			c.say(refused.Answer())
		}
		return
	}
	switch m := m.(type) {
	case message.Event:
		c.offer(m.Event)
	case message.Request:
		c.subscribe(m)
	case message.Count:
		c.count(m)
	case message.Close:
		c.unsubscribe(m.ID)
	}
}

// say writes an answer. An error ends the connection by itself.
func (c *connection) say(answer []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.write(answer)
}

// write writes one message; the caller holds the lock. The context that goes to the socket never ends: to watch one for every message would
// cost more than to write it.
func (c *connection) write(p []byte) error {
	c.watchdog.Reset(c.relay.timing.write)
	err := c.ws.Write(context.Background(), websocket.MessageText, p)
	c.watchdog.Stop()
	if err != nil {
		c.abandon()
		return fmt.Errorf("write: %w", err)
	}
	c.relay.Metrics.sent()
	return nil
}

// errClosed: the subscription has ended, so that nothing is sent for it any more.
var errClosed = errors.New("subscription closed")

// writeEvent writes an event of a subscription, unless it has ended.
func (c *connection) writeEvent(s *subscription, json []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
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

// writeFor writes an answer for a subscription, unless it has ended.
func (c *connection) writeFor(s *subscription, answer []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if s.ended.Load() {
		return errClosed
	}
	return c.write(answer)
}

// reserve makes room for one more live event to wait. There is none: the client is too slow, and it is disconnected.
func (c *connection) reserve() bool {
	if c.backlog.Add(1) <= int64(cap(c.queue)) {
		return true
	}
	c.mu.Lock()
	first := !c.closing
	c.closing = true
	c.mu.Unlock()
	if first {
		c.relay.Metrics.slowReader()
		c.relay.Log.Debug("a client reads too slowly and is disconnected", "waiting", cap(c.queue))
		c.work.Go(func() { c.close(websocket.StatusPolicyViolation, "too slow: more events wait than the relay keeps") })
	}
	return false
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
			c.backlog.Add(-1)
			if d.event == nil {
				c.lose(d.to)
				continue
			}
			c.writeEvent(d.to, d.event.JSON)
		case <-c.ctx.Done():
			return
		}
	}
}

// keepAlive pings the client, so that a dead connection is noticed and proxies on the way do not think it idle.
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

// stop closes the connection for the end of the service, when the events in flight have their verdicts or ctx has ended.
func (c *connection) stop(ctx context.Context) {
	c.stopping.Store(true)
	for range cap(c.inFlight) {
		select {
		case c.inFlight <- struct{}{}:
		case <-c.ctx.Done():
			return
		case <-ctx.Done():
		}
	}
	c.close(websocket.StatusGoingAway, "the relay is stopping")
}
