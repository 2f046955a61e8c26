package outside

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/gobwas/ws"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
)

const (
	// answersWaiting bounds what waits for a client. One that is further behind is cut off when a
	// live event comes.
	answersWaiting = 256
	// gathered is how many bytes are written at once at most. A frame each would be a system call
	// each.
	gathered     = 64 << 10
	longestSubID = 71
	// reconcileFrame is the longest message that strfry's side of NIP-77 writes, in bytes.
	reconcileFrame = 500_000
)

// answer is what one message of a client, or a live event, is answered with.
type answer struct {
	sub      string
	events   []*entry
	tail     []any         // the last message; nil: none
	pong     []byte        // of a ping; nil: none
	finished *subscription // that then gets live events, if there is room; nil: none
}

// subscription first waits for the answer from the store, then it gets live events, as strfry has
// it.
type subscription struct {
	id      string
	filters []*filter
	live    bool
}

// connection is one client.
type connection struct {
	relay *Relay
	conn  net.Conn
	in    *bufio.Reader
	out   chan answer
	done  chan struct{}
	once  sync.Once

	mu            sync.Mutex
	subscriptions map[string]*subscription
	sessions      map[string]reconcile.Packed // of NIP-77
}

func newConnection(r *Relay, conn net.Conn, in *bufio.Reader) *connection {
	return &connection{
		relay: r, conn: conn, in: in, out: make(chan answer, answersWaiting), done: make(chan struct{}),
		subscriptions: map[string]*subscription{}, sessions: map[string]reconcile.Packed{},
	}
}

// end hangs up.
func (c *connection) end() {
	c.once.Do(func() {
		close(c.done)
		c.conn.Close()
	})
}

// next reads the next message, and answers pings meanwhile.
func (c *connection) next() ([]byte, error) {
	for {
		head, err := ws.ReadHeader(c.in)
		if err != nil {
			return nil, err
		}
		if head.Length > int64(c.relay.is.MessageBytes) {
			return nil, errors.New("the client's message is too long")
		}
		data := make([]byte, head.Length)
		if _, err := io.ReadFull(c.in, data); err != nil {
			return nil, err
		}
		ws.Cipher(data, head.Mask, 0)
		switch head.OpCode {
		case ws.OpClose:
			return nil, io.EOF
		case ws.OpPing:
			c.say(answer{pong: data})
		case ws.OpText:
			c.relay.count(func(t *Traffic) { t.Messages, t.Last = t.Messages+1, time.Now() })
			return data, nil
		}
	}
}

// run answers the client until either side hangs up.
func (c *connection) run() {
	var writing sync.WaitGroup
	writing.Go(c.write)
	defer writing.Wait()
	defer c.end() // before the wait
	for {
		data, err := c.next()
		if err != nil {
			return
		}
		time.Sleep(c.relay.is.Delay)
		c.hear(data)
	}
}

// write sends answers, as many as there are at once.
func (c *connection) write() {
	defer c.end()
	w := bufio.NewWriterSize(c.conn, gathered)
	var err error
	for err == nil {
		select {
		case a := <-c.out:
			err = c.send(w, a)
			continue
		default:
		}
		err = w.Flush()
		c.relay.count(func(t *Traffic) { t.Last = time.Now() })
		select {
		case <-c.done:
			return
		case a := <-c.out:
			err = errors.Join(err, c.send(w, a))
		}
	}
}

// send writes one answer. What fails to be written fails at the end too.
func (c *connection) send(w *bufio.Writer, a answer) error {
	if a.pong != nil {
		return ws.WriteFrame(w, ws.NewPongFrame(a.pong))
	}
	if len(a.events) > 0 {
		head := fmt.Appendf(nil, `["EVENT",%q,`, a.sub)
		for _, e := range a.events {
			ws.WriteHeader(w, ws.Header{Fin: true, OpCode: ws.OpText, Length: int64(len(head) + len(e.raw) + 1)})
			w.Write(head)
			w.Write(e.raw)
			w.WriteByte(']')
		}
		c.relay.count(func(t *Traffic) { t.Sent += len(a.events) })
	}
	if a.finished != nil && !c.goesLive(a.finished) {
		defer ws.WriteFrame(w, ws.NewTextFrame([]byte(`["NOTICE","ERROR: too many concurrent REQs"]`)))
	}
	if a.tail == nil {
		return nil
	}
	text, err := json.Marshal(a.tail)
	if err != nil {
		return err
	}
	return ws.WriteFrame(w, ws.NewTextFrame(text))
}

