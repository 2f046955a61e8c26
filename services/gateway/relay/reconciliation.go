package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
	"tendril.dev/services/gateway/message"
)

// mostRounds is how many messages of one session are answered. To name five million ids takes less
// than a third of them.
const mostRounds = 10_000

// reconciliation is one session of NIP-77. Each message is answered on the index as it is then;
// reconcile says why that is right.
type reconciliation struct {
	conn   *connection
	id     string
	filter nostr.Filter
	size   int
	back   func()           // gives back what the session takes of what all share
	idle   *time.Timer      // ends the session when nothing is heard
	items  reconcile.Packed // the events of the filter, from one message to the next; guarded by conn.mu, as forget is
	forget func()           // gives back their memory; nil: they are not kept, and are gathered again
	ctx    context.Context
	cancel context.CancelFunc
	ended  atomic.Bool // set before anything else is sent under this id
	busy   atomic.Bool // a message is being answered
	rounds atomic.Int64
}

// negOpen begins a session, in place of one with the same id if there is one (NIP-77). It sees to
// it that room is called once the message is not kept any more.
func (c *connection) negOpen(m message.NegOpen, room func()) {
	c.negClose(m.ID)
	s := &reconciliation{conn: c, id: m.ID, filter: m.Filter, size: m.Size}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	if refusal := c.keepReconciliation(s); refusal != "" {
		s.cancel()
		room()
		c.say(message.NegErr(m.ID, refusal))
		return
	}
	s.hear(m.Message, room)
}

// negMsg goes on with a session; room as for negOpen.
func (c *connection) negMsg(m message.NegMsg, room func()) {
	c.mu.Lock()
	s := c.reconciliations[m.ID]
	c.mu.Unlock()
	if s == nil {
		room()
		c.say(message.NegErr(m.ID, "closed: there is no session with this id; open a new one"))
		return
	}
	s.hear(m.Message, room)
}

// hear answers a message in a goroutine of its own.
func (s *reconciliation) hear(frame []byte, room func()) {
	switch {
	case !s.busy.CompareAndSwap(false, true):
		room()
		s.refuse("invalid: a message came before the last one was answered")
	case s.rounds.Add(1) > mostRounds:
		room()
		s.refuse(fmt.Sprintf("closed: %d messages of one session; open another", mostRounds))
	default:
		s.idle.Stop()
		s.conn.work.Go(func() {
			defer room()
			s.answer(frame)
		})
	}
}

// keepReconciliation notes a new session, or says why there is no room for it.
func (c *connection) keepReconciliation(s *reconciliation) (refusal string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.back, refusal = c.ask(s.size); refusal != "" {
		return strings.Replace(refusal, "rate-limited:", "blocked:", 1)
	}
	idle := c.relay.Limits.ReconciliationIdle
	s.idle = time.AfterFunc(idle, func() { s.refuse("closed: nothing was heard for " + idle.String()) })
	c.relay.sessions.Add(1)
	c.reconciliations[s.id] = s
	return ""
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
	if s.forget != nil {
		s.forget()
		s.items, s.forget = nil, nil
	}
	c.mu.Unlock()
	s.idle.Stop()
	c.relay.sessions.Add(-1)
	s.back()
	s.cancel()
	return true
}

// refuse ends a session with a NEG-ERR, which comes before anything that is sent for a later one
// with the same id.
func (s *reconciliation) refuse(why string) { s.refuseWith(message.NegErr(s.id, why)) }

func (s *reconciliation) refuseWith(answer []byte) {
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
	switch {
	case err == nil:
		s.say(message.NegAnswer(s.id, answer))
	case s.ctx.Err() != nil:
	case errors.Is(err, reconcile.ErrMessage):
		s.refuse("invalid: " + err.Error())
	case errors.Is(err, eventdb.ErrTooMany):
		most := r.Limits.MaxReconciledEvents
		s.refuseWith(message.NegTooMany(s.id, fmt.Sprintf(
			"blocked: too many events match, at most %d are reconciled for a filter; narrow it by time", most), most))
	case errors.Is(err, eventdb.ErrTooBroad):
		s.refuse("blocked: too many events to look through; narrow the filter by time, author or tag")
	case errors.Is(err, context.DeadlineExceeded):
		s.refuse("closed: the answer could not be worked out in time")
	default:
		r.Log.Warn("a message of a reconciliation could not be answered", "error", err)
		s.refuse("error: the stored events could not be read")
	}
}

// say sends an answer, unless the session has ended. The client may go on as soon as it has it.
func (s *reconciliation) say(answer []byte) {
	c := s.conn
	c.writing.Lock()
	defer c.writing.Unlock()
	if s.ended.Load() {
		return
	}
	s.busy.Store(false)
	if c.write(answer) == nil {
		s.idle.Reset(c.relay.Limits.ReconciliationIdle)
	}
}

// respond works an answer out when it is the client's turn.
func (s *reconciliation) respond(frame []byte) ([]byte, error) {
	r, client := s.conn.relay, s.conn.client
	ctx, cancel := context.WithTimeout(s.ctx, r.timing.reconcile)
	defer cancel()
	items, kept := s.kept()
	if !kept {
		done, err := r.gathering.Acquire(ctx, client)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	turn, err := r.Work.Turn(ctx, client)
	if err != nil {
		return nil, err
	}
	defer turn.Pause()
	if kept {
		return reconcile.Respond(ctx, yielding{items, turn}, frame, r.frames)
	}
	view := r.Index.View()
	defer view.Close()
	bounded := view.Within(r.Limits.MaxFilterSteps).Yielding(turn.Yield)
	if items, err = bounded.Packed(ctx, s.filter, r.Limits.MaxReconciledEvents); err != nil {
		return nil, err
	}
	s.keep(items)
	return reconcile.Respond(ctx, yielding{items, turn}, frame, r.frames)
}

// keep keeps the events that were gathered where there is memory for them.
func (s *reconciliation) keep(items reconcile.Packed) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.ended.Load() {
		return
	}
	forget, err := s.conn.relay.kept.Try(s.conn.client, int64(cap(items))*reconcile.ItemBytes)
	if err == nil {
		s.items, s.forget = items, forget
	}
}

// kept returns the events that were kept. If it reports false, they have to be gathered again.
func (s *reconciliation) kept() (items reconcile.Packed, ok bool) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.items, s.forget != nil
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
