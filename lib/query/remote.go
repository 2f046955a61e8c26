package query

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// tryTime is how long one replica has for an answer. Of one that was killed the question is
	// asked again then.
	tryTime = 3 * time.Second
	// firstPause is the wait before a question is asked again, and longestPause the longest: each
	// is twice as long as the one before.
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
	// silentFor is how long questions must have been without an answer before the process is not
	// ready, and probeEvery how often ingest is asked while nothing else is.
	silentFor  = 2 * time.Second
	probeEvery = time.Second
	// idsAtOnce is how many ids one question names.
	idsAtOnce = 1000
)

// Remote asks on the bus. A question that is not answered is asked again, of any replica, until its
// context ends.
type Remote struct {
	conn *nats.Conn
	js   jetstream.JetStream
	log  *slog.Logger

	mu       sync.Mutex
	seq      uint64
	answered time.Time // when an answer came last
	why      error     // why the last try had none; nil: it had
}

// NewRemote asks the log where it ends: answers have at least what it has now.
func NewRemote(ctx context.Context, b *bus.Bus, log *slog.Logger) (*Remote, error) {
	last, err := bus.LastSeq(ctx, b.JS, proto.StreamEvents)
	if err != nil {
		return nil, err
	}
	return &Remote{conn: b.Conn, js: b.JS, log: log, seq: last, why: errors.New("it was not asked yet")}, nil
}

// Run asks now and then whether ingest answers, until ctx ends, and logs when that changes.
func (r *Remote) Run(ctx context.Context) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for silent := false; ; {
		r.mu.Lock()
		quiet := time.Since(r.answered) >= probeEvery
		r.mu.Unlock()
		if quiet {
			brief, cancel := context.WithTimeout(ctx, silentFor)
			_, _ = r.ask(brief, proto.EventsQuery{Filters: []nostr.Filter{{LimitZero: true}}})
			cancel()
		}
		switch err := r.Answered(); {
		case ctx.Err() != nil || (err != nil) == silent:
		case err != nil:
			silent = true
			r.log.Warn("no ingest answers which events are accepted; trying again (is one running?)", "error", err)
		default:
			silent = false
			r.log.Info("ingest answers again which events are accepted")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Answered returns an error while ingest does not answer: since the beginning, or for silentFor.
func (r *Remote) Answered() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why == nil || time.Since(r.answered) < silentFor {
		return nil
	}
	return fmt.Errorf("no ingest answers which events are accepted: %w", r.why)
}

// Seq implements [Source].
func (r *Remote) Seq() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seq
}

// Reached implements [Source]: questions from now on name that sequence at least.
func (r *Remote) Reached(_ context.Context, seq uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq = max(r.seq, seq)
	return nil
}

// CatchUp implements [Source]: questions from now on name the log's last sequence.
func (r *Remote) CatchUp(ctx context.Context) error {
	last, err := bus.LastSeq(ctx, r.js, proto.StreamEvents)
	if err != nil {
		return fmt.Errorf("look where the log ends: %w", err)
	}
	return r.Reached(ctx, last)
}

// Has implements [Source]. The answer has everything that was accepted before the call.
func (r *Remote) Has(ctx context.Context, ids [][32]byte) ([]bool, error) {
	if err := r.retry(ctx, r.CatchUp); err != nil {
		return nil, err
	}
	var filters []nostr.Filter
	for some := range slices.Chunk(ids, idsAtOnce) {
		f := nostr.Filter{}
		for _, id := range some {
			f.IDs = append(f.IDs, hex.EncodeToString(id[:]))
		}
		filters = append(filters, f)
	}
	known := map[[32]byte]bool{}
	for _, f := range filters { // each is a question of its own, because of its size
		for found, err := range r.IDs(ctx, f) {
			if err != nil {
				return nil, err
			}
			known[found.ID] = true
		}
	}
	has := make([]bool, len(ids))
	for n, id := range ids {
		has[n] = known[id]
	}
	return has, nil
}

// Query implements [Source]. Each page is as the log is when it is answered.
func (r *Remote) Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error] {
	return func(yield func(*nostr.Event, error) bool) {
		for p, err := range r.pages(ctx, []nostr.Filter{f}, false) {
			if err != nil {
				yield(nil, err)
				return
			}
			for _, raw := range p.Events {
				ev := new(nostr.Event)
				if err := ev.UnmarshalJSON(raw); err != nil {
					yield(nil, fmt.Errorf("read an answer: %w", err))
					return
				}
				if !yield(ev, nil) {
					return
				}
			}
		}
	}
}

// IDs implements [Source], as Query does.
func (r *Remote) IDs(ctx context.Context, filters ...nostr.Filter) iter.Seq2[Found, error] {
	return func(yield func(Found, error) bool) {
		for p, err := range r.pages(ctx, filters, true) {
			if err != nil {
				yield(Found{}, err)
				return
			}
			for n, count := range p.Counts {
				for ; count > 0; count-- {
					if !yield(Found{p.first + n, [32]byte(p.IDs)}, nil) {
						return
					}
					p.IDs = p.IDs[32:]
				}
			}
		}
	}
}

// page is an answer, and which filter it begins with.
type page struct {
	proto.EventsAnswer
	first int
}

