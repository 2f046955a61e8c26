// Package live keeps the live subscriptions of one connection to a relay: opens them in pieces that
// relays take, replaces them without a gap, opens again what the relay closes, and tells what did
// not come meanwhile (docs/architecture.md, How things flow).
package live

import (
	"context"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/allowance"
	"tendril.dev/services/relayconn/layers"
	"tendril.dev/services/relayconn/moment"
)

// maxReopen is how often a live subscription that the relay closed is opened again on one
// connection.
const maxReopen = 5

// Doubtful is how long the relay may take to answer what is open after a NOTICE that is not
// understood. What it has not answered by then was most likely refused by that.
const Doubtful = 10 * time.Second

// Asker puts requests to the relay.
type Asker interface {
	Req(ctx context.Context, sub string, filters []nostr.Filter) error
	Unsubscribe(ctx context.Context, sub string) error
}

// Missed is what did not come live and must be asked for as the past.
type Missed struct {
	Sub     string         // the name of the subscription
	Filters []nostr.Filter // of stored events
	Since   time.Time      // from when on events did not come
	Held    bool           // before that they came
}

// Options are what live subscriptions need.
type Options struct {
	Asker     Asker
	Allowance *allowance.Allowance
	Silence   time.Duration              // a relay that does not answer for so long has not taken it
	Past      func() int                 // counts the requests of the past that are open
	Name      func(prefix string) string // makes a new name
	Missed    func(Missed)               // is told what must be made up for
	MakingUp  func(sub string) bool      // reports whether that is under way for a subscription
	Warn      func(cause, message string, args ...any)
}

// Set is the live subscriptions of one connection. It belongs to one goroutine.
type Set struct {
	o      Options
	subs   map[string]*Subscription
	count  [retired + 1]int // of them by state: this is looked at with every message that comes
	newest *Subscription    // of layers 2 and 3, which may have room
	perReq int              // how many filters a subscription may have, after the relay did not take more; 0: it did
	turns  int              // subscriptions asked for, again counted again
	probed time.Time        // when one was asked for last although there is no room
	gaveUp time.Time        // since when something is not live that is not asked for again; zero: nothing
}

// New returns a set without subscriptions.
func New(o Options) *Set {
	return &Set{o: o, subs: map[string]*Subscription{}}
}

// Find returns the subscription of that name if its events count; nil: there is none.
func (s *Set) Find(name string) *Subscription { return s.subs[name] }

// Open subscribes to what comes from now on. first is true for the filters of layer 1. Those of
// layers 2 and 3 go together with those of the newest subscription while it has room, so that many
// small additions do not become many subscriptions, of which relays allow few. That is a new
// subscription too: where a REQ replaces another, nobody knows what the relay does first.
func (s *Set) Open(ctx context.Context, filters []nostr.Filter, first bool) error {
	filters = layers.Live(filters)
	if newest := s.newest; !first && newest != nil && newest.missing.IsZero() && s.fits(newest.filters, filters) > 0 {
		filters = slices.Concat(newest.filters, filters)
		s.retire(newest)
	}
	for len(filters) > 0 {
		n := max(1, s.fits(nil, filters))
		sub, now := s.add(filters[:n:n], first), time.Now()
		filters = filters[n:]
		if !first {
			s.newest = sub
		}
		if !s.room(first) {
			s.wait(sub, now)
			continue
		}
		if err := s.ask(ctx, sub, now); err != nil {
			return err
		}
	}
	return nil
}

func (s *Set) add(filters []nostr.Filter, first bool) *Subscription {
	sub := &Subscription{id: s.o.Name("l"), filters: filters, first: first}
	s.subs[sub.id] = sub
	s.count[sub.state]++
	return sub
}

func (s *Set) move(sub *Subscription, to state) {
	s.count[sub.state]--
	s.count[to]++
	sub.state = to
}

func (s *Set) forget(sub *Subscription) {
	delete(s.subs, sub.id)
	s.count[sub.state]--
	if s.newest == sub {
		s.newest = nil
	}
}

func (s *Set) ask(ctx context.Context, sub *Subscription, now time.Time) error {
	s.turns++
	s.move(sub, opening)
	sub.asked, sub.doubted, sub.turn, sub.reopenAt = now, time.Time{}, s.turns, time.Time{}
	return s.o.Asker.Req(ctx, sub.id, sub.filters)
}

// Answered notes an EOSE or an event: the subscription is open.
func (s *Set) Answered(sub *Subscription) {
	if sub.state == opening {
		s.opened(sub)
	}
}

