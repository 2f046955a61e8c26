// Package candidates hands verified events to ingest and waits for its verdicts. Candidates live in a memory queue, so one whose verdict does
// not come is sent again; that is harmless, because an event's identity is its subject in the log (design.md, Failure and scale).
package candidates

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/proto"
)

// Limits and times of a Sender. Tests shorten them.
const (
	// maxInside and maxBytes are how many candidates may be without a verdict, and how many bytes
	// they may have together; more wait, and with them the socket they came from.
	maxInside = 2048
	maxBytes  = 8 << 20
	// overhead is about what a candidate takes beside its event.
	overhead = 512
	// resendAfter is how long a verdict is waited for, and maxTries how often.
	resendAfter = 15 * time.Second
	maxTries    = 8
	// busyPause is the wait after the queue was full, and after it was not there at first; then it
	// becomes longer, up to maxAwayPause.
	busyPause    = 250 * time.Millisecond
	maxAwayPause = 4 * time.Second
	lookEvery    = 100 * time.Millisecond
)

// ErrNoVerdict: ingest did not decide, however often it was asked.
var ErrNoVerdict = errors.New("no verdict")

// ErrEnded: the sender's Run has ended. A candidate that was without a verdict then may have been decided or not.
var ErrEnded = errors.New("the sender of candidates has ended")

// Candidate is an event to offer.
type Candidate struct {
	Event *nostr.Event
	// Raw is the JSON of Event on one line, if it can be stored and served as it is (see
	// rawevent.Parse). It is kept until Done; nil: the sender encodes Event.
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
	room  *window

	verdicts *nats.Subscription

	resendAfter, busyPause, lookEvery time.Duration
	maxTries                          int

	mu      sync.Mutex
	next    uint64
	waiting map[string]*waiting // by ref
	ended   chan struct{}       // closed when Run ends
}

type waiting struct {
	msg   *nats.Msg // its data and header are never written to once it is here
	done  func(proto.Verdict, error)
	from  string    // who shares the window, see Candidate.origin
	tries int       // sends that the queue did not refuse
	away  int       // sends in a row that found no queue
	at    time.Time // when to send again
}

// New makes a sender with an inbox of its own, which it listens to from now on; Run does the rest.
func New(conn *nats.Conn, log *slog.Logger) (*Sender, error) {
	s := &Sender{
		conn: conn, log: log, inbox: proto.VerdictSubject(nuid.Next()), room: newWindow(maxInside, maxBytes), waiting: map[string]*waiting{},
		resendAfter: resendAfter, busyPause: busyPause, lookEvery: lookEvery, maxTries: maxTries, ended: make(chan struct{}),
	}
	var err error
	// Room for a second try beside a first whose acknowledgement is still out; an acknowledgement that was lost is given up in time.
	if s.js, err = jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(2*maxInside), jetstream.WithPublishAsyncTimeout(resendAfter),
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
	refs := slices.Collect(maps.Keys(s.waiting))
	close(s.ended)
	s.mu.Unlock()
	for _, ref := range refs {
		s.end(ref, proto.Verdict{}, ErrEnded)
	}
}

// Offer sends a candidate. It blocks while too many are without a verdict, or too many bytes, until
// ctx ends. Those who wait are served by turns: the client or relay with the least bytes under way
// comes first. After an error Done is not called.
func (s *Sender) Offer(ctx context.Context, c Candidate) error {
	payload, err := c.line()
	if err != nil {
		return err
	}
	from := c.origin()
	if err := s.room.enter(ctx, s.ended, from, overhead+len(payload)); err != nil {
		return err
	}
	s.mu.Lock()
	select {
	case <-s.ended:
		s.mu.Unlock()
		s.room.leave(from, overhead+len(payload))
		return ErrEnded
	default:
	}
	s.next++
	ref := strconv.FormatUint(s.next, 36)
	msg := &nats.Msg{Subject: c.Lane.Subject(), Data: payload, Header: c.header(s.inbox, ref)}
	s.waiting[ref] = &waiting{msg: msg, done: c.Done, from: from, tries: 1, at: time.Now().Add(s.resendAfter)}
	s.mu.Unlock()
	s.publish(ref, msg)
	return nil
}