// pages asks for one page after the other.
func (r *Remote) pages(ctx context.Context, filters []nostr.Filter, idsOnly bool) iter.Seq2[page, error] {
	return func(yield func(page, error) bool) {
		left, q := slices.Clone(filters), proto.EventsQuery{IDsOnly: idsOnly}
		for len(left) > 0 {
			q.Filters = left[:min(len(left), proto.MaxQueriedFilters)]
			a, err := r.ask(ctx, q)
			if !yield(page{a, len(filters) - len(left)}, err) || err != nil {
				return
			}
			done := len(a.Counts)
			if a.After != nil {
				done-- // there is more of the last one
				if f := &left[done]; f.Limit > 0 {
					f.Limit -= a.Counts[done]
				}
			}
			left, q.After = left[done:], a.After
		}
	}
}

// ask asks for a page until there is an answer, the question is refused, or ctx ends.
func (r *Remote) ask(ctx context.Context, q proto.EventsQuery) (a proto.EventsAnswer, err error) {
	err = r.retry(ctx, func(ctx context.Context) error {
		a, q.Seq = proto.EventsAnswer{}, r.Seq()
		err := request(ctx, r.conn, proto.SubjectQueryEvents, q, &a)
		if err == nil {
			err = checkPage(q, a)
		}
		r.heard(err)
		return err
	})
	if err != nil {
		return a, fmt.Errorf("ask for accepted events: %w", err)
	}
	return a, nil
}

// heard notes how a question ended.
func (r *Remote) heard(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why = err; err == nil || errors.Is(err, ErrRefused) {
		r.answered, r.why = time.Now(), nil
	}
}

// checkPage reports whether an answer is one to a question, and more than nothing.
func checkPage(q proto.EventsQuery, a proto.EventsAnswer) error {
	total := 0
	for n, count := range a.Counts {
		if count < 0 {
			return fmt.Errorf("an answer with a count of %d", count)
		}
		if last := n == len(a.Counts)-1; last && a.After != nil && n < len(q.Filters) && q.Filters[n].Limit > 0 && count >= q.Filters[n].Limit {
			return errors.New("an answer with more than was asked for")
		}
		total += count
	}
	switch {
	case a.Seq < q.Seq:
		return fmt.Errorf("an answer at %d to a question at %d", a.Seq, q.Seq)
	case len(a.Counts) == 0 || len(a.Counts) > len(q.Filters) || a.After != nil && total == 0:
		return fmt.Errorf("an answer to %d of %d filters", len(a.Counts), len(q.Filters))
	case !q.IDsOnly && total != len(a.Events) || q.IDsOnly && 32*total != len(a.IDs):
		return fmt.Errorf("an answer of %d events and %d bytes of ids that counts %d", len(a.Events), len(a.IDs), total)
	}
	return nil
}

// retry tries until there is no error, the question is refused, or ctx ends.
func (r *Remote) retry(ctx context.Context, try func(context.Context) error) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		brief, cancel := context.WithTimeout(ctx, tryTime)
		err := try(brief)
		cancel()
		if err != nil && ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if err == nil || errors.Is(err, ErrRefused) {
			return err
		}
		if errors.Is(err, errBehind) {
			pause = firstPause // another may not be
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// Reconciliation is what stays the same during a session with a relay.
type Reconciliation struct {
	Filter nostr.Filter
	// Seq is the sequence of the log that must have been read before a step is answered: the last
	// of what the asker knows to be accepted.
	Seq uint64
}

// Step is what to do next.
type Step struct {
	Message []byte     // to say to the relay; nil: the session has ended
	Missing [][32]byte // ids to fetch from it; some may have come before
	Alone   uint64     // how many events of the filter it has turned out not to have
}

// Reconciler asks the service grasp.query.reconcile which of a relay's events are not known here,
// step by step, while another process speaks with the relay (NIP-77). The asker needs no index and
// keeps nothing but the filter: what is accepted, held or rejected is looked up by ingest.
// [ErrRefused]: the filter is none, or the relay's message breaks the rules of the protocol. After
// any other error but [ErrTooMany] the step may be asked again.
type Reconciler struct{ Conn *nats.Conn }

// Begin makes the first message for a relay, and tells how many events of the filter are known.
func (s Reconciler) Begin(ctx context.Context, session Reconciliation) (first []byte, known uint64, err error) {
	a, err := s.ask(ctx, session, nil)
	return a.Message, a.Known, err
}

// Continue reads what a relay has answered. It is for the caller to bound how often: a relay can
// keep a session going for ever.
func (s Reconciler) Continue(ctx context.Context, session Reconciliation, answer []byte) (Step, error) {
	if len(answer) == 0 {
		return Step{}, fmt.Errorf("reconcile: %w: an empty message", ErrRefused)
	}
	a, err := s.ask(ctx, session, answer)
	step := Step{Message: a.Message, Alone: a.Alone}
	for ids := a.Missing; len(ids) >= 32; ids = ids[32:] {
		step.Missing = append(step.Missing, [32]byte(ids))
	}
	return step, err
}

func (s Reconciler) ask(ctx context.Context, session Reconciliation, message []byte) (a proto.ReconcileAnswer, err error) {
	q := proto.ReconcileQuery{Filter: session.Filter, Message: message, Seq: session.Seq}
	if err := request(ctx, s.Conn, proto.SubjectQueryReconcile, q, &a); err != nil {
		return proto.ReconcileAnswer{}, fmt.Errorf("reconcile: %w", err)
	}
	return a, nil
}
