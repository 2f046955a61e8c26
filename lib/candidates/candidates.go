// Package candidates hands verified events to ingest and waits for its verdicts. Synced events
// travel in packs, many in one message. Candidates live in a memory queue, so a pack whose verdicts
// do not come is sent again; that is harmless, because an event's identity is its subject in the
// log (docs/architecture.md, The writer).
package candidates

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Limits and times of a Sender. Tests shorten them.
const (
	// overhead is about what a candidate takes beside its event.
	overhead = 512
	// resendAfter is how long verdicts are waited for the first time, maxResendAfter how long at
	// most: each time is twice the one before. maxTries is how often they are waited for; in all
	// that takes a quarter of an hour.
	resendAfter    = 15 * time.Second
	maxResendAfter = 4 * time.Minute
	maxTries       = 8
	// busyPause is the wait after the queue was full, and after it was not there at first; then it
	// becomes longer, up to maxAwayPause.
	busyPause    = 250 * time.Millisecond
	maxAwayPause = 4 * time.Second
	lookEvery    = 100 * time.Millisecond
)

// ErrNoVerdict: ingest did not decide, however often it was asked.
var ErrNoVerdict = errors.New("no verdict")

// ErrEnded: the sender's Run has ended. A candidate that was without a verdict then may have been
// decided or not.
var ErrEnded = errors.New("the sender of candidates has ended")

// Later is the error of a synced event that was refused because its relay has stored as much as it
// may today, or because the service is full. The relay should be read again from Until on.
type Later struct{ Until time.Time }

func (l *Later) Error() string { return "refused until " + l.Until.UTC().Format(time.RFC3339) }

// Candidate is an event to offer.
type Candidate struct {
	Event *nostr.Event
	// Raw is the JSON of Event on one line, if it can be stored and served as it is (see
	// nostr.Parse). It is kept until Done; nil: the sender encodes Event.
	Raw    []byte
	Lane   proto.Lane
	Source proto.Source
	Relay  string       // normalised URL, of synced events
	Client string       // client key of whoever submitted it, see proto.HeaderClient; of users' events
	Action proto.Action // on the release lane
	Reason string       // that goes with the action
	// Done is called once, with the verdict or an error, from another goroutine. It must not block.
	Done func(proto.Verdict, error)
}

// Sender offers candidates. It is safe for concurrent use.
type Sender struct {
	js    jetstream.JetStream
	conn  *nats.Conn
	log   *slog.Logger
	inbox string
	roads [numRoads]*road

	verdicts *nats.Subscription

	resendAfter, busyPause, lookEvery time.Duration
	maxTries                          int

	mu      sync.Mutex
	next    uint64
	waiting map[string]*pack // by ref: sent, or about to be
	ended   chan struct{}    // closed when Run ends
}

// New makes a sender with an inbox of its own, which it listens to from now on; Run does the rest.
func New(conn *nats.Conn, log *slog.Logger) (*Sender, error) {
	s := &Sender{
		conn: conn, log: log, inbox: proto.VerdictSubject(nuid.Next()), roads: newRoads(), waiting: map[string]*pack{},
		resendAfter: resendAfter, busyPause: busyPause, lookEvery: lookEvery, maxTries: maxTries, ended: make(chan struct{}),
	}
	most := 0
	for _, r := range s.roads {
		most += r.room.candidates
	}
	var err error
	// Room for a second try beside a first whose acknowledgement is still out; an acknowledgement
	// that was lost is given up in time.
	if s.js, err = jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(2*most), jetstream.WithPublishAsyncTimeout(resendAfter),
		jetstream.WithPublishAsyncErrHandler(s.refused)); err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	// Before anything is offered, so that no verdict can come too early.
	if s.verdicts, err = conn.Subscribe(s.inbox, s.judged); err != nil {
		return nil, fmt.Errorf("subscribe to verdicts: %w", err)
	}
	return s, nil
}

// Run sends again what has no verdict, until ctx ends: after a while, or at once when the bus is
// connected again, because verdicts that came meanwhile are lost. Then whatever is still without
// one ends with [ErrEnded], and nothing more can be offered. It runs once.
func (s *Sender) Run(ctx context.Context) error {
	defer s.endAll()
	defer s.verdicts.Unsubscribe()
	tick := time.NewTicker(s.lookEvery)
	defer tick.Stop()
	connected := s.conn.StatusChanged(nats.CONNECTED)
	defer s.conn.RemoveStatusListener(connected)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-connected:
			s.hurry()
		case now := <-tick.C:
			s.resend(ctx, now)
		}
	}
}

func (s *Sender) endAll() {
	s.mu.Lock()
	var all []*pack
	for _, p := range s.waiting {
		all = append(all, p)
	}
	for _, r := range s.roads {
		for _, p := range r.open {
			all = append(all, p)
		}
		clear(r.open)
		r.outbox, r.under = nil, 0
	}
	clear(s.waiting)
	close(s.ended)
	s.mu.Unlock()
	for _, p := range all {
		s.finish(p, nil, ErrEnded)
	}
}

// Offer sends a candidate, alone or in a pack with others. It blocks while too many of its kind are
// without a verdict, or too many bytes, until ctx ends. Those who wait are served by turns: the
// client or relay with the least bytes under way comes first. After an error Done is not called.
func (s *Sender) Offer(ctx context.Context, c Candidate) error {
	line := c.line()
	r, from, size := s.roads[roadOf(c.Lane)], c.origin(), overhead+len(line)
	if err := r.room.enter(ctx, s.ended, from, size); err != nil {
		return err
	}
	s.mu.Lock()
	select {
	case <-s.ended:
		s.mu.Unlock()
		r.room.leave(from, 1, min(size, r.room.most))
		return ErrEnded
	default:
	}
	s.add(r, &c, line) // unlocks
	return nil
}

// line is the event's JSON on one line. That of an accepted event is no longer than it was.
func (c *Candidate) line() []byte {
	if c.Raw != nil && bytes.IndexByte(c.Raw, '\n') < 0 {
		return c.Raw
	}
	return nostr.Encode(c.Event)
}

// origin is who the candidate comes from, of those who share the window of its road.
func (c *Candidate) origin() string { return cmp.Or(c.Client, c.Relay) }

// Waiting is how many candidates are without a verdict.
func (s *Sender) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.waiting {
		n += len(p.done)
	}
	for _, r := range s.roads {
		for _, p := range r.open {
			n += len(p.done)
		}
	}
	return n
}
