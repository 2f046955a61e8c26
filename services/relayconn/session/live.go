package session

import (
	"context"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/history"
	"tendril.dev/services/relayconn/wire"
)

// maxReopen is how often a live subscription that the relay closed is opened again on one
// connection.
const maxReopen = 5

// missed is what did not come live and must be asked for as the past.
type missed struct {
	Sub     string         // the name of the subscription
	Filters []nostr.Filter // of stored events
	Since   time.Time      // from when on events did not come
	Held    bool           // before that they came
}

// liveOptions are what live subscriptions need.
type liveOptions struct {
	Asker    Asker
	Limits   *wire.Limits
	Silence  time.Duration              // a relay that does not answer for so long has not taken it
	Past     func() int                 // counts the requests of the past that are open
	Name     func(prefix string) string // makes a new name
	Missed   func(missed)               // is told what must be made up for
	MakingUp func(sub string) bool      // reports whether that is under way for a subscription
	Warn     func(cause, message string, args ...any)
}

// liveSet is the live subscriptions of one connection. It belongs to one goroutine.
type liveSet struct {
	o      liveOptions
	subs   map[string]*subscription
	count  [retired + 1]int // of them by state: this is looked at with every message that comes
	newest *subscription    // of layers 2 and 3, which may have room
	perReq int              // how many filters a subscription may have, after the relay did not take more; 0: it did
	turns  int              // subscriptions asked for, again counted again
	probed time.Time        // when one was asked for last although there is no room
	gaveUp time.Time        // since when something is not live that is not asked for again; zero: nothing
}

// newLive returns a set without subscriptions.
func newLive(o liveOptions) *liveSet {
	return &liveSet{o: o, subs: map[string]*subscription{}}
}

// Find returns the subscription of that name if its events count; nil: there is none.
func (s *liveSet) Find(name string) *subscription { return s.subs[name] }

