package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/limit"
	"tendril.dev/services/gateway/live"
	"tendril.dev/services/gateway/message"
	"tendril.dev/services/gateway/stored"
)

// subscription is one REQ. It is in the hub before the index is looked at, and the look is at one
// sequence of the log: what is stored up to there comes from the index, what comes after it from
// the hub. So nothing is lost between the two and nothing comes twice.
type subscription struct {
	conn   *connection
	id     string
	back   func() // gives back what the subscription takes of what all share
	head   []byte // of its EVENT messages
	cancel context.CancelFunc
	ended  atomic.Bool // set before anything else is sent under this id

	mu      sync.Mutex // guards what follows
	place   *live.Subscription
	live    bool       // the stored part has been sent
	after   uint64     // it reached up to this sequence
	waiting []delivery // live events that came before its end
}

// subscribe starts a subscription, in place of one with the same id if there is one (NIP-01). When
// the stored events are sent, it calls done.
func (c *connection) subscribe(m message.Request, done func()) {
	c.unsubscribe(m.ID)
	s := &subscription{conn: c, id: m.ID, head: message.EventHead(m.ID)}
	ctx, cancel := context.WithCancel(c.ctx)
	s.cancel = cancel
	if refusal := c.enter(s, m.Size); refusal != "" {
		cancel()
		c.say(message.Closed(m.ID, refusal))
		done()
		return
	}
	c.work.Go(func() {
		defer done()
		s.run(ctx, m)
	})
}

// enter notes a new subscription, or says why there is no room for it.
func (c *connection) enter(s *subscription, size int) (refusal string) {
	c.mu.Lock()
	n := len(c.subscriptions)
	c.mu.Unlock()
	if n >= c.relay.Limits.MaxSubscriptions {
		return fmt.Sprintf("error: too many subscriptions: at most %d at once on one connection; close some", n)
	}
	if s.back, refusal = c.ask(size); refusal != "" {
		return refusal
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscriptions[s.id] = s
	return ""
}

// ask makes room for a subscription, a session or a count, whose message has so many bytes, or says
// why there is none.
func (c *connection) ask(size int) (back func(), refusal string) {
	limits := c.relay.Limits
	one, err := c.relay.questions.Try(c.client, 1)
	if err != nil {
		return nil, fmt.Sprintf("rate-limited: at most %d subscriptions from one address; close some", limits.MaxSubscriptionsPerIP)
	}
	forget, err := c.keep(size + openQuestion)
	if err != nil {
		one()
		return nil, c.relay.noMemory(err)
	}
	return func() { one(); forget() }, ""
}

// unsubscribe ends the subscription with this id, if there is one.
func (c *connection) unsubscribe(id string) {
	c.mu.Lock()
	s := c.subscriptions[id]
	c.mu.Unlock()
	if s != nil {
		c.drop(s)
	}
}

// drop ends a subscription. It reports false if another did it before.
func (c *connection) drop(s *subscription) bool {
	c.mu.Lock()
	if s.ended.Swap(true) {
		c.mu.Unlock()
		return false
	}
	delete(c.subscriptions, s.id)
	c.mu.Unlock()
	s.back()
	s.cancel()
	s.leave()
	return true
}

func (c *connection) closeAll() {
	c.mu.Lock()
	subscriptions := slices.Collect(maps.Values(c.subscriptions))
	reconciliations := slices.Collect(maps.Values(c.reconciliations))
	c.mu.Unlock()
	for _, s := range subscriptions {
		c.drop(s)
	}
	for _, s := range reconciliations {
		s.drop()
	}
}

// refuse ends a subscription with a CLOSED, which comes before anything that is sent for a later
// one with the same id.
func (c *connection) refuse(s *subscription, why string) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.drop(s) {
		c.write(message.Closed(s.id, why))
	}
}

// run answers a subscription up to where it is live.
func (s *subscription) run(ctx context.Context, m message.Request) {
	c := s.conn
	select {
	case c.scans <- struct{}{}:
		defer func() { <-c.scans }()
	case <-ctx.Done():
		return
	}
	switch err := s.sendStored(ctx, m); {
	case err == nil || ctx.Err() != nil || errors.Is(err, errClosed):
	case errors.Is(err, context.DeadlineExceeded):
		c.refuse(s, "error: the stored events could not be sent in time")
	case errors.Is(err, eventdb.ErrTooBroad):
		c.refuse(s, messageTooBroad)
	case errors.Is(err, limit.ErrFull):
		c.refuse(s, "rate-limited: too many questions wait for an answer; ask again later")
	default:
		c.relay.Log.Warn("a subscription could not be answered", "error", err)
		c.refuse(s, "error: the stored events could not be read")
	}
}

// join keeps the place in the hub until the subscription ends, which it may have done already.
func (s *subscription) join(place *live.Subscription) {
	s.mu.Lock()
	s.place = place
	s.mu.Unlock()
	if s.ended.Load() {
		s.leave()
	}
}

