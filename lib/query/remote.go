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

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// firstPause is the wait before a question is asked again, and longestPause the longest: each
	// is twice as long as the one before.
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
	// silentFor is how long ingest must not have answered before the process is not ready, and
	// probeEvery how often it is asked for that.
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
	answered time.Time // when ingest has answered last, or told that it works on a question
	why      error     // why it did not; nil: it did
}

// NewRemote asks the log where it ends: answers have at least what it has now.
func NewRemote(ctx context.Context, b *bus.Bus, log *slog.Logger) (*Remote, error) {
	last, err := bus.LastSeq(ctx, b.JS, proto.StreamEvents)
	if err != nil {
		return nil, err
	}
	return &Remote{conn: b.Conn, js: b.JS, log: log, seq: last, why: errors.New("it was not asked yet")}, nil
}

// Run asks every second whether ingest answers, until ctx ends, and logs when that changes.
func (r *Remote) Run(ctx context.Context) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for silent := false; ; {
		r.probe(ctx)
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

func (r *Remote) probe(ctx context.Context) {
	brief, cancel := context.WithTimeout(ctx, silentFor)
	defer cancel()
	_, err := r.ask(brief, proto.EventsQuery{Filter: nostr.Filter{LimitZero: true}})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = err
}

// sign notes that a replica lives.
func (r *Remote) sign() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered = time.Now()
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
	if err := retry(ctx, r.CatchUp); err != nil {
		return nil, err
	}
	known := map[[32]byte]bool{}
	for some := range slices.Chunk(ids, idsAtOnce) {
		f := nostr.Filter{}
		for _, id := range some {
			f.IDs = append(f.IDs, hex.EncodeToString(id[:]))
		}
		for id, err := range r.IDs(ctx, f) {
			if err != nil {
				return nil, err
			}
			known[id] = true
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
		for page, err := range r.pages(ctx, proto.EventsQuery{Filter: f}) {
			if err != nil {
				yield(nil, err)
				return
			}
			for _, raw := range page.Events {
				if ev, err := nostr.Parse(raw); !yield(ev, err) || err != nil {
					return
				}
			}
		}
	}
}

// IDs implements [Source], as Query does.
func (r *Remote) IDs(ctx context.Context, f nostr.Filter) iter.Seq2[[32]byte, error] {
	return func(yield func([32]byte, error) bool) {
		for page, err := range r.pages(ctx, proto.EventsQuery{Filter: f, IDsOnly: true}) {
			if err != nil {
				yield([32]byte{}, err)
				return
			}
			for ids := page.IDs; len(ids) >= 32; ids = ids[32:] {
				if !yield([32]byte(ids), nil) {
					return
				}
			}
		}
	}
}

// pages asks for one page after the other. An error is the last.
func (r *Remote) pages(ctx context.Context, q proto.EventsQuery) iter.Seq2[proto.EventsAnswer, error] {
	return func(yield func(proto.EventsAnswer, error) bool) {
		for more := true; more; {
			a, err := r.ask(ctx, q)
			if !yield(a, err) || err != nil {
				return
			}
			if q.Filter.Limit > 0 {
				q.Filter.Limit -= len(a.Events) + len(a.IDs)/32
			}
			q.After, more = a.After, a.After != nil
		}
	}
}

// ask asks for a page until there is an answer, the question is refused, or ctx ends.
func (r *Remote) ask(ctx context.Context, q proto.EventsQuery) (a proto.EventsAnswer, err error) {
	err = retry(ctx, func(ctx context.Context) error {
		a, q.Seq = proto.EventsAnswer{}, r.Seq()
		if err := request(ctx, r.conn, proto.SubjectQueryEvents, q, &a, r.sign); err != nil {
			return err
		}
		if a.Seq < q.Seq || a.After != nil && len(a.Events)+len(a.IDs) == 0 {
			return fmt.Errorf("an answer at %d to a question at %d, with %d events and %d bytes of ids", a.Seq, q.Seq,
				len(a.Events), len(a.IDs))
		}
		return nil
	})
	if err != nil {
		return a, fmt.Errorf("ask for accepted events: %w", err)
	}
	r.sign()
	return a, nil
}

// retry tries until there is no error, the question is refused, or ctx ends.
func retry(ctx context.Context, try func(context.Context) error) error {
	for failures := 1; ; failures++ {
		err := try(ctx)
		if err != nil && ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if err == nil || errors.Is(err, ErrRefused) {
			return err
		}
		if errors.Is(err, errBehind) {
			failures = 1 // another may not be
		}
		if stopped := backoff.Sleep(ctx, backoff.After(failures, firstPause, longestPause)); stopped != nil {
			return errors.Join(stopped, err)
		}
	}
}