// say puts an answer after those that wait. A client that reads nothing is read from no more.
func (c *connection) say(a answer) {
	select {
	case c.out <- a:
	case <-c.done:
	}
}

func (c *connection) tail(elements ...any) { c.say(answer{tail: elements}) }

// live gives a new event to the subscriptions that it matches.
func (c *connection) live(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.subscriptions {
		if !s.live || !slices.ContainsFunc(s.filters, func(f *filter) bool { return f.matches(e) }) {
			continue
		}
		select {
		case c.out <- answer{sub: s.id, events: []*entry{e}}:
		default:
			c.end()
			return
		}
	}
}

// count is how many subscriptions get live events, or do not yet.
func (c *connection) count(live bool) (n int) {
	for _, s := range c.subscriptions {
		if s.live == live {
			n++
		}
	}
	return n
}

func (c *connection) listening() (filters int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.subscriptions {
		if s.live {
			filters += len(s.filters)
		}
	}
	return filters
}

// goesLive gives an answered subscription live events. It reports whether there was room; a
// subscription that was closed meanwhile needs none.
func (c *connection) goesLive(s *subscription) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.subscriptions[s.id] != s {
		return true
	}
	if c.count(true) >= c.relay.is.Subscriptions {
		delete(c.subscriptions, s.id)
		return false
	}
	s.live = true
	return true
}

// message is what a client said: the verb, the next element if it is a string, and all elements.
type message struct {
	verb, sub string
	all       []json.RawMessage
}

func parse(data []byte) (m message, err error) {
	switch {
	case json.Unmarshal(data, &m.all) != nil:
		return m, errors.New("message is not an array")
	case len(m.all) < 2:
		return m, errors.New("too few array elements")
	case json.Unmarshal(m.all[0], &m.verb) != nil:
		return m, errors.New("first element not a command like REQ")
	}
	json.Unmarshal(m.all[1], &m.sub) // an event is no string
	return m, nil
}

// hear acts on a message of the client. What is wrong is said as strfry does.
func (c *connection) hear(data []byte) {
	m, err := parse(data)
	if err != nil {
		c.tail("NOTICE", "ERROR: bad msg: "+err.Error())
		return
	}
	handlers := map[string]struct {
		called string
		least  int // elements
		act    func(message) error
	}{
		"EVENT": {"bad event", 2, c.event}, "REQ": {"bad req", 3, c.req}, "CLOSE": {"bad close", 2, c.close},
		"NEG-OPEN": {"bad msg", 4, c.negOpen}, "NEG-MSG": {"negentropy error", 3, c.negMsg}, "NEG-CLOSE": {"negentropy error", 2, c.negClose},
	}
	h, known := handlers[m.verb]
	switch {
	case !known || c.relay.is.NoNegentropy && len(m.verb) > 4 && m.verb[:4] == "NEG-":
		h.called, err = "bad msg", errors.New("unknown cmd")
	case len(m.all) < h.least:
		err = errors.New("arr too small")
	case m.verb != "EVENT" && (m.sub == "" || len(m.sub) > longestSubID):
		err = errors.New("invalid subscription id length")
	default:
		err = h.act(m)
	}
	if err != nil {
		c.tail("NOTICE", "ERROR: "+h.called+": "+err.Error())
	}
}

