// Package candidates hands verified events to ingest and waits for its verdicts. Candidates live in a memory queue, so one whose verdict does
// not come is sent again; that is harmless, because an event's identity is its subject in the log (design.md, Failure and scale).
package candidates

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/proto"
)

const (
	// window is how many candidates may be without a verdict; more wait, and with them the socket they came from.
	window = 2048
	// resendAfter is how long a verdict is waited for, and maxTries how often.
	resendAfter = 15 * time.Second
	maxTries    = 8
	// busyPause is the wait after the queue was full.
	busyPause = 250 * time.Millisecond
	lookEvery = 100 * time.Millisecond
)

// ErrNoVerdict: ingest did not decide, however often it was asked.
var ErrNoVerdict = errors.New("no verdict")

// Candidate is an event to offer.
type Candidate struct {
	Event  *nostr.Event
	Lane   proto.Lane
	Source proto.Source
	Relay  string       // normalised URL, of synced events
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
	room  chan struct{}

	mu      sync.Mutex
	next    uint64
	waiting map[string]*waiting // by ref
}

type waiting struct {
	msg   *nats.Msg
	done  func(proto.Verdict, error)
	tries int
	at    time.Time // when to send again
}

// New makes a sender with an inbox of its own.
func New(conn *nats.Conn, log *slog.Logger) (*Sender, error) {
	s := &Sender{conn: conn, log: log, inbox: proto.VerdictSubject(nuid.Next()), room: make(chan struct{}, window), waiting: map[string]*waiting{}}
	var err error
	if s.js, err = jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(window), jetstream.WithPublishAsyncErrHandler(s.refused)); err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return s, nil
}

// Run takes verdicts in and sends again what has none, until ctx ends.
func (s *Sender) Run(ctx context.Context) error {
	sub, err := s.conn.Subscribe(s.inbox, s.judged)
	if err != nil {
		return fmt.Errorf("subscribe to verdicts: %w", err)
	}
	defer sub.Unsubscribe()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			s.resend(now)
		}
	}
}

// Offer sends a candidate. It blocks while too many are without a verdict, until ctx ends.
func (s *Sender) Offer(ctx context.Context, c Candidate) error {
	payload, err := c.Event.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode candidate: %w", err)
	}
	select {
	case s.room <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	s.next++
	ref := strconv.FormatUint(s.next, 36)
	msg := &nats.Msg{Subject: c.Lane.Subject(), Data: payload, Header: c.header(s.inbox, ref)}
	s.waiting[ref] = &waiting{msg: msg, done: c.Done, tries: 1, at: time.Now().Add(resendAfter)}
	s.mu.Unlock()
	s.publish(ref, msg)
	return nil
}

func (c Candidate) header(inbox, ref string) nats.Header {
	h := nats.Header{}
	for name, value := range map[string]string{
		proto.HeaderSource: string(c.Source), proto.HeaderRelay: c.Relay, proto.HeaderAction: string(c.Action), proto.HeaderReason: c.Reason,
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
	if _, err := s.js.PublishMsgAsync(again); err != nil {
		s.postpone(ref)
	}
}

// refused hears that the queue did not take a candidate: it is full, or the bus is away. Both pass.
func (s *Sender) refused(_ jetstream.JetStream, msg *nats.Msg, err error) {
	s.log.Debug("the candidate queue pushes back", "error", err)
	s.postpone(msg.Header.Get(proto.HeaderRef))
}

func (s *Sender) postpone(ref string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.waiting[ref]; w != nil {
		w.tries-- // it was not heard, so it does not count
		w.at = time.Now().Add(busyPause)
	}
}

func (s *Sender) resend(now time.Time) {
	var again, lost []string
	s.mu.Lock()
	for ref, w := range s.waiting {
		switch {
		case now.Before(w.at):
		case w.tries >= maxTries:
			lost = append(lost, ref)
		default:
			w.tries++
			w.at = now.Add(resendAfter)
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
		if w != nil {
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
		<-s.room
		w.done(v, err)
	}
}

// Waiting is how many candidates are without a verdict.
func (s *Sender) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}
