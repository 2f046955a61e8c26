package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
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
	// silentFor is how long questions must have been without an answer before that is told, and
	// probeEvery how often it is asked whether ingest answers while nothing else is asked.
	silentFor  = 2 * time.Second
	probeEvery = time.Second
)

// ErrRefused: the question is none, or its answer does not fit on the bus. It need not be asked
// again.
var ErrRefused = errors.New("refused")

// Remote asks on the bus. A question that is not answered is asked again, of whichever replica gets
// it then, until its context ends.
type Remote struct {
	conn *nats.Conn
	js   jetstream.JetStream
	head *bus.Head
	base uint64 // the log's last sequence when this was made
	tell func(error)

	mu       sync.Mutex
	seq      uint64
	answered time.Time // when an answer came last
	why      error     // why the last try had none; nil: it had
}

// NewRemote asks the log where it ends, which is where hearing begins. told is called with an error
// when ingest does not answer any more, and with nil when it does again.
func NewRemote(ctx context.Context, b *bus.Bus, told func(error)) (*Remote, error) {
	last, err := b.LastSeq(ctx, proto.StreamEvents)
	if err != nil {
		return nil, err
	}
	return &Remote{conn: b.Conn, js: b.JS, head: b.Head(proto.StreamEvents, nil), tell: told, base: last, seq: last, why: errors.New("it was not asked yet")}, nil
}

