package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/history"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/wire"
)

// atOnce is how many messages are heard before what has become due is done.
const atOnce = 64

// hearAll takes in a message of the relay, and those that are there already, unless one of them had
// to wait.
func (s *Session) hearAll(ctx context.Context, m wire.Message, more <-chan wire.Message) error {
	for n := 1; ; n++ {
		if err := s.hear(ctx, m); err != nil || n == atOnce || s.waited {
			s.waited = false
			return err
		}
		var open bool
		select {
		case m, open = <-more:
			if !open {
				return nil // which is found again
			}
		default:
			return nil
		}
	}
}

// hear takes in one message of the relay.
func (s *Session) hear(ctx context.Context, m wire.Message) error {
	now := time.Now()
	if m.Kind == wire.Event {
		return s.hearEvent(ctx, m, now)
	}
	if m.Kind == wire.Closed || m.Kind == wire.NegErr {
		if err := s.complained(ctx, m, now); err != nil {
			return err
		}
	}
	var err error
	switch a := s.open[m.Sub].(type) {
	case *search:
		switch m.Kind {
		case wire.NegMsg:
			err = s.rec.answer(ctx, a, m, now)
		case wire.NegErr, wire.Closed:
			err = s.rec.refused(ctx, a, m.Reason, now)
		}
	case asking:
		switch m.Kind {
		case wire.Closed:
			delete(s.open, m.Sub)
			err = s.refused(ctx, a, wire.ReadRefusal(m.Reason), m.Reason, now)
		case wire.EOSE:
			s.answered = true
			s.heard(a, now)
			if t, ok := a.(*task); ok {
				return s.ended(ctx, t, now)
			}
		}
	default: // it is about no request that is open
		switch m.Kind {
		case wire.Notice:
			ours := false
			if s.rec != nil {
				ours, err = s.rec.notice(ctx, m.Reason, now)
			}
			if !ours && err == nil {
				err = s.notice(ctx, m.Reason, now)
			}
		case wire.Auth:
			s.auth.challenge = m.Reason
			err = s.prove(ctx)
		}
	}
	return errors.Join(err, s.nothing(ctx))
}

// heard notes an answer to a request, which is open therefore.
func (s *Session) heard(a asked, now time.Time) {
	r := a.req()
	r.heard, r.doubted = now, time.Time{}
	if r.answered {
		return
	}
	r.answered = true
	standing := 0
	for _, o := range s.open {
		if _, is := o.(asking); is && o.req().answered {
			standing++
		}
	}
	s.limits.Stood(standing)
}

// lanes are the lanes of what is not asked for by the past of a start.
var lanes = map[proto.Source]proto.Lane{proto.SourceLive: proto.LaneSyncLive, proto.SourceDaily: proto.LaneSyncDaily}

// hearEvent takes in an event, if it was asked for and is not known.
func (s *Session) hearEvent(ctx context.Context, m wire.Message, now time.Time) error {
	a, ok := s.open[m.Sub].(asking)
	if !ok {
		return s.nothing(ctx)
	}
	s.heard(a, now)
	if !a.Matches(m.Event) {
		return s.odd(fmt.Sprintf("event %.64q does not match subscription %s", m.Event.ID, m.Sub))
	}
	l, _ := a.(*live)
	t, _ := a.(*task)
	why := cause{source: proto.SourceLive}
	var b *batch
	if t != nil {
		fresh, enough := t.Saw(m.Event)
		if b, why = t.batch, t.cause(m.Event); enough {
			if err := s.ended(ctx, t, now); err != nil {
				return err
			}
		}
		if !fresh { // it came with the page before
			return s.nothing(ctx)
		}
	}
	if s.Intake.Known(m.Event.ID) {
		if l != nil {
			return s.nothing(ctx)
		}
		return nil // of the past that we expect, and it is asked for only so far
	}
	if b != nil {
		b.waiting.Add(1)
	}
	waited, err := s.Intake.Take(ctx, intake.Arrival{
		Event: m.Event, Lane: cmp.Or(lanes[why.source], proto.LaneSyncHistoric), Source: why.source,
		Done: func(r intake.Result) { s.judged(r, why, b, l, now) },
	})
	if s.waited = waited; waited {
		s.resumed = time.Now()
	}
	return err
}

// cause is why an event comes. One that was fetched by its id and that no filter asks for was never
// to come live: the relay was asked for everything.
func (t *task) cause(ev *nostr.Event) cause {
	why := t.batch.cause
	if isFetch(t) && !why.liveUntil.IsZero() && !asksFor(t.batch.groups, ev) {
		why.liveUntil = time.Time{}
	}
	return why
}

// nothing notes a message that brought nothing. A relay that floods us with them is read more
// slowly, at its own cost: what it owes us does not get more time.
func (s *Session) nothing(ctx context.Context) error {
	wait := s.useless.Reserve().Delay()
	if wait == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
	}
	return nil
}

