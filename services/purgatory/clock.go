package purgatory

import (
	"context"
	"slices"
	"strconv"
	"time"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/hunt"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repostate"
)

const (
	// expireAtOnce bounds how many expiries are asked for in one go.
	expireAtOnce = 200
	// takeoverGrace is how long what is overdue when a worker takes a shard is hunted before it
	// expires.
	takeoverGrace = 5 * time.Minute
	// lastingTime is how long the newest state of a served repository is held at most.
	lastingTime = 30 * 24 * time.Hour
)

// clock is what decides whether the time of held events of an identifier is over.
type clock struct {
	now    time.Time
	opened time.Time     // since when this worker holds the shard
	hold   time.Duration // how long an event waits
	hunt   hunt.Status
}

func (w *schedule) clock(identifier string) clock {
	return clock{time.Now(), w.shards.Opened(identifier), w.node.Settings.HoldDuration, w.hunter.Status(identifier)}
}

// standing is how a held event stands.
type standing struct {
	over bool // its time is over, and it goes
	rare bool // its time is over, but it stays, and is hunted for rarely
	// again is when its time may be over; zero: when the hunt has gone on.
	again time.Time
}

// standing says how a held event stands. Only time counts in which its data could have come: not
// that in which its identifier waits for its turn at a host, or a fetch runs. What was overdue when
// the worker took the shard, because no worker ran, is hunted once before. A state that lasts is
// the newest one of a served repository.
func (c clock) standing(e *held.Entry, lasts bool) standing {
	if e.Phase != proto.PhaseWaiting {
		return standing{over: !c.now.Before(e.ExpiresAt), again: e.ExpiresAt}
	}
	began, waits := e.ExpiresAt.Add(-c.hold), c.hunt.Waited
	until := e.ExpiresAt.Add(waits.Within(began, c.now))
	if overdue := !e.ExpiresAt.After(c.opened); overdue && !c.hunt.Tried {
		if last := c.opened.Add(takeoverGrace + waits.Within(c.opened, c.now)); last.After(until) {
			until = last
		}
	}
	switch {
	case lasts && !c.now.Before(until):
		end := began.Add(lastingTime)
		return standing{over: !c.now.Before(end), rare: true, again: end}
	case !c.now.Before(until):
		return standing{over: true}
	case waits.Now():
		return standing{}
	}
	return standing{again: until}
}

// isRare reports whether an identifier has nothing to hunt for but what stays though its time is
// over.
func (c clock) isRare(v repostate.View, entries []*held.Entry) bool {
	rare := false
	for _, e := range entries {
		if e.Phase != proto.PhaseWaiting {
			continue
		}
		if !c.standingIn(v, e).rare {
			return false
		}
		rare = true
	}
	return rare
}

// standingIn is standing by what is known around the author of a state.
func (c clock) standingIn(v repostate.View, e *held.Entry) standing {
	s := c.standing(e, false)
	if s.over && lasts(v, e) {
		s = c.standing(e, true)
	}
	return s
}

// lasts reports whether a held event is the newest state of a repository that is served.
func lasts(v repostate.View, e *held.Entry) bool {
	return e.Event.Kind == nostr.KindState && slices.ContainsFunc(v.OwnersFor(e.Event.PubKey), func(owner string) bool {
		states := v.StatesFor(owner)
		return !v.Holds(owner) && len(states) > 0 && states[0].Event.ID == e.Event.ID
	})
}

// expire asks ingest to end the time of held events of an identifier that are overdue: a waiting
// announcement falls silent, the others go. It looks at the clocks of all that is held, and reads
// nothing but what is known around the authors of states that are overdue.
func (w *expiry) expire(ctx context.Context, identifier string) error {
	c := w.schedule.clock(identifier)
	var over, ended []*held.Entry
	var events, endedEvents []*nostr.Event
	entries := w.knowledge.holdings.OfIdentifier(identifier)
	v, err := w.aroundOverdue(ctx, c, identifier, entries)
	if err != nil {
		return err
	}
	next := func(at time.Time) { // not one look for each event, where very many wait
		if soonest := c.now.Add(w.constants.Again); at.Before(soonest) {
			at = soonest
		}
		w.schedule.queue.addIdentifier(identifier, at)
	}
	for _, e := range entries {
		s := c.standingIn(v, e)
		if at, will := expiresAt(e.Event, c.now); will {
			next(at)
		}
		switch {
		case isOver(e.Event, c.now) && e.Phase == proto.PhaseWaiting && len(ended) < expireAtOnce:
			ended, endedEvents = append(ended, e), append(endedEvents, e.Event)
		case !s.over && !s.again.IsZero():
			next(s.again)
		case s.over && len(over) == expireAtOnce:
			next(c.now)
		case s.over:
			over, events = append(over, e), append(events, e.Event)
		}
	}
	if over = append(over, ended...); len(over) == 0 {
		return nil
	}
	_, err = release.Ask(ctx, w.sender, proto.ActionExpire, "", events...)
	if err == nil {
		_, err = release.Ask(ctx, w.sender, proto.ActionExpire, repostate.Expired, endedEvents...)
	}
	if err == nil {
		err = w.knowledge.holdings.CatchUp(ctx)
	}
	if err != nil {
		return err
	}
	for _, e := range over {
		if now := w.knowledge.holdings.ByKey(e.Key); now != nil && now.Phase == e.Phase {
			// Its clock was restarted meanwhile, or ingest's is behind.
			w.schedule.queue.addIdentifier(identifier, time.Now().Add(w.constants.BackOff))
			continue
		}
		if e.Phase == proto.PhaseWaiting { // the end of the silence is no news
			w.notices.expired(e.Identifier, e.Event, "no git data came in time")
		}
		w.log.Info("expired", "identifier", e.Identifier, "kind", e.Event.Kind, "event", e.Event.ID, "phase", e.Phase)
	}
	return nil
}

// aroundOverdue is what is known around the authors of states whose time is over: the newest of a
// served repository stays.
func (w *expiry) aroundOverdue(ctx context.Context, c clock, identifier string, entries []*held.Entry) (v repostate.View,
	err error) {
	var authors []string
	for _, e := range entries {
		if e.Event.Kind == nostr.KindState && c.standing(e, false).over {
			authors = append(authors, e.Event.PubKey)
		}
	}
	if len(authors) == 0 {
		return v, nil
	}
	return w.knowledge.around(ctx, identifier, w.schedule.withOwners(identifier, authors), nil)
}

// expired tells that an event has left purgatory unserved.
func (w *notices) expired(identifier string, ev *nostr.Event, reason string) {
	w.metrics.expired.WithLabelValues(strconv.Itoa(ev.Kind)).Inc()
	w.tell(identifier, proto.GitExpired, proto.GitNotice{Event: ev.ID, Kind: ev.Kind, Reason: reason})
}