// Run asks now and then whether ingest answers, until ctx ends, and tells when that changes.
func (r *Remote) Run(ctx context.Context) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for silent := false; ; {
		r.mu.Lock()
		quiet := time.Since(r.answered) >= probeEvery
		r.mu.Unlock()
		if quiet {
			brief, cancel := context.WithTimeout(ctx, silentFor)
			_, _ = r.Has(brief, nil)
			cancel()
		}
		if err := r.Answered(); (err != nil) != silent && ctx.Err() == nil {
			silent = err != nil
			r.tell(err)
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

// heard notes how a try ended.
func (r *Remote) heard(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why = err; err == nil || errors.Is(err, ErrRefused) {
		r.answered, r.why = time.Now(), nil
	}
}

// Seq implements [Source].
func (r *Remote) Seq() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seq
}

// reached notes that the log is known to have come to a sequence.
func (r *Remote) reached(seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq = max(r.seq, seq)
}

// Reached implements [Source]: questions from now on name that sequence at least.
func (r *Remote) Reached(_ context.Context, seq uint64) error {
	r.reached(seq)
	return nil
}

// CatchUp implements [Source]: questions from now on name the log's last sequence.
func (r *Remote) CatchUp(ctx context.Context) error {
	last, err := r.head.Last(ctx)
	if err != nil {
		return fmt.Errorf("look where the log ends: %w", err)
	}
	r.reached(last)
	return nil
}

// Hear implements [Source]: from where the log ended when the process began.
func (r *Remote) Hear(kinds []int, fn func([]eventdb.Record)) Hearing {
	return hear(r.js, r, r.base, kinds, fn)
}

// Has implements [Source]. Each question names where the log ends at some time after the call, so
// that the answer has everything that was accepted before it.
func (r *Remote) Has(ctx context.Context, ids [][32]byte) ([]bool, error) {
	has := make([]bool, 0, len(ids))
	for some := range slices.Chunk(ids, proto.MaxKnownIDs) {
		answer, err := r.has(ctx, some)
		if err != nil {
			return nil, err
		}
		has = append(has, answer...)
	}
	if len(ids) == 0 {
		_, err := r.has(ctx, nil)
		return nil, err
	}
	return has, nil
}

func (r *Remote) has(ctx context.Context, ids [][32]byte) ([]bool, error) {
	q := proto.KnownQuery{IDs: make([]byte, 0, 32*len(ids))}
	for _, id := range ids {
		q.IDs = append(q.IDs, id[:]...)
	}
	var a proto.KnownAnswer
	err := r.ask(ctx, proto.SubjectQueryKnown, func(ctx context.Context) (any, error) {
		err := r.CatchUp(ctx)
		q.Seq = r.Seq()
		return q, err
	}, func(data []byte) error {
		a = proto.KnownAnswer{}
		if err := json.Unmarshal(data, &a); err != nil {
			return err
		}
		if len(a.Known) != (len(ids)+7)/8 || a.Seq < q.Seq {
			return fmt.Errorf("an answer at %d, of %d bytes, to a question for %d ids at %d", a.Seq, len(a.Known), len(ids), q.Seq)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask which events are accepted: %w", err)
	}
	has := make([]bool, len(ids))
	for n := range has {
		has[n] = a.Known[n/8]&(1<<(n%8)) != 0
	}
	return has, nil
}

// Query implements [Source]. Each page is as the log is when it is answered.
func (r *Remote) Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error] {
	return func(yield func(*nostr.Event, error) bool) {
		for p, err := range r.pages(ctx, proto.EventsQuery{Filters: []nostr.Filter{f}}) {
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
		for p, err := range r.pages(ctx, proto.EventsQuery{Filters: filters, IDsOnly: true}) {
			if err != nil {
				yield(Found{}, err)
				return
			}
			ids := p.IDs
			for n, count := range p.Counts {
				for ; count > 0; count-- {
					if !yield(Found{p.first + n, [32]byte(ids)}, nil) {
						return
					}
					ids = ids[32:]
				}
			}
		}
	}
}

// part is a page, and which filter it begins with.
type part struct {
	proto.EventsAnswer
	first int
}

// pages asks for one page after the other.
func (r *Remote) pages(ctx context.Context, all proto.EventsQuery) iter.Seq2[part, error] {
	return func(yield func(part, error) bool) {
		left, q := slices.Clone(all.Filters), all
		for len(left) > 0 {
			q.Filters = left[:min(len(left), proto.MaxQueriedFilters)]
			a, err := r.page(ctx, &q)
			if err != nil {
				yield(part{}, fmt.Errorf("ask for accepted events: %w", err))
				return
			}
			if !yield(part{a, len(all.Filters) - len(left)}, nil) {
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

func (r *Remote) page(ctx context.Context, q *proto.EventsQuery) (a proto.EventsAnswer, err error) {
	err = r.ask(ctx, proto.SubjectQueryEvents, func(context.Context) (any, error) {
		q.Seq = r.Seq()
		return q, nil
	}, func(data []byte) error {
		a = proto.EventsAnswer{}
		if err := json.Unmarshal(data, &a); err != nil {
			return err
		}
		return checkPage(*q, a)
	})
	return a, err
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

// ask asks until an answer can be read, it is refused, or ctx ends. question makes what is asked,
// anew for every try.
func (r *Remote) ask(ctx context.Context, subject string, question func(context.Context) (any, error), read func(data []byte) error) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := r.try(ctx, subject, question, read)
		if ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if r.heard(err); err == nil || errors.Is(err, ErrRefused) {
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

// try asks once.
func (r *Remote) try(ctx context.Context, subject string, question func(context.Context) (any, error), read func(data []byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	q, err := question(ctx)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(q); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	msg, err := r.conn.RequestWithContext(ctx, subject, text.Bytes())
	if errors.Is(err, nats.ErrMaxPayload) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err != nil {
		return err
	}
	code := msg.Header.Get(micro.ErrorCodeHeader)
	switch code {
	case "":
		return read(msg.Data)
	case proto.QueryBehind:
		return fmt.Errorf("%w: %s", errBehind, msg.Header.Get(micro.ErrorHeader))
	case proto.QueryBad:
		return fmt.Errorf("%w: %s", ErrRefused, msg.Header.Get(micro.ErrorHeader))
	}
	return errors.New(msg.Header.Get(micro.ErrorHeader))
}
