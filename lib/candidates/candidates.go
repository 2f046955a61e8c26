// Package candidates hands verified events to ingest and waits for its verdicts. Events travel in
// packs, many in one message. Candidates live in a memory queue, so a pack whose verdicts do not
// come is sent again; that is harmless, because an event's identity is its subject in the log
// (docs/architecture.md, The writer). It neither verifies events nor decides about them.
package candidates

import (
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

	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// laneBytes bounds what is without a verdict on each lane, and overhead is what a candidate
	// counts beside its event.
	laneBytes = 8 << 20
	overhead  = 1 << 10
	// busyWith is how many packs of a lane without a verdict are enough for ingest to do: while
	// there are as many, further events gather in packs, each for fillFor at most. Events of the
	// past always gather, and for pastFills times as long, because each commit waits for the disk.
	busyWith  = 4
	fillFor   = 10 * time.Millisecond
	pastFills = 5
	// resendAfter is how long verdicts are waited for the first time, and maxResendAfter how long at
	// most: each time is twice the one before. They are waited for no longer than giveUpAfter.
	resendAfter    = 15 * time.Second
	maxResendAfter = 4 * time.Minute
	giveUpAfter    = 15 * time.Minute
	// refusedPause is the wait after the queue did not take a pack.
	refusedPause = 250 * time.Millisecond
	// mostPending bounds packs whose receipt the queue has not confirmed. Each counts overhead.
	mostPending = 1 << 16
)

// ErrNoVerdict ends a candidate on which ingest did not decide in 15 min, though it was sent again
// and again. It may still be decided later; to offer it again does no harm.
var ErrNoVerdict = errors.New("no verdict")

// ErrEnded ends all candidates without a verdict when the sender's Run ends, and refuses later
// ones. What was sent before may have been decided or not; what is refused was never sent.
var ErrEnded = errors.New("the sender of candidates has ended")

// Later is the error of a synced event that was refused because its relay has stored as much as it
// may today, or because the service is full. Nothing of it was stored. The relay should be read
// again from Until on.
type Later struct{ Until time.Time }

func (l *Later) Error() string { return "refused until " + l.Until.UTC().Format(time.RFC3339) }

// Candidate is an event to offer.
type Candidate struct {
	Event *nostr.Event
	// Raw is what nostr.Encode has made of Event, which may be nil then. It is kept until Done; nil:
	// the sender encodes Event.
	Raw    []byte
	Lane   proto.Lane
	Source proto.Source
	Relay  string       // normalised URL, of synced events
	Client string       // client key of the submitter, see proto.HeaderClient; of users' events
	Action proto.Action // on the release lane
	Reason string       // that goes with the action
	Trace  string       // W3C trace context; empty: none
	// Done is called once, with the verdict or an error, from another goroutine. It must not block.
	Done func(proto.Verdict, error)
}

// line is the event's JSON on one line.
func (c *Candidate) line() []byte {
	if c.Raw != nil {
		return c.Raw
	}
	return nostr.Encode(c.Event)
}

// Sender offers candidates. It is safe for concurrent use.
type Sender struct {
	js       jetstream.JetStream
	conn     *nats.Conn
	log      *slog.Logger
	inbox    string
	verdicts *nats.Subscription

	fillFor, resendAfter, giveUpAfter, refusedPause time.Duration

	mu      sync.Mutex
	lanes   map[proto.Lane]*lane
	waiting map[string]*pack // by ref: sent, without verdicts
	ended   bool
}

// lane is what candidates of one lane share. A lane that is full delays no other.
type lane struct {
	room  *limit.Fair   // bytes, by client or relay
	open  map[key]*pack // that are being filled
	under int           // packs that wait for verdicts
	// A pack is filled for fillFor while so many of the lane are under way.
	enough  int
	fillFor time.Duration
}

// New makes a sender with an inbox of its own, which it listens to from now on; Run does the rest.
func New(conn *nats.Conn, log *slog.Logger) (*Sender, error) {
	s := &Sender{
		conn: conn, log: log, inbox: proto.VerdictSubject(nuid.Next()),
		fillFor: fillFor, resendAfter: resendAfter, giveUpAfter: giveUpAfter, refusedPause: refusedPause,
		lanes: map[proto.Lane]*lane{}, waiting: map[string]*pack{},
	}
	var err error
	s.js, err = jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(mostPending),
		jetstream.WithPublishAsyncTimeout(resendAfter), jetstream.WithPublishAsyncErrHandler(s.refused))
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	// Before anything is offered, so that no verdict can come too early.
	if s.verdicts, err = conn.Subscribe(s.inbox, s.onVerdicts); err != nil {
		return nil, fmt.Errorf("subscribe to verdicts: %w", err)
	}
	return s, nil
}

// Run sends again what has no verdict, until ctx ends: after a while, or at once when the bus is
// connected again, because verdicts that came meanwhile are lost. Then all that is still without
// one ends with [ErrEnded], and nothing more can be offered. It runs once.
func (s *Sender) Run(ctx context.Context) error {
	defer s.end()
	defer s.verdicts.Unsubscribe()
	tick := time.NewTicker(s.refusedPause / 2)
	defer tick.Stop()
	connected := s.conn.StatusChanged(nats.CONNECTED)
	defer s.conn.RemoveStatusListener(connected)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-connected:
			s.resend(time.Now(), true)
		case now := <-tick.C:
			s.resend(now, false)
		}
	}
}

// Offer sends a candidate, alone or in a pack with others. It blocks while too many bytes of its
// lane are without a verdict, until ctx ends. The client or relay with the least bytes under way
// comes first. After an error Done is not called.
func (s *Sender) Offer(ctx context.Context, c Candidate) error {
	line := c.line()
	l := s.lane(c.Lane)
	// An event that is larger than all the room goes alone.
	leave, err := l.room.AcquireN(ctx, cmp.Or(c.Client, c.Relay), min(int64(overhead+len(line)), laneBytes))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		leave()
		return ErrEnded
	}
	k := key{c.Lane, c.Source, c.Relay, c.Client, c.Action, c.Reason}
	s.addToPack(l, k, line, c.Trace, func(v proto.Verdict, err error) {
		leave()
		c.Done(v, err)
	})
	return nil
}

func (s *Sender) lane(name proto.Lane) *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[name]
	if l == nil {
		l = &lane{room: limit.NewFair(laneBytes, laneBytes), open: map[key]*pack{}, enough: busyWith, fillFor: s.fillFor}
		if name == proto.LaneSyncHistoric || name == proto.LaneImport {
			l.enough, l.fillFor = 0, pastFills*s.fillFor
		}
		s.lanes[name] = l
	}
	return l
}

// end ends all that has no verdict.
func (s *Sender) end() {
	s.mu.Lock()
	s.ended = true
	var all []*pack
	for _, p := range s.waiting {
		all = append(all, p)
	}
	for _, l := range s.lanes {
		for _, p := range l.open {
			all = append(all, p)
		}
		clear(l.open)
	}
	clear(s.waiting)
	s.mu.Unlock()
	for _, p := range all {
		p.finish(nil, ErrEnded)
	}
}
