package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
	"tendril.dev/services/gateway/message"
)

// reconciliation is one session of NIP-77. The events of its filter are kept to its end, or
// gathered for each message where there is no memory for them: reconcile says why that is right.
type reconciliation struct {
	conn   *connection
	id     string
	filter nostr.Filter
	back   func()           // gives back what the session takes of what all share
	items  reconcile.Packed // the answer to the message under way is made of them
	forget func()           // gives back their memory; nil: they are not kept. Guarded by conn.mu
	ctx    context.Context
	cancel context.CancelFunc
	ended  atomic.Bool // set before anything else is sent under this id
	busy   atomic.Bool // a message is being answered
}

// negOpen begins a session, in place of one with the same id if there is one (NIP-77). When the
// message is answered, it calls done.
func (c *connection) negOpen(m message.NegOpen, done func()) {
	c.negClose(m.ID)
	back, refusal := c.ask(m.Size)
	if refusal != "" {
		c.say(message.NegErr(m.ID, strings.Replace(refusal, "rate-limited:", "blocked:", 1)))
		done()
		return
	}
	s := &reconciliation{conn: c, id: m.ID, filter: m.Filter, back: back}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	c.mu.Lock()
	c.reconciliations[s.id] = s
	c.mu.Unlock()
	s.busy.Store(true)
	c.work.Go(func() {
		defer done()
		s.answer(m.Message)
	})
}

// negMsg goes on with a session; done as for negOpen.
func (c *connection) negMsg(m message.NegMsg, done func()) {
	c.mu.Lock()
	s := c.reconciliations[m.ID]
	c.mu.Unlock()
	switch {
	case s == nil:
		c.say(message.NegErr(m.ID, "closed: there is no session with this id; open a new one"))
	case !s.busy.CompareAndSwap(false, true):
		s.refuse(message.NegErr(s.id, "invalid: a message came before the last one was answered"))
	default:
		c.work.Go(func() {
			defer done()
			s.answer(m.Message)
		})
		return
	}
	done()
}

// negClose ends the session with this id, if there is one.
func (c *connection) negClose(id string) {
	c.mu.Lock()
	s := c.reconciliations[id]
	c.mu.Unlock()
	if s != nil {
		s.drop()
	}
}

// drop ends a session. It reports false if another did it before.
func (s *reconciliation) drop() bool {
	c := s.conn
	c.mu.Lock()
	if s.ended.Swap(true) {
		c.mu.Unlock()
		return false
	}
	delete(c.reconciliations, s.id)
	forget := s.forget
	c.mu.Unlock()
	if forget != nil {
		forget()
	}
	s.back()
	s.cancel()
	return true
}

// refuse ends a session with an answer, which comes before anything that is sent for a later one
// with the same id.
func (s *reconciliation) refuse(answer []byte) {
	s.conn.writing.Lock()
	defer s.conn.writing.Unlock()
	if s.drop() {
		s.conn.write(answer)
	}
}

// answer answers a message.
func (s *reconciliation) answer(frame []byte) {
	r := s.conn.relay
	answer, err := s.respond(frame)
	because := func(why string) { s.refuse(message.NegErr(s.id, why)) }
	switch {
	case err == nil:
		s.say(message.NegAnswer(s.id, answer))
	case s.ctx.Err() != nil:
	case errors.Is(err, reconcile.ErrMessage):
		because("invalid: " + err.Error())
	case errors.Is(err, eventdb.ErrTooMany):
		most := r.Limits.MaxReconciledEvents
		s.refuse(message.NegTooMany(s.id, fmt.Sprintf(
			"blocked: too many events match, at most %d are reconciled for a filter; narrow it by time", most), most))
	case errors.Is(err, eventdb.ErrTooBroad):
		because("blocked: too many events to look through; narrow the filter by time, author or tag")
	case errors.Is(err, context.DeadlineExceeded):
		because("closed: the answer could not be worked out in time")
	default:
		r.Log.Warn("a message of a reconciliation could not be answered", "error", err)
		because("error: the stored events could not be read")
	}
}

// say sends an answer, unless the session has ended. The client may go on as soon as it has it.
func (s *reconciliation) say(answer []byte) {
	s.conn.writing.Lock()
	defer s.conn.writing.Unlock()
	if !s.ended.Load() {
		s.busy.Store(false)
		s.conn.write(answer)
	}
}

// respond works an answer out when it is the client's turn.
func (s *reconciliation) respond(frame []byte) ([]byte, error) {
	c, r := s.conn, s.conn.relay
	ctx, cancel := context.WithTimeout(s.ctx, r.timing.reconcile)
	defer cancel()
	c.mu.Lock()
	kept := s.forget != nil
	c.mu.Unlock()
	if !kept {
		done, err := r.gathering.Acquire(ctx, c.client)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	turn, err := r.Work.Turn(ctx, c.client)
	if err != nil {
		return nil, err
	}
	defer turn.Pause()
	if !kept {
		view := r.Index.View()
		defer view.Close()
		bounded := view.Within(r.Limits.MaxFilterSteps).Yielding(turn.Yield)
		if s.items, err = bounded.Packed(ctx, s.filter, r.Limits.MaxReconciledEvents); err != nil {
			return nil, err
		}
		defer s.keep()
	}
	return reconcile.Respond(ctx, yielding{s.items, turn}, frame, r.frames)
}

// keep keeps the items if there is memory for them.
func (s *reconciliation) keep() {
	c := s.conn
	forget, err := c.keep(cap(s.items) * reconcile.ItemBytes)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		s.items = nil
	case s.ended.Load():
		forget()
	default:
		s.forget = forget
	}
}

// yielding lets others work between two looks at a set that is kept.
type yielding struct {
	reconcile.Packed
	turn *limit.Turn
}

func (y yielding) Sum(ctx context.Context, r reconcile.Range) (reconcile.Sum, error) {
	if err := y.turn.Yield(ctx); err != nil {
		return reconcile.Sum{}, err
	}
	return y.Packed.Sum(ctx, r)
}
