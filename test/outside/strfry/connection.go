package strfry

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/coder/websocket"

	"tendril.dev/lib/reconcile"
)

// Bounds of what waits for a client. One that is further behind is cut off when a live event comes.
const (
	answersWaiting = 256
	longestSubID   = 71
)

// answer is what one message of a client, or a live event, is answered with.
type answer struct {
	sub      string
	events   []*entry
	tail     []any    // the last message; nil: none
	finished *request // that is then a monitor, if there is room; nil: none
}

// request is a subscription: first it waits for the answer from the store, then it is a monitor
// that live events are given to, as strfry has it.
type request struct {
	id      string
	filters []*filter
	monitor bool
}

// connection is one client.
type connection struct {
	relay  *Relay
	ws     *websocket.Conn
	socket *socket
	out    chan answer
	done   chan struct{}
	once   sync.Once

	mu       sync.Mutex
	requests map[string]*request
	sessions map[string]reconcile.Packed // of NIP-77
}

func newConnection(r *Relay, ws *websocket.Conn, s *socket) *connection {
	return &connection{
		relay: r, ws: ws, socket: s, out: make(chan answer, answersWaiting), done: make(chan struct{}),
		requests: map[string]*request{}, sessions: map[string]reconcile.Packed{},
	}
}

// end hangs up.
func (c *connection) end() {
	c.once.Do(func() {
		close(c.done)
		c.socket.Conn.Close()
	})
}

// run answers the client until either side hangs up.
func (c *connection) run() {
	defer c.ws.CloseNow()
	defer c.end()
	var writing sync.WaitGroup
	writing.Go(c.write)
	defer writing.Wait()
	defer c.end() // before the wait
	for {
		_, data, err := c.ws.Read(context.Background())
		if err != nil {
			return
		}
		c.relay.traffic.touch()
		c.hear(data)
	}
}

// write sends answers, as many as there are at once.
func (c *connection) write() {
	defer c.end()
	var frame []byte
	for {
		select {
		case <-c.done:
			return
		case a := <-c.out:
			if c.socket.hold(true) != nil {
				return
			}
			for more := true; more; {
				var err error
				if frame, err = c.send(frame, a); err != nil {
					return
				}
				select {
				case a = <-c.out:
				default:
					more = false
				}
			}
			if c.socket.hold(false) != nil {
				return
			}
			c.relay.traffic.touch()
		}
	}
}

// send sends one answer. frame is room to work in.
func (c *connection) send(frame []byte, a answer) ([]byte, error) {
	ctx := context.Background()
	if len(a.events) > 0 {
		id, err := json.Marshal(a.sub)
		if err != nil {
			return frame, err
		}
		frame = append(append(append(frame[:0], `["EVENT",`...), id...), ',')
	}
	head := len(frame)
	for _, e := range a.events {
		frame = append(append(frame[:head], e.raw...), ']')
		if err := c.ws.Write(ctx, websocket.MessageText, frame); err != nil {
			return frame, err
		}
		c.relay.traffic.sent.Add(1)
	}
	if a.tail != nil {
		text, err := json.Marshal(a.tail)
		if err != nil {
			return frame, err
		}
		if err := c.ws.Write(ctx, websocket.MessageText, text); err != nil {
			return frame, err
		}
	}
	if a.finished != nil && !c.becomesMonitor(a.finished) {
		return frame, c.ws.Write(ctx, websocket.MessageText, []byte(`["NOTICE","ERROR: too many concurrent REQs"]`))
	}
	return frame, nil
}

// say puts an answer after those that wait. A client that reads nothing is read from no more.
func (c *connection) say(a answer) {
	select {
	case c.out <- a:
	case <-c.done:
	}
}

// refuse tells a client what was wrong, as strfry does.
func (c *connection) refuse(text string) { c.say(answer{tail: []any{"NOTICE", "ERROR: " + text}}) }

// live gives a new event to the subscriptions that it matches.
func (c *connection) live(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.requests {
		if !r.monitor || !r.matches(e) {
			continue
		}
		select {
		case c.out <- answer{sub: r.id, events: []*entry{e}}:
		default:
			c.end()
			return
		}
	}
}

func (r *request) matches(e *entry) bool {
	for _, f := range r.filters {
		if f.matches(e) {
			return true
		}
	}
	return false
}

// count is how many subscriptions are monitors, or are not yet.
func (c *connection) count(monitors bool) (n int) {
	for _, r := range c.requests {
		if r.monitor == monitors {
			n++
		}
	}
	return n
}

func (c *connection) monitored() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count(true)
}

// becomesMonitor makes an answered subscription wait for live events. It reports whether there was
// room; a subscription that was closed meanwhile needs none.
func (c *connection) becomesMonitor(r *request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests[r.id] != r {
		return true
	}
	if c.count(true) >= c.relay.limits.Subscriptions {
		delete(c.requests, r.id)
		return false
	}
	r.monitor = true
	return true
}
