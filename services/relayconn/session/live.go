package session

import (
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// lookEvery is how often the past is asked for instead of what the relay does not take live.
	lookEvery = 10 * time.Minute
	// missedMargin is how much earlier than it went missing the past is asked for: clocks differ,
	// and events come late.
	missedMargin = 15 * time.Minute
	// trimAfter is how long live filters may ask for what was withdrawn. Strangers' announcements
	// come and go, and to rebuild the filters costs a look at the past of all.
	trimAfter = time.Hour
)

// live is one live subscription. It is open, or asked for and not answered, if its request is among
// the session's.
type live struct {
	request
	groups   []Group
	first    bool      // of layer 1, which consolidation leaves alone
	missing  time.Time // since when events have not come on it, or had no verdict; zero: they come
	reopenAt time.Time // of one that is closed
	owed     *batch    // the past that was asked for instead
	replaced bool      // others are opened in its place, and it is closed when they are open
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

func asksFor(groups []Group, ev *nostr.Event) bool {
	return slices.ContainsFunc(groups, func(g Group) bool { return g.Matches(ev) })
}

// again plans to open a subscription again that is not open.
func (l *live) again(s *Session, at, now time.Time, why string) {
	s.warn("closed", "a live subscription is not open at the relay", "reason", why)
	if l.replaced {
		s.missing(now)
		return
	}
	if l.missing = earlier(l.missing, now); !l.answered {
		l.missing = earlier(l.missing, l.asked)
	}
	l.reopenAt = at
}

func (l *live) failed(s *Session, now time.Time, why string) {
	l.again(s, now.Add(s.Rules.Cooldown), now, why)
}

// missing notes on all that stands that events are missing since a time: what was replaced has ended,
// and nobody looks at it any more.
func (s *Session) missing(since time.Time) {
	for _, l := range s.lives {
		if !l.first && !l.answered {
			l.missing = earlier(l.missing, since)
		}
	}
}

// split asks in smaller pieces for what is too much in one subscription for the relay.
func (l *live) split(s *Session) {
	if l.replaced {
		s.missing(time.Now())
		return
	}
	s.forget(l)
	for _, groups := range s.pieces(l.groups) {
		part := s.newLive(groups, l.first)
		part.missing = earlier(l.missing, l.asked)
	}
}

func (s *Session) newLive(groups []Group, first bool) *live {
	l := &live{request: request{id: s.name("l")}, groups: groups, first: first}
	s.lives = append(s.lives, l)
	return l
}

func (s *Session) forget(l *live) {
	s.lives = slices.DeleteFunc(s.lives, func(o *live) bool { return o == l })
}

// pieces cuts groups into what goes in one subscription each.
func (s *Session) pieces(groups []Group) (pieces [][]Group) {
	most, bytes := s.limits.Filters(), s.limits.Bytes()
	n, size := 0, 0
	for _, g := range groups {
		for part := range s.together(g) {
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

// openLive subscribes to what comes from now on, of which events are missing since a time. first is
// true for layer 1, which is opened though the relay may have no room. Requests for the past make
// room for it, and so does what was replaced.
func (s *Session) openLive(groups []Group, first bool, missing, now time.Time) {
	pieces := s.pieces(groups)
	if live, _ := s.count(); !s.limits.Live(live+len(pieces)-1) && s.closeReplaced(now) {
		missing = earlier(missing, now)
	}
	for live, past := s.count(); past > s.limits.Past(live+len(pieces), max(1, past)); past-- {
		s.requeue(s.latest(isPast).(*task))
	}
	for _, piece := range pieces {
		l := s.newLive(piece, first)
		if l.missing = missing; !s.room(l) {
			s.wait(l, now)
		} else {
			s.ask(l, now)
		}
	}
}

// replaceLive forgets the live subscriptions, with layer 1 or without. They stay open at the relay
// until closeReplaced, so that events come until those in their place are open. It returns since
// when events are missing on any of them; zero: none are.
func (s *Session) replaceLive(layer1 bool) (missing time.Time) {
	s.lives = slices.DeleteFunc(s.lives, func(l *live) bool {
		if l.first && !layer1 {
			return false
		}
		missing, l.replaced = earlier(missing, l.missing), true
		return true
	})
	return missing
}

// closeReplaced ends what was replaced, and reports whether there was any. From now on events are
// missing on what is not open yet.
func (s *Session) closeReplaced(now time.Time) (closed bool) {
	for _, a := range s.open {
		if l, is := a.(*live); is && l.replaced {
			closed = true
			s.stop(l)
		}
	}
	for _, l := range s.lives {
		if closed && s.isOpen(l) && !l.answered {
			l.missing = earlier(l.missing, now)
		}
	}
	return closed
}

func (s *Session) isOpen(l *live) bool {
	_, open := s.open[l.id]
	return open
}

// room reports whether the relay takes one more subscription.
func (s *Session) room(l *live) bool {
	lives, _ := s.count()
	return l.first || s.limits.Live(lives)
}

// wait keeps a subscription for which the relay has no room. It may have some later, and the past
// is asked for meanwhile.
func (s *Session) wait(l *live, now time.Time) {
	s.warn("no room", "the relay takes too few subscriptions for all that should come live; the rest is asked for from time to time", "every", lookEvery)
	l.missing, l.reopenAt = earlier(l.missing, now), now.Add(s.Rules.Cooldown)
}

// makeRoom closes what was opened last, but for layer 1, until there is room for the past, and
// reports whether it has closed anything.
func (s *Session) makeRoom(now time.Time) (made bool) {
	for n, _ := s.count(); n > 1 && !s.limits.Live(n-1); n-- {
		last, _ := s.latest(func(a asking) bool { return isLive(a) && !a.(*live).first }).(*live)
		if last == nil {
			break
		}
		s.stop(last)
		s.wait(last, now)
		made = true
	}
	return made
}

// allOpen reports whether nothing is being opened. While something is, nothing else may be asked
// for: what comes from now on must be open before the past is asked for, or something falls in
// between, in any order in which a relay does what it is asked. Nothing waits for one on which
// events are missing: what falls in between is made up for once it is open.
func (s *Session) allOpen() bool {
	return !slices.ContainsFunc(s.lives, func(l *live) bool { return s.isOpen(l) && !l.answered && l.missing.IsZero() })
}

// tendLive asks for what is missing, and opens again what is closed, if there is room. From time to
// time the past is asked for in place of what stays closed; then the relay may have one more
// subscription than it was thought to take.
func (s *Session) tendLive(now time.Time) {
	if now.Before(s.quiet) {
		return
	}
	looked, full := false, false
	for _, l := range s.lives {
		switch {
		case s.isOpen(l):
			if l.answered {
				s.makeUp(l)
			}
			continue
		case !now.Before(l.missing.Add(lookEvery)) && s.makeUp(l):
			l.missing, looked = now, true
		}
		switch {
		case now.Before(l.reopenAt):
		case !s.room(l):
			l.reopenAt, full = now.Add(s.Rules.Cooldown), true
		default:
			s.ask(l, now)
		}
	}
	if looked {
		s.limits.Probe()
	}
	trim := !s.trimAt.IsZero() && !now.Before(s.trimAt)
	if full || trim {
		if groups := s.liveGroups(); trim || len(s.pieces(groups)) < len(s.lives)-1 {
			s.consolidate(groups, now)
		}
	}
	if s.allOpen() {
		s.closeReplaced(now)
	}
}

// makeUp plans to ask for what did not come live, if anything, unless that is under way for the
// subscription.
func (s *Session) makeUp(l *live) bool {
	if l.missing.IsZero() || l.owed != nil && slices.Contains(s.batches, l.owed) {
		return false
	}
	since := nostr.Timestamp(l.missing.Add(-missedMargin).Unix())
	why := cause{source: proto.SourceReconnect, missing: l.missing, liveUntil: l.missing}
	l.owed = s.add(work{groups: l.groups, cause: why, since: &since})
	l.missing = time.Time{}
	return true
}

// liveGroups are the filters of layers 2 and 3 that should be live.
func (s *Session) liveGroups() []Group {
	all := Union(append(s.asked(), s.confirmed)...)
	all.First = false
	return Groups(all)
}

// consolidate makes the many live filters of layers 2 and 3 few full ones. Batches go on, from
// where each walk stands.
func (s *Session) consolidate(groups []Group, now time.Time) {
	s.trimAt = time.Time{}
	s.openLive(groups, false, s.replaceLive(false), now)
}
