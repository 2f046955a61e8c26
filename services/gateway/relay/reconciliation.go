package relay

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/reconcile"
)

// negOpen begins a session (NIP-77).
func (c admitted) negOpen(m message) {
	if q := c.ask(m); q != nil {
		q.busy.Store(true)
		c.task(func() { q.reconcile(m.frame) })
	}
}

// negMsg goes on with a session.
func (c admitted) negMsg(m message) {
	c.mu.Lock()
	q := c.open[m.question()]
	c.mu.Unlock()
	switch {
	case q == nil:
		c.answer(m.refusal("closed: there is no session with this id; open a new one"))
	case !q.busy.CompareAndSwap(false, true):
		q.refuse(m.refusal("invalid: a message came before the last one was answered"))
	default:
		forget, err := c.keep(m.size)
		if err != nil {
			q.refuse(m.refusal(c.relay.why(err)))
			return
		}
		c.task(func() { defer forget(); q.reconcile(m.frame) })
	}
}

// reconcile answers a message of a session.
func (q *question) reconcile(frame []byte) {
	r := q.conn.relay
	answer, err := q.respond(frame)
	most := r.Limits.MaxReconciledEvents
	switch {
	case err == nil:
		q.conn.writing.Lock()
		defer q.conn.writing.Unlock()
		if !q.ended.Load() {
			q.busy.Store(false) // the client may go on as soon as it has the answer
			q.conn.write(encode("NEG-MSG", q.asked.id, hex.EncodeToString(answer)))
		}
	case q.ctx.Err() != nil:
	case errors.Is(err, reconcile.ErrMessage):
		q.refuse(q.asked.refusal("invalid: " + err.Error()))
	case errors.Is(err, eventdb.ErrTooMany):
		q.refuse(encode("NEG-ERR", q.asked.id, fmt.Sprintf(
			"blocked: too many events match, at most %d are reconciled for a filter; narrow it by time", most), most))
	case errors.Is(err, eventdb.ErrTooBroad):
		q.refuse(q.asked.refusal("blocked: too many events to look through; narrow the filter by time, author or tag"))
	case errors.Is(err, errBans):
		q.refuse(q.asked.refusal("closed: what is banned here has changed; open a new session"))
	case errors.Is(err, context.DeadlineExceeded):
		q.refuse(q.asked.refusal("closed: the answer could not be worked out in time"))
	default:
		q.refuse(q.asked.refusal(r.why(err)))
	}
}

// errBans ends a session whose events are kept when other events are banned.
var errBans = errors.New("what is banned has changed")

// respond works an answer out when it is the client's turn. The events of the filter are kept to
// the end of the session, or gathered for each message where there is no memory for them: reconcile
// says why that is right.
func (q *question) respond(frame []byte) ([]byte, error) {
	c, r := q.conn, q.conn.relay
	ctx, cancel := context.WithTimeout(q.ctx, reconcileTime)
	defer cancel()
	if q.kept == nil {
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
	view := r.Index.View()
	defer view.Close()
	if q.kept != nil && !view.HidesAs(q.kept) {
		return nil, errBans
	}
	if q.kept == nil {
		bounded := view.Within(r.Limits.MaxFilterSteps).Yielding(turn.Yield)
		if q.items, err = bounded.Packed(ctx, q.asked.filters[0], r.Limits.MaxReconciledEvents); err != nil {
			return nil, err
		}
		if forget, err := c.keep(cap(q.items) * reconcile.ItemBytes); err == nil {
			q.kept = view
			q.onEnd(forget)
		} else {
			defer func() { q.items = nil }()
		}
	}
	return reconcile.Respond(ctx, yielding{q.items, turn}, frame, r.frames)
}

// yielding lets others work between two looks at a set.
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
