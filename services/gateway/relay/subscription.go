package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/reconcile"
)

// question is an open subscription or session of NIP-77.
type question struct {
	conn   *connection
	asked  message
	head   []byte          // of its EVENT messages
	ctx    context.Context // ends with the question
	cancel context.CancelFunc
	ended  atomic.Bool // set before anything else is sent under this id
	after  []func()    // called when it has ended; guarded by conn.mu

	// Of a session:
	busy  atomic.Bool // a message is being answered; that alone uses what follows
	items reconcile.Packed
	kept  *eventdb.View // items are what it gave for the filter; it is closed. nil: they are not kept
}

// ask opens a question, or answers why there is no room for it. One of the same name has been
// dropped.
func (c *connection) ask(m message) *question {
	c.mu.Lock()
	n := len(c.open)
	c.mu.Unlock()
	if n >= c.relay.Limits.MaxSubscriptions {
		c.tellRefusal(m, fmt.Sprintf("error: too many subscriptions: at most %d at once on one connection; close some", n))
		return nil
	}
	back, err := c.afford(m)
	if err != nil {
		c.tellRefusal(m, err.Error())
		return nil
	}
	q := &question{conn: c, asked: m, after: []func(){back}}
	q.ctx, q.cancel = context.WithCancel(c.ctx)
	q.head = encode("EVENT", m.id)
	q.head[len(q.head)-1] = ','
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[m.question()] = q
	return q
}

// afford makes room for a subscription, a session or a count. An error says to the client why there
// is none.
func (c *connection) afford(m message) (back func(), err error) {
	open, err := c.relay.filters.Try(c.client, int64(len(m.filters)))
	if err != nil {
		return nil, fmt.Errorf("rate-limited: at most %d open filters from one address; close some subscriptions",
			c.relay.Limits.MaxOpenFiltersPerIP)
	}
	size := m.size + openQuestion
	for _, f := range m.filters {
		size += openValue * len(keysOf(f))
	}
	forget, err := c.keep(size)
	if err != nil {
		open()
		return nil, errors.New(c.relay.why(err))
	}
	return func() { open(); forget() }, nil
}

// drop ends the question with this name, if there is one.
func (c *connection) drop(name string) {
	c.mu.Lock()
	q := c.open[name]
	c.mu.Unlock()
	if q != nil {
		q.drop()
	}
}

// drop ends a question. It reports false if another did it before.
func (q *question) drop() bool {
	c := q.conn
	c.mu.Lock()
	if q.ended.Swap(true) {
		c.mu.Unlock()
		return false
	}
	delete(c.open, q.asked.question())
	after := q.after
	c.mu.Unlock()
	q.cancel()
	for _, fn := range after {
		fn()
	}
	return true
}

// onEnd has fn called when the question ends, or at once if it has ended.
func (q *question) onEnd(fn func()) {
	q.conn.mu.Lock()
	ended := q.ended.Load()
	q.after = append(q.after, fn)
	q.conn.mu.Unlock()
	if ended {
		fn()
	}
}

// refuse ends a question with an answer, which comes before anything that is sent for a later one
// with the same id.
func (q *question) refuse(answer []byte) {
	q.conn.writing.Lock()
	defer q.conn.writing.Unlock()
	if q.drop() {
		q.conn.write(answer)
	}
}

// subscription is one REQ. It is in the hub before the index is looked at, and the look is at one
// sequence of the log: what is stored up to there comes from the index, what comes after it from
// the hub. So nothing is lost between the two and nothing comes twice.
type subscription struct {
	*question

	mu      sync.Mutex // guards what follows
	live    bool       // the stored part has been sent
	upTo    uint64     // the sequence that it reached
	waiting []waiting  // live events that came before its end
}

// waiting is a live event for a subscription whose stored part is not sent yet.
type waiting struct {
	seq uint64 // 0: an ephemeral event, which no stored part has
	delivery
}

// subscribe starts a subscription.
func (c admitted) subscribe(m message) {
	q := c.ask(m)
	if q == nil {
		return
	}
	s := &subscription{question: q}
	c.task(func() {
		select {
		case c.scans <- struct{}{}:
			defer func() { <-c.scans }()
		case <-q.ctx.Done():
			return
		}
		if err := s.sendStored(); err != nil && q.ctx.Err() == nil {
			q.refuse(m.refusal(c.relay.why(err)))
		}
	})
}