// leave gives the place in the hub back. When the last call has returned, the hub has nothing more
// to deliver.
func (s *subscription) leave() {
	s.mu.Lock()
	place, waiting := s.place, s.waiting
	s.place, s.waiting = nil, nil
	s.mu.Unlock()
	for _, d := range waiting {
		s.conn.release(d)
	}
	if place != nil {
		place.Cancel()
	}
}

// messageTooBroad answers a filter that costs too much: some match next to nothing and still have
// to be compared with everything.
const messageTooBroad = "error: a filter is too broad; narrow it by time, author or tag"

// sendStored joins the hub, sends the stored events and EOSE, each as soon as the client takes it,
// and then lets live events through. It does what keeps a processor busy when it is the client's
// turn, and lets others work while the client takes its time.
func (s *subscription) sendStored(ctx context.Context, m message.Request) error {
	r := s.conn.relay
	scan, cancel := context.WithTimeout(ctx, r.timing.scan)
	defer cancel()
	turn, err := r.Work.Turn(scan, s.conn.client)
	if err != nil {
		return err
	}
	defer turn.Pause()
	s.join(r.Hub.Subscribe(m.Filters, s))
	view := r.Index.View()
	defer view.Close()
	found := batch{head: s.head}
	for ev, err := range stored.Events(scan, view.Within(r.Limits.MaxFilterSteps).Yielding(turn.Yield), m.Filters) {
		if err != nil {
			turn.Pause()
			return errors.Join(s.send(&found), err)
		}
		if found.add(ev.JSON); len(found.bytes) < batchBytes {
			continue
		}
		turn.Pause()
		if err := s.send(&found); err != nil {
			return err
		}
		if err := turn.Resume(scan); err != nil {
			return err
		}
	}
	turn.Pause()
	if err := scan.Err(); err != nil {
		return errors.Join(s.send(&found), err)
	}
	found.end(message.EOSE(s.id))
	if err := s.send(&found); err != nil {
		return err
	}
	s.goLive(view.Seq())
	return nil
}

// batch is messages of a subscription that are not written yet: stored events, and what ends them.
type batch struct {
	head  []byte // of EVENT messages
	bytes []byte
	ends  []int // of each message
}

// add appends the message of an event.
func (b *batch) add(json []byte) {
	b.bytes = append(append(b.bytes, b.head...), json...)
	b.end([]byte{']'})
}

// end appends the rest of a message.
func (b *batch) end(rest []byte) {
	b.bytes = append(b.bytes, rest...)
	b.ends = append(b.ends, len(b.bytes))
}

// send writes a batch, as long as the subscription has not ended, and empties it.
func (s *subscription) send(b *batch) error {
	return s.conn.together(func() error {
		begin := 0
		for _, end := range b.ends {
			if s.ended.Load() {
				return errClosed
			}
			if err := s.conn.write(b.bytes[begin:end]); err != nil {
				return err
			}
			begin = end
		}
		b.bytes, b.ends = b.bytes[:0], b.ends[:0]
		return nil
	})
}

// goLive queues what has come since the view was taken, and everything from now on. All of it has
// its place reserved.
func (s *subscription) goLive(after uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live, s.after = true, after
	for _, d := range s.waiting {
		if d.event != nil && d.event.Seq <= after {
			s.conn.release(d) // the stored part had it
		} else {
			s.conn.queue <- d
		}
	}
	s.waiting = nil
}

// Deliver and Lost are called by the hub.

func (s *subscription) Deliver(e *live.Event) { s.take(delivery{to: s, event: e}) }
func (s *subscription) Lost()                 { s.take(delivery{to: s}) }

func (s *subscription) take(d delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended.Load() || d.event != nil && s.live && d.event.Seq <= s.after || !s.conn.reserve(&d):
	case s.live:
		s.conn.queue <- d
	default:
		s.waiting = append(s.waiting, d)
	}
}

// count answers a COUNT (NIP-45), and then calls done.
func (c *connection) count(m message.Count, done func()) {
	back, refusal := c.ask(m.Size)
	if refusal != "" {
		c.say(message.Closed(m.ID, refusal))
		done()
		return
	}
	c.work.Go(func() {
		defer func() { back(); done() }()
		n, approximate, err := c.relay.count(c.ctx, c.client, m)
		switch {
		case errors.Is(err, eventdb.ErrTooBroad):
			c.say(message.Closed(m.ID, messageTooBroad))
		case err != nil:
			c.say(message.Closed(m.ID, "error: the events could not be counted in time"))
		default:
			c.say(message.Counted(m.ID, n, approximate))
		}
	})
}

// count counts when it is the client's turn. The time that it waits for that is part of the time it
// has.
func (r *Relay) count(ctx context.Context, client string, m message.Count) (n int, approximate bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.timing.count)
	defer cancel()
	done, err := r.gathering.Acquire(ctx, client)
	if err != nil {
		return 0, false, err
	}
	defer done()
	turn, err := r.Work.Turn(ctx, client)
	if err != nil {
		return 0, false, err
	}
	defer turn.Pause()
	view := r.Index.View()
	defer view.Close()
	return stored.Count(ctx, view.Within(r.Limits.MaxFilterSteps).Yielding(turn.Yield), m.Filters, mostCounted)
}