// odd counts what a relay should not have sent.
func (s *Session) odd(what string) error {
	s.warn("odd", "the relay sends what it should not", "what", what)
	if s.invalid++; s.invalid > maxInvalid {
		return &netguard.ProtocolError{Err: fmt.Errorf("%d events that it should not have sent, the last: %s", s.invalid, what)}
	}
	return nil
}

// quieten asks nothing more for a while.
func (s *Session) quieten(now time.Time, why string) {
	s.warn("quiet", "the relay wants quiet", "reason", why, "for", s.Rules.Cooldown)
	s.limits.Quieten(now)
}

// ends is what was found out about events on other goroutines.
type ends struct {
	changed chan struct{} // of capacity 1: has something to receive when a batch may have ended too
	mu      sync.Mutex
	forged  []string // events that are not genuine
	known   int      // live events that turned out to be known
	later   time.Time
	lost    map[*live]time.Time // since when live events had no verdict
}

// judged hears how an event ended that came for a batch or live, on any goroutine.
func (s *Session) judged(r intake.Result, why cause, b *batch, l *live, came time.Time) {
	ev, err := r.Event, r.Err
	e := &s.ends
	var later *candidates.Later
	e.mu.Lock()
	switch {
	case errors.Is(err, intake.ErrForged):
		if err = nil; len(e.forged) <= maxInvalid {
			e.forged = append(e.forged, fmt.Sprintf("event %.64q: %v", ev.ID, r.Err))
		}
	case errors.Is(err, nats.ErrMaxPayload):
		err = nil // it will never fit, so there is nothing to wait for
	case r.Known || err == nil && r.Copy:
		if l != nil {
			e.known++
		}
	case errors.As(err, &later) && strings.HasPrefix(r.Verdict.Message, "rate-limited: this "+limit.Author+" "):
		err = nil // it comes with a daily sync; else one author would stop every relay
	case errors.As(err, &later): // it is asked for again then
		e.later = later.Until
	case err == nil && (r.Verdict.Outcome == proto.Accepted || r.Verdict.Outcome == proto.HeldBack):
		s.Observer.Judged(ev, why.source, ev.CreatedAt.Time().Before(why.liveUntil), r.Verdict)
	}
	if err != nil && l != nil {
		if e.lost == nil {
			e.lost = map[*live]time.Time{}
		}
		if since, has := e.lost[l]; !has || came.Before(since) {
			e.lost[l] = came
		}
	}
	wake := err != nil || r.Err != nil || e.known > 0
	e.mu.Unlock()
	if b != nil {
		if err != nil {
			b.lost.Store(true)
		}
		wake = b.waiting.Add(-1) == 0 || wake
	}
	if wake {
		select {
		case e.changed <- struct{}{}:
		default:
		}
	}
}

// hearEnds takes in how events ended: the forged ones count against the relay, and one that is over
// its budget is asked for the past later.
func (s *Session) hearEnds(ctx context.Context) error {
	e := &s.ends
	e.mu.Lock()
	forged, known, later := e.forged, e.known, e.later
	e.forged, e.known, e.later = nil, 0, time.Time{}
	e.mu.Unlock()
	if now := time.Now(); later.After(now) {
		s.warn("budget", "what the relay brings is not taken today, or the service is full; the past is asked for later", "from", later)
		if day := now.Add(24 * time.Hour); later.After(day) {
			later = day
		}
		s.hold = history.Later(s.hold, later)
	}
	for _, what := range forged {
		if err := s.odd(what); err != nil {
			return err
		}
	}
	for range known {
		if err := s.nothing(ctx); err != nil {
			return err
		}
	}
	return nil
}

// hearLost notes live events that had no verdict: they are missing like those that did not come.
func (s *Session) hearLost() {
	s.ends.mu.Lock()
	lost := s.ends.lost
	s.ends.lost = nil
	s.ends.mu.Unlock()
	for l, since := range lost {
		s.warn("unjudged", "events that came live had no verdict; they are asked for again", "since", since)
		l.missing, l.held = history.Earlier(l.missing, since), false
		if !slices.Contains(s.lives, l) {
			s.makeUp(l)
		}
	}
}

// auth is how far we have come with a relay that wants to know who reads (NIP-42): it is told once
// a connection, and asked again for what it refused before.
type auth struct {
	challenge    string
	wanted, told bool
}

// prove answers the relay's challenge, if it has refused something and we have not yet.
func (s *Session) prove(ctx context.Context) error {
	a := &s.auth
	if !a.wanted || a.told || a.challenge == "" || s.Authenticate == nil {
		return nil
	}
	a.told = true
	if err := s.Authenticate(ctx, a.challenge); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("authenticate to the relay: %w", err)
	}
	return nil
}

// complained takes in why the relay closed a request or a session: it may want quiet, or to know
// who reads.
func (s *Session) complained(ctx context.Context, m wire.Message, now time.Time) error {
	if s.open[m.Sub] == nil {
		return nil
	}
	why := wire.ReadRefusal(m.Reason)
	if why.Quiet {
		s.quieten(now, m.Reason)
	}
	s.auth.wanted = s.auth.wanted || why.Proof
	return s.prove(ctx)
}
