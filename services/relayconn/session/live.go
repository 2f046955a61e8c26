package session

import (
	"context"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/history"
)

const (
	// lookEvery is how often the past is asked for instead of what the relay does not take live.
	lookEvery = 10 * time.Minute
	// missedMargin is how much earlier than it went missing the past is asked for: clocks differ,
	// and events come late.
	missedMargin = 15 * time.Minute
	// mostShut bounds how much longer each time a subscription stays closed that the relay closes
	// for no reason that we understand, as an exponent.
	mostShut = 5
)

// live is one live subscription. It is open, or asked for and not answered, if its request is among
// the session's.
type live struct {
	request
	groups   []history.Group
	first    bool // of layer 1, which consolidation leaves alone
	replaced bool // by others; it is closed when these are open
	held     bool // the relay has had it open
	shuts    int  // how often the relay closed it for another reason than how much we ask
	// missing is since when events have not come on it, or had no verdict; zero: they come.
	missing  time.Time
	lost     bool      // it is because they had no verdict
	reopenAt time.Time // of one that is closed
	looked   time.Time // when the past was asked for last, of one that is closed
	owed     *batch    // the past that is asked for instead
}

// Filters ask for what comes from now on, and depend on no clock.
func (l *live) Filters() (filters []nostr.Filter) {
	for _, f := range slices.Concat(l.groups...) {
		f.LimitZero = true
		filters = append(filters, f)
	}
	return filters
}

// Matches reports whether an event is what the subscription asks for.
func (l *live) Matches(ev *nostr.Event) bool { return asksFor(l.groups, ev) }

func asksFor(groups []history.Group, ev *nostr.Event) bool {
	return slices.ContainsFunc(groups, func(g history.Group) bool { return g.Matches(ev) })
}

// again plans to open a subscription again that is not open.
func (l *live) again(s *Session, at, now time.Time, why string) {
	s.warn("closed", "a live subscription is not open at the relay", "reason", why)
	if l.missing = history.Earlier(l.missing, now); !l.answered {
		l.missing = history.Earlier(l.missing, l.asked)
	}
	if l.looked.IsZero() {
		l.looked = now
	}
	if l.reopenAt = at; l.replaced { // before the others are open
		s.makeUp(l)
		s.forget(l)
	}
}

func (l *live) failed(s *Session, now time.Time, why string) {
	l.again(s, now.Add(s.Rules.Cooldown<<min(l.shuts, mostShut)), now, why)
	l.shuts++
}

// split asks in smaller pieces for what is too much in one subscription for the relay, which gets
// no larger ones from now on.
func (l *live) split(s *Session, now time.Time, why string) bool {
	n := len(slices.Concat(l.groups...))
	if n < 2 || l.answered {
		return false
	}
	s.perReq = n / 2
	s.warn("split", "the relay takes no subscription as large as this; they are made smaller", "reason", why, "filters", s.perReq)
	for _, groups := range s.pieces(l.groups) {
		part := s.newLive(groups, l.first)
		part.held, part.missing, part.looked, part.reopenAt = l.held, history.Earlier(l.missing, l.asked), now, now
	}
	s.forget(l)
	return true
}

func (s *Session) newLive(groups []history.Group, first bool) *live {
	l := &live{request: request{id: s.name("l")}, groups: groups, first: first}
	s.lives = append(s.lives, l)
	return l
}

func (s *Session) forget(l *live) {
	s.lives = slices.DeleteFunc(s.lives, func(o *live) bool { return o == l })
}

// pieces cuts groups into what goes in one subscription each.
func (s *Session) pieces(groups []history.Group) (pieces [][]history.Group) {
	most, bytes := s.limits.Filters(), s.limits.Bytes()
	if s.perReq > 0 {
		most = min(most, s.perReq)
	}
	n, size := 0, 0
	for _, g := range groups {
		for part := range slices.Chunk(g, most) {
			if b := part.Bytes(); len(pieces) == 0 || n+len(part) > most || size+b > bytes {
				pieces, n, size = append(pieces, nil), 0, 0
			}
			last := len(pieces) - 1
			pieces[last] = append(pieces[last], part)
			n, size = n+len(part), size+part.Bytes()
		}
	}
	return pieces
}

// openLive subscribes to what comes from now on. first is true for layer 1, which is opened though
// the relay may have no room. The groups of layers 2 and 3 go together with those of the newest
// subscription while it has room, so that many small additions do not become many subscriptions, of
// which relays allow few. That is a new subscription too: where a REQ replaces another, the relay
// may do either first. Requests for the past make room for it.
func (s *Session) openLive(ctx context.Context, groups []history.Group, first bool, missing, now time.Time) error {
	newest, _ := s.latest(func(a asking) bool {
		l, is := a.(*live)
		return is && !l.first && !l.replaced && l.missing.IsZero()
	}).(*live)
	if !first && newest != nil {
		if joined := slices.Concat(newest.groups, groups); len(s.pieces(joined)) <= len(s.pieces(groups)) {
			newest.replaced, groups = true, joined
		}
	}
	pieces := s.pieces(groups)
	for live, past := s.count(); past > s.limits.Past(live+len(pieces), max(1, past)); past-- {
		if err := s.takeBack(ctx, s.latest(isPast).(*task)); err != nil {
			return err
		}
	}
	for _, piece := range pieces {
		l := s.newLive(piece, first)
		if l.missing = missing; !s.room(l) {
			s.wait(l, now)
		} else if err := s.ask(ctx, l, now); err != nil {
			return err
		}
	}
	return nil
}