// Doubt notes a NOTICE that is not understood: it may be a refusal of what is being opened.
func (s *Set) Doubt(now time.Time) {
	for _, sub := range s.subs {
		if sub.state == opening && sub.doubted.IsZero() {
			sub.doubted = now
		}
	}
}

// opened notes that a subscription is open, and makes up for what came while it was not.
func (s *Set) opened(sub *Subscription) {
	s.move(sub, open)
	s.makeUp(sub)
	sub.held, sub.looked = true, time.Time{}
}

// makeUp tells what came since the relay closed a subscription, if it did.
func (s *Set) makeUp(sub *Subscription) {
	if sub.missing.IsZero() {
		return
	}
	m := Missed{Sub: sub.id, Filters: layers.Stored(sub.filters), Since: sub.missing, Held: sub.held}
	sub.missing = time.Time{}
	s.o.Missed(m)
}

// Closed notes that the relay has closed a subscription.
func (s *Set) Closed(sub *Subscription, reason string, now time.Time) {
	quiet, refused := allowance.WantsQuiet(reason), sub.state == opening
	switch {
	case refused && !quiet && allowance.WantsSmaller(reason) && len(sub.filters) > 1:
		s.split(sub, reason, now)
	case sub.state == opening || sub.state == open:
		s.shut(sub, reason, refused && (quiet || allowance.WantsFewer(reason)), now)
	case sub.state == retiring: // before those that replace it are open
		s.forget(sub)
		sub.missing = now
		s.makeUp(sub)
	}
}

// shut plans to open a subscription again. That is not done for ever, unless the relay did not take
// it only because it was too early.
func (s *Set) shut(sub *Subscription, reason string, early bool, now time.Time) {
	s.o.Warn("closed", "a live subscription is not open at the relay", "reason", reason)
	if sub.looked.IsZero() {
		sub.looked = now
	}
	if !early {
		sub.shuts++
	}
	sub.missing = moment.Earlier(sub.missing, now)
	if sub.shuts > maxReopen {
		s.o.Warn("kept closed", "the relay keeps closing a live subscription; it stays closed", "reason", reason)
		s.gaveUp = moment.Earlier(s.gaveUp, sub.missing)
		s.forget(sub)
		return
	}
	s.move(sub, closed)
	sub.reopenAt = now.Add(s.o.Allowance.Cooldown())
}

// TooLarge notes a NOTICE that a subscription asks for too much, and reports whether it was for the
// one of these that was asked for last and is not open yet.
func (s *Set) TooLarge(reason string, now time.Time) bool {
	var last *Subscription
	for _, sub := range s.subs {
		if sub.state == opening && len(sub.filters) > 1 && (last == nil || sub.turn > last.turn) {
			last = sub
		}
	}
	if last != nil {
		s.split(last, reason, now)
	}
	return last != nil
}

// split asks in smaller pieces for what is too much in one subscription for the relay, which gets
// no larger ones from now on.
func (s *Set) split(sub *Subscription, reason string, now time.Time) {
	s.perReq = max(1, len(sub.filters)/2)
	s.o.Warn("split", "the relay takes no subscription as large as this; they are made smaller", "reason", reason, "filters", s.perReq)
	s.forget(sub)
	for filters := range slices.Chunk(sub.filters, s.perReq) {
		part := s.add(filters, sub.first)
		s.move(part, closed)
		part.held, part.missing, part.reopenAt = sub.held, moment.Earlier(sub.missing, now), now
	}
}

// TooMany notes a NOTICE that we have too many subscriptions open, and reports whether it may have
// been for one of these. It does not say which one was not taken, and the relay may even have
// answered for that (strfry sends EOSE before it looks). It is most likely the one that was asked
// for last. That is closed: if it was another one, there is room now for what was refused.
func (s *Set) TooMany(ctx context.Context, reason string, now time.Time) (blamed bool, err error) {
	var last *Subscription
	for _, sub := range s.subs {
		if (sub.state == opening || sub.state == open) && now.Before(sub.asked.Add(s.o.Silence)) && (last == nil || sub.turn > last.turn) {
			last = sub
		}
	}
	if last == nil {
		return false, nil
	}
	s.shut(last, reason, true, now)
	return true, s.o.Asker.Unsubscribe(ctx, last.id)
}

