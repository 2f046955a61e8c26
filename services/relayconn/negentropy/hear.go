package negentropy

import (
	"context"
	"time"

	"tendril.dev/services/relayconn/wire"
)

// Hear takes in a message of the relay. It reports false if the message is of no session here.
func (s *Set) Hear(ctx context.Context, m wire.Message, now time.Time) (ours bool, err error) {
	x := s.open[m.Sub]
	if x == nil {
		return false, nil
	}
	switch m.Kind {
	case wire.NegMsg:
		return true, s.answer(ctx, x, m, now)
	case wire.NegErr, wire.Closed:
		return true, s.refused(ctx, x, m.Reason, now)
	}
	return false, nil
}

// answer takes in what the relay answered, and asks ingest what to say to that.
func (s *Set) answer(ctx context.Context, x *search, m wire.Message, now time.Time) error {
	if x.state != said {
		return nil // nobody asked
	}
	s.heard, s.spoken, s.refusals = now, true, 0
	switch {
	case m.TooLarge:
		return s.smaller(ctx, x, now)
	case len(m.Frame) == 0:
		return s.unable(ctx, "its message is not one of NIP-77")
	}
	x.wide.spend(m.Frame)
	back, ok := s.o.Room.take(m.Frame)
	if !ok {
		x.state = ready // to say the same again
		s.rest(now.Add(roomWait))
		if x.endless() {
			return s.giveUp(ctx, x)
		}
		return s.close(ctx, x)
	}
	x.rounds++
	x.answers++
	x.state = asking
	session, frame := x.session(), m.Frame
	s.ask(ctx, Result{search: x, back: back}, func(ctx context.Context, r *Result) {
		r.step, r.err = s.o.Service.Continue(ctx, session, frame)
	})
	return nil
}

// rest says nothing before then.
func (s *Set) rest(until time.Time) {
	if until.After(s.hold) {
		s.hold = until
	}
}

// refused takes in that the relay has ended a session.
func (s *Set) refused(ctx context.Context, x *search, reason string, now time.Time) error {
	if x.state == asking {
		// What it said before is being looked at. What comes of that opens another session.
		s.lost(x)
		return nil
	}
	s.lost(x)
	switch refusalOf(reason) {
	case tooMany:
		return s.smaller(ctx, x, now)
	case fewer:
		return s.fewer(ctx, x, reason, now)
	case quiet:
		x.state = ready // when it may be asked again
		return nil
	case gone:
		// Whoever answers every session so has none.
		if x.state = ready; s.spoken && !x.endless() {
			return nil
		}
	}
	return s.cannot(ctx, x, reason)
}

// fewer notes that a session was one too many: from now on there are no more at once than are open
// now. If none are, all wait, but not for ever.
func (s *Set) fewer(ctx context.Context, x *search, reason string, now time.Time) error {
	x.state = ready
	x.opened-- // it will be one when there is room
	if n := len(s.open); n > 0 {
		s.atOnce = min(s.atOnce, n)
		return nil
	}
	s.atOnce = 1
	if s.refusals++; s.refusals > mostRefusals {
		return s.unable(ctx, reason)
	}
	s.rest(now.Add(s.o.Allowance.Cooldown()))
	return nil
}

// mostRefusals is how often in a row a relay may refuse the only session.
const mostRefusals = 3

// Notice takes in a NOTICE of the relay, and reports whether it is about a session here. It does
// not say which one.
func (s *Set) Notice(ctx context.Context, text string, now time.Time) (ours bool, err error) {
	last := s.last()
	if last == nil {
		return false, nil
	}
	switch about := concerns(text); {
	case about && wantsFewer(text):
		s.crowded = now
		// It may have been another, which is open then, as far as the relay is concerned.
		if err := s.close(ctx, last); err != nil {
			return true, err
		}
		return true, s.fewer(ctx, last, text, now)
	case about || !s.spoken && notUnderstood(text):
		return true, s.cannot(ctx, last, text)
	}
	return false, nil
}

// last is the session that was opened last of those that the relay has not answered at all.
func (s *Set) last() (last *search) {
	for _, x := range s.open {
		if x.state == said && x.rounds == 0 && (last == nil || x.turn > last.turn) {
			last = x
		}
	}
	return last
}