// Open subscribes to what comes from now on. first is true for the filters of layer 1. Those of
// layers 2 and 3 go together with those of the newest subscription while it has room, so that many
// small additions do not become many subscriptions, of which relays allow few. That is a new
// subscription too: where a REQ replaces another, nobody knows what the relay does first.
func (s *liveSet) Open(ctx context.Context, filters []nostr.Filter, first bool) error {
	filters = history.Live(filters)
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

func (s *liveSet) add(filters []nostr.Filter, first bool) *subscription {
	sub := &subscription{id: s.o.Name("l"), filters: filters, first: first}
	s.subs[sub.id] = sub
	s.count[sub.state]++
	return sub
}

func (s *liveSet) move(sub *subscription, to liveState) {
	s.count[sub.state]--
	s.count[to]++
	sub.state = to
}

func (s *liveSet) forget(sub *subscription) {
	delete(s.subs, sub.id)
	s.count[sub.state]--
	if s.newest == sub {
		s.newest = nil
	}
}

func (s *liveSet) ask(ctx context.Context, sub *subscription, now time.Time) error {
	s.turns++
	s.move(sub, opening)
	sub.asked, sub.doubted, sub.turn, sub.reopenAt = now, time.Time{}, s.turns, time.Time{}
	return s.o.Asker.Req(ctx, sub.id, sub.filters)
}

// Answered notes an EOSE or an event: the subscription is open.
func (s *liveSet) Answered(sub *subscription) {
	if sub.state == opening {
		s.opened(sub)
	}
}

// Doubt notes a NOTICE that is not understood: it may be a refusal of what is being opened.
func (s *liveSet) Doubt(now time.Time) {
	for _, sub := range s.subs {
		if sub.state == opening && sub.doubted.IsZero() {
			sub.doubted = now
		}
	}
}

// opened notes that a subscription is open, and makes up for what came while it was not.
func (s *liveSet) opened(sub *subscription) {
	s.move(sub, open)
	s.makeUp(sub)
	sub.held, sub.looked = true, time.Time{}
}

// makeUp tells what came since the relay closed a subscription, if it did.
func (s *liveSet) makeUp(sub *subscription) {
	if sub.missing.IsZero() {
		return
	}
	m := missed{Sub: sub.id, Filters: history.Stored(sub.filters), Since: sub.missing, Held: sub.held}
	sub.missing = time.Time{}
	s.o.Missed(m)
}

// Closed notes that the relay has closed a subscription.
func (s *liveSet) Closed(sub *subscription, reason string, now time.Time) {
	quiet, refused := wire.WantsQuiet(reason), sub.state == opening
	switch {
	case refused && !sub.proved && wire.WantsProof(reason):
		s.move(sub, closed)
		sub.proved, sub.looked, sub.reopenAt = true, now, now.Add(wire.ProofWait)
		sub.missing = history.Earlier(sub.missing, sub.asked)
	case refused && !quiet && wire.WantsSmaller(reason) && len(sub.filters) > 1:
		s.split(sub, reason, now)
	case sub.state == opening || sub.state == open:
		s.shut(sub, reason, refused && (quiet || wire.WantsFewer(reason)), now)
	case sub.state == retiring: // before those that replace it are open
		s.forget(sub)
		sub.missing = now
		s.makeUp(sub)
	}
}

// shut plans to open a subscription again. That is not done for ever, unless the relay did not take
// it only because it was too early.
func (s *liveSet) shut(sub *subscription, reason string, early bool, now time.Time) {
	s.o.Warn("closed", "a live subscription is not open at the relay", "reason", reason)
	if sub.looked.IsZero() {
		sub.looked = now
	}
	if !early {
		sub.shuts++
	}
	sub.missing = history.Earlier(sub.missing, now)
	if sub.shuts > maxReopen {
		s.o.Warn("kept closed", "the relay keeps closing a live subscription; it stays closed", "reason", reason)
		s.gaveUp = history.Earlier(s.gaveUp, sub.missing)
		s.forget(sub)
		return
	}
	s.move(sub, closed)
	sub.reopenAt = now.Add(s.o.Limits.Cooldown())
}

// TooLarge notes a NOTICE that a subscription asks for too much, and reports whether it was for the
// one of these that was asked for last and is not open yet.
func (s *liveSet) TooLarge(reason string, now time.Time) bool {
	var last *subscription
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
func (s *liveSet) split(sub *subscription, reason string, now time.Time) {
	s.perReq = max(1, len(sub.filters)/2)
	s.o.Warn("split", "the relay takes no subscription as large as this; they are made smaller", "reason", reason, "filters", s.perReq)
	s.forget(sub)
	for filters := range slices.Chunk(sub.filters, s.perReq) {
		part := s.add(filters, sub.first)
		s.move(part, closed)
		part.held, part.missing, part.reopenAt = sub.held, history.Earlier(sub.missing, now), now
	}
}

// TooMany notes a NOTICE that we have too many subscriptions open, and reports whether it may have
// been for one of these. It does not say which one was not taken, and the relay may even have
// answered for that (strfry sends EOSE before it looks). It is most likely the one that was asked
// for last. That is closed: if it was another one, there is room now for what was refused.
func (s *liveSet) TooMany(ctx context.Context, reason string, now time.Time) (blamed bool, err error) {
	var last *subscription
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
func (s *liveSet) Retire(layer1 bool) {
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
func (s *liveSet) retire(sub *subscription) {
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
func (s *liveSet) Settled() bool {
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
func (s *liveSet) Due(ctx context.Context, now time.Time) error {
	s.expire(now)
	if s.o.Limits.Quiet(now) {
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
func (s *liveSet) expire(now time.Time) {
	if s.count[opening] == 0 {
		return
	}
	for _, sub := range s.subs {
		if sub.state != opening || now.Before(s.patience(sub)) {
			continue
		}
		reason := "it wanted quiet instead"
		if !s.o.Limits.QuietAfter(sub.asked) {
			reason = "no answer"
			s.o.Warn("unanswered", "the relay does not answer a live subscription, which therefore counts as refused")
			if open := s.Standing() + s.o.Past(); sub.doubted.IsZero() {
				s.o.Limits.Refused(open)
			} else {
				s.o.Limits.Halve(open)
			}
		}
		missing := sub.asked
		s.shut(sub, reason, true, now)
		sub.missing = history.Earlier(sub.missing, missing)
	}
}

// patience is until when the relay may answer.
func (s *liveSet) patience(sub *subscription) time.Time {
	until := sub.asked.Add(s.o.Silence)
	if !sub.doubted.IsZero() {
		until = history.Earlier(until, sub.doubted.Add(history.Doubtful))
	}
	return until
}

// closeRetiring closes what is replaced, if the relay has answered for what replaces it, or is not
// going to. Events under its names may still be on their way, until the next are closed.
func (s *liveSet) closeRetiring(ctx context.Context) error {
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
func (s *liveSet) Next(now time.Time) (next time.Time) {
	if s.count[opening]+s.count[closed] == 0 {
		return next
	}
	for _, sub := range s.subs {
		switch sub.state {
		case opening:
			next = history.Earlier(next, history.NextAfter(now, s.patience(sub)))
		case closed:
			next = history.Earlier(next, history.NextAfter(now, sub.reopenAt))
		}
	}
	return next
}

// Unread keeps a time in which nothing was read from counting as the relay's silence.
func (s *liveSet) Unread(d time.Duration) {
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

// Standing returns how many subscriptions the relay has answered and not closed.
func (s *liveSet) Standing() int { return s.count[open] + s.count[retiring] }

// Count returns how many subscriptions are open at the relay, as far as is known.
func (s *liveSet) Count() int {
	n := s.count[open] + s.count[opening] + s.count[retiring]
	if s.count[opening] > 0 {
		for _, sub := range s.subs {
			if sub.state == opening && !sub.missing.IsZero() {
				n--
			}
		}
	}
	return n
}

// Len counts the subscriptions that are open or are to be, and those that are replaced.
func (s *liveSet) Len() int { return len(s.subs) }

// Filters counts the filters of layers 2 and 3 that are live or are to be.
func (s *liveSet) Filters() (n int) {
	for _, sub := range s.subs {
		if sub.current() && !sub.first {
			n += len(sub.filters)
		}
	}
	return n
}

// Missing is since when what comes live is not all there; zero: it is all there.
func (s *liveSet) Missing() time.Time {
	missing := s.gaveUp
	if s.count[opening]+s.count[closed] == 0 {
		return missing
	}
	for _, sub := range s.subs {
		if sub.current() {
			missing = history.Earlier(missing, sub.missing)
		}
	}
	return missing
}

// GaveUp reports whether something is not live and is not asked for again before all is replaced.
func (s *liveSet) GaveUp() bool { return !s.gaveUp.IsZero() }