// sendStored joins the hub, sends the stored events and EOSE, each as soon as the client takes it,
// and then lets live events through. It does what keeps a processor busy when it is the client's
// turn, and lets others work while the client takes its time.
func (s *subscription) sendStored() error {
	c, r := s.conn, s.conn.relay
	ctx, cancel := context.WithTimeout(s.ctx, scanTime)
	defer cancel()
	ranges := 0
	for _, f := range s.asked.filters {
		ranges += min(len(keysOf(f)), eventdb.MaxMerged)
	}
	forget, err := c.keep(ranges * openRange)
	if err != nil {
		return err
	}
	defer forget()
	turn, err := r.Work.Turn(ctx, c.client)
	if err != nil {
		return err
	}
	defer turn.Pause()
	leave := r.hub.subscribe(s.asked.filters, s.deliver)
	s.onEnd(func() { leave(); s.forget() })
	view := r.Index.View()
	defer view.Close()
	found := batches.Get().(*batch)
	defer found.done()
	for ev, err := range storedEvents(ctx, view.Within(r.Limits.MaxFilterSteps).Yielding(turn.Yield), s.asked.filters) {
		if err != nil {
			turn.Pause()
			return errors.Join(c.send(found), err)
		}
		if found.event(s.question, ev.JSON); len(found.bytes) < batchBytes {
			continue
		}
		turn.Pause()
		if err := c.send(found); err != nil {
			return err
		}
		if err := turn.Resume(ctx); err != nil {
			return err
		}
	}
	turn.Pause()
	if ctx.Err() == nil {
		found.bytes = append(found.bytes, encode("EOSE", s.asked.id)...)
		found.parts = append(found.parts, part{s.question, len(found.bytes)})
	}
	if err := errors.Join(c.send(found), ctx.Err()); err != nil {
		return err
	}
	s.goLive(view.Seq())
	return nil
}

// goLive queues what has come since the view was taken, and everything from now on.
func (s *subscription) goLive(upTo uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live, s.upTo = true, upTo
	for _, d := range s.waiting {
		if d.seq == 0 || d.seq > upTo {
			s.conn.enqueue(d.delivery)
		} else {
			d.forget() // the stored part had it
		}
	}
	s.waiting = nil
}

// deliver takes an event from the hub.
func (s *subscription) deliver(r eventdb.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.Load() || s.live && r.Seq != 0 && r.Seq <= s.upTo {
		return
	}
	d, ok := s.conn.reserve(s.question, r)
	switch {
	case !ok:
	case s.live:
		s.conn.enqueue(d)
	default:
		s.waiting = append(s.waiting, waiting{r.Seq, d})
	}
}

// forget forgets what waits, after the hub has delivered the last event.
func (s *subscription) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.waiting {
		d.forget()
	}
	s.waiting = nil
}

// count answers a COUNT (NIP-45).
func (c admitted) count(m message) {
	back, err := c.afford(m)
	if err != nil {
		c.tellRefusal(m, err.Error())
		return
	}
	c.task(func() {
		defer back()
		n, approximate, err := c.relay.count(c.ctx, c.client, m)
		if err != nil {
			c.tellRefusal(m, c.relay.why(err))
			return
		}
		c.say("COUNT", m.id, struct {
			Count       int  `json:"count"`
			Approximate bool `json:"approximate,omitempty"` // there are at least so many
		}{n, approximate})
	})
}

// count counts when it is the client's turn. The time that it waits for that is part of the time it
// has.
func (r *Relay) count(ctx context.Context, client string, m message) (n int, approximate bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
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
	return countStored(ctx, view.Within(r.Limits.MaxFilterSteps).Yielding(turn.Yield), m.filters, mostCounted)
}

// why says to a client why the relay does not answer.
func (r *Relay) why(err error) string {
	switch {
	case errors.Is(err, eventdb.ErrTooBroad):
		// Some filters match next to nothing and still have to be compared with everything.
		return "error: a filter is too broad; narrow it by time, author or tag"
	case errors.Is(err, context.DeadlineExceeded):
		return "error: the answer could not be given in time"
	case errors.Is(err, limit.ErrShare):
		return fmt.Sprintf("rate-limited: what this relay keeps for your address takes more than %d bytes; close some "+
			"subscriptions", r.Limits.ClientBytesPerIP)
	case errors.Is(err, limit.ErrFull):
		return "rate-limited: this relay does and keeps as much as it can for all clients; try again later"
	}
	r.Log.Warn("a question could not be answered", "error", err)
	return "error: the stored events could not be read"
}