// room reports whether the relay takes one more subscription. What is replaced does not count,
// because it is closed right after.
func (s *Session) room(l *live) bool { return l.first || s.limits.Live(s.opened()) }

// opened counts the live subscriptions that are open and stay so.
func (s *Session) opened() (n int) {
	for _, l := range s.lives {
		if _, open := s.open[l.id]; open && !l.replaced {
			n++
		}
	}
	return n
}

// wait keeps a subscription for which the relay has no room. It may have some later, and the past
// is asked for meanwhile.
func (s *Session) wait(l *live, now time.Time) {
	s.warn("no room", "the relay takes too few subscriptions for all that should come live; the rest is asked for from time to time", "every", lookEvery)
	l.missing, l.looked, l.reopenAt = history.Earlier(l.missing, now), now, now.Add(s.Rules.Cooldown)
}

// makeRoom closes what was opened last, but for layer 1, until there is room for the past, and
// reports whether it has closed anything.
func (s *Session) makeRoom(ctx context.Context, now time.Time) (made bool, err error) {
	for n := s.opened(); n > 1 && !s.limits.Live(n-1); n-- {
		last, _ := s.latest(func(a asking) bool {
			l, is := a.(*live)
			return is && !l.first && !l.replaced
		}).(*live)
		if last == nil {
			break
		}
		if err := s.stop(ctx, last); err != nil {
			return made, err
		}
		s.wait(last, now)
		made = true
	}
	return made, nil
}

// allOpen reports whether nothing is being opened. While something is, nothing else may be asked
// for: what comes from now on must be open before the past is asked for, or something falls in
// between, in any order in which a relay does what it is asked. Nothing waits for one that the
// relay has refused before: what falls in between is made up for once it takes that.
func (s *Session) allOpen() bool {
	for _, a := range s.open {
		if l, is := a.(*live); is && !l.answered && !l.replaced && l.missing.IsZero() {
			return false
		}
	}
	return true
}

// tendLive closes what is replaced, once the relay has answered for what replaces it or is not
// going to, asks for what is missing, and opens again what the relay closed.
func (s *Session) tendLive(ctx context.Context, now time.Time) error {
	s.hearLost()
	if s.limits.Quiet(now) {
		return nil
	}
	allOpen := s.allOpen()
	for _, l := range slices.Clone(s.lives) { // what is replaced before what replaces it
		_, open := s.open[l.id]
		var err error
		switch {
		case l.replaced && allOpen:
			s.makeUp(l)
			s.forget(l)
			err = s.stop(ctx, l)
		case open && l.answered:
			l.held, l.looked = true, time.Time{}
			s.makeUp(l)
		case !open && !now.Before(l.reopenAt):
			err = s.reopen(ctx, l, now)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reopen asks for a subscription again, if there is room. From time to time the past is asked for
// in its place; and where the relay has not said how much room there is, it is asked for then
// though there seems to be none.
func (s *Session) reopen(ctx context.Context, l *live, now time.Time) error {
	ask := s.room(l)
	if !now.Before(l.looked.Add(lookEvery)) && s.makeUp(l) {
		l.missing, l.lost, l.looked = now, false, now
		if !s.limits.Tells() && !now.Before(s.probed.Add(lookEvery)) {
			ask, s.probed = true, now
		}
	}
	if !ask {
		l.reopenAt = now.Add(s.Rules.Cooldown)
		return nil
	}
	return s.ask(ctx, l, now)
}

// makeUp plans to ask for what did not come live, if anything, unless that is under way for the
// subscription.
func (s *Session) makeUp(l *live) bool {
	if l.missing.IsZero() || !l.replaced && l.owed != nil && !l.owed.done {
		return false
	}
	since := nostr.Timestamp(l.missing.Add(-missedMargin).Unix())
	why := cause{source: proto.SourceReconnect, lane: proto.LaneSyncHistoric, missing: l.missing}
	if l.held && !l.lost {
		why.liveUntil = l.missing
	}
	l.owed = s.add(work{groups: l.groups, cause: why, since: &since})
	l.missing, l.lost = time.Time{}, false
	return true
}

// replace lets others take the place of what is live, with layer 1 or without. It returns since
// when events are missing on any of it; zero: none are.
func (s *Session) replace(layer1 bool) (missing time.Time) {
	for _, l := range slices.Clone(s.lives) {
		if l.replaced || l.first && !layer1 {
			continue
		}
		missing = history.Earlier(missing, l.missing)
		l.missing = time.Time{}
		if _, open := s.open[l.id]; open {
			l.replaced = true
		} else {
			s.forget(l)
		}
	}
	return missing
}

// liveFilters counts the filters of layers 2 and 3 that are live or should be.
func (s *Session) liveFilters() (n int) {
	for _, l := range s.lives {
		if !l.first && !l.replaced {
			for _, g := range l.groups {
				n += len(g)
			}
		}
	}
	return n
}