func (c *connection) req(m message) error {
	if len(m.all) > 2+c.relay.is.Filters {
		return errors.New("arr too big")
	}
	s := &subscription{id: m.sub}
	bytes, past := 0, false
	for _, raw := range m.all {
		bytes += len(raw) + 1 // with a comma
	}
	for _, raw := range m.all[2:] {
		f, err := readFilter(raw, c.relay.is.Page)
		if err != nil {
			return err
		}
		s.filters = append(s.filters, f)
		past = past || f.limit > 0
	}
	c.relay.count(func(t *Traffic) {
		t.Requests++
		if !past {
			t.Live += bytes
		}
		for _, f := range s.filters {
			c.relay.asked = append(c.relay.asked, f.Filter)
		}
	})
	c.mu.Lock()
	delete(c.subscriptions, s.id) // a new REQ takes the place of an old one
	full := c.count(false) >= c.relay.is.Subscriptions
	if !full {
		c.subscriptions[s.id] = s
	}
	c.mu.Unlock()
	if full {
		c.tail("NOTICE", "ERROR: too many concurrent REQs")
		return nil
	}
	var found []*entry
	seen := map[*entry]bool{}
	for _, f := range s.filters {
		for _, e := range c.relay.store.query(f, f.limit) {
			if !seen[e] {
				seen[e] = true
				found = append(found, e)
			}
		}
	}
	c.relay.wait(len(found), c.done)
	c.say(answer{sub: s.id, events: found, tail: []any{"EOSE", s.id}, finished: s})
	return nil
}

func (c *connection) close(m message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.subscriptions, m.sub)
	return nil
}

func (c *connection) event(m message) error {
	e, ev, err := read(m.all[1])
	if err != nil {
		return err
	}
	switch {
	case !nostr.HasID(ev) || !nostr.Signed(ev):
		c.tail("OK", ev.ID, false, "invalid: bad event id or signature")
	case !c.relay.store.add(e):
		c.tail("OK", ev.ID, true, "duplicate: have this event")
	default:
		c.tail("OK", ev.ID, true, "")
		c.relay.tell(e)
	}
	return nil
}

func (c *connection) negOpen(m message) error {
	f, err := readFilter(m.all[2], math.MaxInt)
	if err != nil {
		return err
	}
	c.relay.count(func(t *Traffic) { t.Reconciled++ })
	found := c.relay.store.query(f, min(f.limit, c.relay.is.Reconciled+1))
	if len(found) > c.relay.is.Reconciled {
		c.tail("NEG-ERR", m.sub, "blocked: too many query results")
		return nil
	}
	items := make([]reconcile.Item, len(found))
	for i, e := range found {
		items[i] = e.item
	}
	c.mu.Lock()
	delete(c.sessions, m.sub)
	full := len(c.sessions) >= c.relay.is.Subscriptions
	if !full {
		c.sessions[m.sub] = reconcile.Pack(items)
	}
	c.mu.Unlock()
	if full {
		c.tail("NOTICE", "ERROR: too many concurrent NEG requests")
		return nil
	}
	return c.reconcile(m.sub, m.all[3])
}

func (c *connection) negMsg(m message) error { return c.reconcile(m.sub, m.all[2]) }

func (c *connection) reconcile(id string, raw json.RawMessage) error {
	c.mu.Lock()
	set, open := c.sessions[id]
	c.mu.Unlock()
	if !open {
		c.tail("NEG-ERR", id, "closed: unknown subscription handle")
		return nil
	}
	answer, err := respond(set, raw)
	if err != nil {
		return err
	}
	c.tail("NEG-MSG", id, answer)
	return nil
}

// respond answers a message of NIP-77, in hex digits both.
func respond(set reconcile.Packed, raw json.RawMessage) (string, error) {
	var digits string
	if err := json.Unmarshal(raw, &digits); err != nil {
		return "", errors.New("negentropy message is not a string")
	}
	said, err := hex.DecodeString(digits)
	if err != nil {
		return "", errors.New("negentropy message is not hex")
	}
	limits := reconcile.DefaultLimits
	limits.Frame = reconcileFrame
	next, err := reconcile.Respond(context.Background(), set, said, limits)
	if err != nil {
		return "", fmt.Errorf("reconcile: %w", err)
	}
	return hex.EncodeToString(next), nil
}

func (c *connection) negClose(m message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, m.sub)
	return nil
}