// line is the event's JSON on one line.
func (c Candidate) line() ([]byte, error) {
	if c.Raw != nil && bytes.IndexByte(c.Raw, '\n') < 0 {
		return c.Raw, nil
	}
	payload, err := c.Event.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("encode candidate: %w", err)
	}
	return payload, nil
}

// origin is who the candidate comes from, of those who share the sender's window.
func (c Candidate) origin() string { return cmp.Or(c.Client, c.Relay) }

func (c Candidate) header(inbox, ref string) nats.Header {
	h := nats.Header{}
	for name, value := range map[string]string{
		proto.HeaderSource: string(c.Source), proto.HeaderRelay: c.Relay, proto.HeaderClient: c.Client, proto.HeaderAction: string(c.Action), proto.HeaderReason: c.Reason,
		proto.HeaderReply: inbox, proto.HeaderRef: ref,
	} {
		if value != "" {
			h.Set(name, value)
		}
	}
	return h
}

func (s *Sender) publish(ref string, msg *nats.Msg) {
	// A copy, because the client writes its own reply subject into what it sends.
	again := &nats.Msg{Subject: msg.Subject, Data: msg.Data, Header: maps.Clone(msg.Header)}
	_, err := s.js.PublishMsgAsync(again)
	switch {
	case err == nil:
	case errors.Is(err, nats.ErrMaxPayload):
		s.end(ref, proto.Verdict{}, fmt.Errorf("send candidate of %d bytes: %w", len(msg.Data), err)) // it will not get smaller
	default:
		s.postpone(ref, err)
	}
}

// refused hears that the queue did not take a candidate: it is full or lost, or the bus is away.
// All of that passes.
func (s *Sender) refused(_ jetstream.JetStream, msg *nats.Msg, err error) {
	s.log.Debug("the candidate queue pushes back", "error", err)
	s.postpone(msg.Header.Get(proto.HeaderRef), err)
}

// postpone has a candidate that was not taken sent again later. A queue that is there may have room
// soon; one that is not there is asked less and less often.
func (s *Sender) postpone(ref string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting[ref]
	if w == nil {
		return
	}
	w.tries-- // it was not heard, so it does not count
	pause := s.busyPause
	if errors.As(why, new(*jetstream.APIError)) {
		w.away = 0
	} else {
		pause = min(s.busyPause<<min(w.away, 10), maxAwayPause)
		w.away++
	}
	w.at = time.Now().Add(pause)
}

// hurry makes everything without a verdict due to be sent again.
func (s *Sender) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.waiting {
		w.at = time.Time{}
	}
}

func (s *Sender) resend(ctx context.Context, now time.Time) {
	var again, lost []string
	s.mu.Lock()
	for ref, w := range s.waiting {
		switch {
		case now.Before(w.at):
		case w.tries >= s.maxTries:
			lost = append(lost, ref)
		default:
			w.tries++
			w.at = now.Add(s.resendAfter)
			again = append(again, ref)
		}
	}
	s.mu.Unlock()
	for _, ref := range lost {
		s.end(ref, proto.Verdict{}, ErrNoVerdict)
	}
	for _, ref := range again {
		s.mu.Lock()
		w := s.waiting[ref]
		s.mu.Unlock()
		// A verdict may come before it is sent all the same: then it is decided twice, as a duplicate, which nobody waits for.
		if w != nil && ctx.Err() == nil {
			s.publish(ref, w.msg)
		}
	}
}

func (s *Sender) judged(msg *nats.Msg) {
	var vs proto.Verdicts
	if err := json.Unmarshal(msg.Data, &vs); err != nil {
		s.log.Error("verdicts cannot be read", "error", err)
		return
	}
	for _, v := range vs.Verdicts {
		s.end(v.Ref, v, nil)
	}
}

func (s *Sender) end(ref string, v proto.Verdict, err error) {
	s.mu.Lock()
	w := s.waiting[ref]
	delete(s.waiting, ref)
	s.mu.Unlock()
	if w != nil {
		s.room.leave(w.from, overhead+len(w.msg.Data))
		w.done(v, err)
	}
}

// Waiting is how many candidates are without a verdict.
func (s *Sender) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}