// Retire lets others replace what is live, with layer 1 or without.
func (s *Set) Retire(layer1 bool) {
	for _, sub := range s.subs {
		if sub.current() && (layer1 || !sub.first) {
			s.retire(sub)
		}
	}
	if layer1 {
		s.gaveUp = time.Time{} // those that replace it ask for everything anew
	}
}

// retire lets go of a subscription because others replace it. It is closed only when the relay has
// answered for those, so that nothing falls in between; where it did not take one, what came since
// then is made up for.
func (s *Set) retire(sub *Subscription) {
	if sub.state == closed {
		s.forget(sub)
	} else {
		s.move(sub, retiring)
	}
	if s.newest == sub {
		s.newest = nil
	}
	s.makeUp(sub)
}

// Settled reports whether nothing is being opened. While something is, nothing else may be asked
// for: what comes from now on must be open before the past is asked for, or something falls in
// between, in whatever order a relay does what it is asked. Nothing waits for one that the relay
// has refused before: what falls in between is made up for once it takes that.
func (s *Set) Settled() bool {
	if s.count[opening] == 0 {
		return true
	}
	for _, sub := range s.subs {
		if sub.state == opening && sub.missing.IsZero() {
			return false
		}
	}
	return true
}

// Due does what has become due: waits no longer for answers, closes what is replaced, opens again
// what the relay closed.
func (s *Set) Due(ctx context.Context, now time.Time) error {
	s.expire(now)
	if s.o.Allowance.Quiet(now) {
		return nil
	}
	if err := s.closeRetiring(ctx); err != nil || s.count[closed] == 0 {
		return err
	}
	for _, sub := range s.subs {
		if sub.state == closed && !now.Before(sub.reopenAt) {
			room, probe := s.room(sub.first), s.look(sub, now)
			if !room && !probe {
				continue
			}
			if err := s.ask(ctx, sub, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// expire waits no longer for the relay's answer: what it has not answered is not open. Most likely
// the relay refuses it and does not say so, or not in words that are understood.
func (s *Set) expire(now time.Time) {
	if s.count[opening] == 0 {
		return
	}
	for _, sub := range s.subs {
		if sub.state != opening || now.Before(s.patience(sub)) {
			continue
		}
		reason := "it wanted quiet instead"
		if !s.o.Allowance.QuietAfter(sub.asked) {
			reason = "no answer"
			s.o.Warn("unanswered", "the relay does not answer a live subscription, which therefore counts as refused")
			if open := s.Standing() + s.o.Past(); sub.doubted.IsZero() {
				s.o.Allowance.Refused(open)
			} else {
				s.o.Allowance.Halve(open)
			}
		}
		missing := sub.asked
		s.shut(sub, reason, true, now)
		sub.missing = moment.Earlier(sub.missing, missing)
	}
}

// patience is until when the relay may answer.
func (s *Set) patience(sub *Subscription) time.Time {
	until := sub.asked.Add(s.o.Silence)
	if !sub.doubted.IsZero() {
		until = moment.Earlier(until, sub.doubted.Add(Doubtful))
	}
	return until
}

// closeRetiring closes what is replaced, if the relay has answered for what replaces it, or is not
// going to. Events under its names may still be on their way, until the next are closed.
func (s *Set) closeRetiring(ctx context.Context) error {
	if s.count[retiring] == 0 || !s.Settled() {
		return nil
	}
	for _, sub := range s.subs {
		switch sub.state {
		case retired:
			s.forget(sub)
		case retiring:
			s.move(sub, retired)
			if err := s.o.Asker.Unsubscribe(ctx, sub.id); err != nil {
				return err
			}
		}
	}
	return nil
}

// Next is when something becomes due by itself after now; zero: nothing does.
func (s *Set) Next(now time.Time) (next time.Time) {
	if s.count[opening]+s.count[closed] == 0 {
		return next
	}
	for _, sub := range s.subs {
		switch sub.state {
		case opening:
			next = moment.Earlier(next, moment.NextAfter(now, s.patience(sub)))
		case closed:
			next = moment.Earlier(next, moment.NextAfter(now, sub.reopenAt))
		}
	}
	return next
}

// Unread keeps a time in which nothing was read from counting as the relay's silence.
func (s *Set) Unread(d time.Duration) {
	if s.count[opening] == 0 {
		return
	}
	for _, sub := range s.subs {
		if sub.state == opening {
			sub.asked = sub.asked.Add(d)
			if !sub.doubted.IsZero() {
				sub.doubted = sub.doubted.Add(d)
			}
		}
	}
}
