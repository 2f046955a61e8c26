package session

import (
	"fmt"
	"time"

	"tendril.dev/services/relayconn/wire"
)

const (
	// Doubtful is how long the relay may take to answer what is open after a NOTICE that may be a
	// refusal of it. What it has not answered by then was most likely refused.
	Doubtful = 10 * time.Second
	// slowest is how long a page may take, as a factor of how long a relay may be silent.
	slowest = 20
	// proofWait is how long a relay may take to heed our answer to its challenge (NIP-42) before
	// what it refused is asked again.
	proofWait = 2 * time.Second
)

// action is what becomes of a REQ that the relay has refused or not answered.
type action int

const (
	askAgain    action = iota // it is asked once more, in the same form
	askWithRoom               // so it is, when the relay has room for it
	askInParts                // it is too large
	giveUp                    // it has failed
	restForADay               // it is refused for good
)

// decision is what follows from a refusal, or from silence.
type decision struct {
	action
	at       time.Time // before it is not asked again
	why      string    // in the relay's words
	needRoom bool      // the relay seems to have no room for the past beside what is live
	shorter  bool      // askInParts: it is too large because of its time
}

// refused decides what follows from the refusal of a request, which is not open any more.
func (g *governor) refused(a openREQ, why wire.Refusal, reason string, now time.Time) decision {
	r := a.req()
	switch {
	case why.Proof && !r.proved:
		r.proved = true
		return decision{action: askAgain, at: now.Add(proofWait), why: reason}
	case why.Fewer:
		g.oneTooMany(r)
		return decision{action: askWithRoom, at: now.Add(g.Rules.Cooldown), why: reason}
	case why.Quiet:
		return decision{action: askAgain, at: now, why: reason}
	case why.Smaller && !r.answered:
		g.warn("split", "the relay takes no REQ as large as this; they are made smaller", "reason", reason, "filters",
			len(a.Filters()))
		return decision{action: askInParts, at: now.Add(refusedRest), why: reason, shorter: why.Shorter}
	case why.Proof:
		g.warn("auth", "the relay requires authentication (NIP-42) and does not accept ours: events that it keeps for others do not come. "+
			"The key is the operator's, which each worker needs (NGIT_RELAY_OWNER_NSEC)", "reason", reason)
	case !why.Never:
		return decision{action: giveUp, why: reason}
	}
	g.limitedUntil = now.Add(refusedRest)
	g.Observer.Refused(wire.PolicyCategory(reason))
	return decision{action: restForADay, at: now.Add(refusedRest), why: reason}
}

// oneTooMany notes that the relay takes no more subscriptions than are open now.
func (g *governor) oneTooMany(r *request) {
	lives, past := g.count()
	if g.limits.Refused(lives + past); r.answered {
		g.limits.TookBack(lives + past)
	}
}

// blame works out which request a NOTICE refuses, which does not say so: most likely the one that
// was asked last; nil: none. What else is not answered is given up soon. Where it may be either of
// two, the other one is returned as doubtful: it is taken back and asked again.
func (g *governor) blame(text string, now time.Time) (blamed openREQ, why wire.Refusal, doubtful *task) {
	g.Log.Debug("notice", "text", text)
	switch why = wire.ReadRefusal(text); {
	case why.Quiet:
		g.pause(now, text)
		return nil, why, nil
	case why.Fewer: // strfry sends EOSE before it looks how many there are
		why = wire.Refusal{Fewer: true}
		blamed = g.latest(func(a openREQ) bool { return isPast(a) && isUnanswered(a) })
		live := g.latest(func(a openREQ) bool { return isLive(a) && now.Before(a.req().asked.Add(g.Rules.Silence)) })
		if live != nil {
			doubtful, _ = blamed.(*task)
			blamed = live
		}
	case why.Smaller:
		blamed = g.latest(func(a openREQ) bool {
			return isUnanswered(a) &&
				(len(a.Filters()) > 1 || values(a.Filters()) > 1)
		})
	}
	for _, a := range g.open {
		if a == openItem(blamed) || doubtful != nil && a == openItem(doubtful) {
			continue
		}
		if r := a.req(); !r.answered && r.doubted.IsZero() {
			r.doubted = now
		}
	}
	return blamed, why, doubtful
}

// deadline is when a request is given up: the relay is silent, or drips, or may have refused it;
// zero: never. A time in which nothing was read is not the relay's silence.
func (g *governor) deadline(a openItem) time.Time {
	r := a.req()
	if x, is := a.(*search); is {
		if x.state != awaitsAnswer {
			return time.Time{}
		}
		return later(r.heard, g.resumed).Add(sessionSilence)
	}
	if r.answered && isLive(a) {
		return time.Time{}
	}
	end := earlier(later(r.heard, g.resumed).Add(g.Rules.Silence), later(r.asked, g.resumed).Add(slowest*g.Rules.Silence))
	if !r.doubted.IsZero() {
		end = earlier(end, later(r.doubted, g.resumed).Add(Doubtful))
	}
	return end
}

// overdue is what the relay has not answered, or not to its end.
func (g *governor) overdue(now time.Time) (items []openItem) {
	for _, a := range g.open {
		if until := g.deadline(a); !until.IsZero() && !now.Before(until) {
			items = append(items, a)
		}
	}
	return items
}

// unanswered decides what follows from silence. What the relay has not begun to answer was most
// likely refused, whether it said so or not. However many of those that were open together it does
// not answer, that halves what is asked at once once.
func (g *governor) unanswered(a openREQ, now time.Time) decision {
	g.stop(a)
	r := a.req()
	d := decision{action: giveUp, at: now, why: fmt.Sprintf("no end of the answer after %v", now.Sub(r.asked))}
	switch {
	case g.pausedUntil.After(r.heard):
		d.action = askAgain
		return d
	case r.answered:
		return d
	}
	live, past := g.count()
	doubted := !r.doubted.IsZero()
	if doubted || isLive(a) {
		g.warn("unanswered", "the relay does not answer a request, which counts as a refusal; fewer are open at once")
	}
	if r.order > g.loweredAt {
		g.limits.Refused((live + past + 1) / 2)
		g.loweredAt = g.asks
	}
	if doubted {
		d.action = askAgain
	} // else it has failed, whether it is live or of the past
	d.needRoom = past == 0 && !isLive(a)
	return d
}
