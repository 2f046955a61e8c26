package session

import (
	"fmt"
	"time"

	"tendril.dev/lib/nostr"
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

// request is a REQ that is open at the relay, as far as is known.
type request struct {
	id       string
	order    int       // counts in the order in which they were asked
	asked    time.Time // last
	heard    time.Time // the last message; until the first one, when it was asked
	answered bool      // there was a message
	ended    bool      // there was an EOSE
	doubted  time.Time // when a NOTICE came since that may be a refusal of it; zero: none did
	proved   bool      // it was refused to those who have not authenticated
}

func (r *request) req() *request { return r }

// asked is what is open at the relay: *live, *task, or *search, which has words of its own.
type asked interface{ req() *request }

// asking is what a REQ is for: *live or *task. The relay refuses both in the same words.
type asking interface {
	asked
	Filters() []nostr.Filter
	Matches(ev *nostr.Event) bool
	// again has it asked for once more from that time on.
	again(s *Session, at, now time.Time, why string)
	// split has it asked for in several REQs.
	split(s *Session)
	// failed notes that the relay refuses it for another reason.
	failed(s *Session, now time.Time, why string)
}

// ask asks the relay.
func (s *Session) ask(a asking, now time.Time) {
	r := a.req()
	s.asks++
	*r = request{id: r.id, proved: r.proved, order: s.asks, asked: now, heard: now}
	s.open[r.id] = a
	s.Asker.Req(r.id, a.Filters())
}

// stop takes a request back.
func (s *Session) stop(a asking) {
	delete(s.open, a.req().id)
	s.Asker.Unsubscribe(a.req().id)
}

// latest is the request that was asked last of those that count; nil: there is none.
func (s *Session) latest(counts func(asking) bool) (last asking) {
	for _, o := range s.open {
		a, is := o.(asking)
		if is && (last == nil || a.req().order > last.req().order) && counts(a) {
			last = a
		}
	}
	return last
}

func isLive(a asked) bool { _, is := a.(*live); return is }

func isPast(a asking) bool { return !isLive(a) }

func isUnanswered(a asking) bool { return !a.req().answered }

// count counts the open requests that are live, and those that are not. Relays count sessions of
// NIP-77 apart.
func (s *Session) count() (lives, past int) {
	for _, a := range s.open {
		switch a.(type) {
		case *live:
			lives++
		case *task:
			past++
		}
	}
	return lives, past
}

// refused reacts to the refusal of a request, which is not open any more.
func (s *Session) refused(a asking, why wire.Refusal, reason string, now time.Time) {
	r := a.req()
	switch {
	case why.Proof && !r.proved:
		r.proved = true
		a.again(s, now.Add(proofWait), now, reason)
	case why.Fewer:
		s.oneTooMany(a, reason, now)
	case why.Quiet:
		a.again(s, now, now, reason)
	case why.Smaller && !r.answered && len(a.Filters()) > 1:
		s.limits.FewerFilters(len(a.Filters()))
		s.warn("split", "the relay takes no REQ as large as this; they are made smaller", "reason", reason, "filters", s.limits.Filters())
		a.split(s)
	default:
		if why.Proof {
			s.warn("auth", "the relay requires authentication (NIP-42) and does not accept ours: events that it keeps for others do not come. "+
				"The key is the operator's, which each worker needs (NGIT_RELAY_OWNER_NSEC)", "reason", reason)
		}
		a.failed(s, now, reason)
	}
}

// oneTooMany notes that the relay takes no more subscriptions than are open now. What it refused is
// asked again when one of these has ended. If the past has none, some of what is live ends.
func (s *Session) oneTooMany(a asking, reason string, now time.Time) {
	lives, open := s.count()
	if s.limits.Refused(lives + open); a.req().answered {
		s.limits.TookBack(lives + open)
	}
	at := now.Add(s.Rules.Cooldown)
	t, past := a.(*task)
	if !past {
		if s.closeReplaced(now) {
			at = now
		}
		a.again(s, at, now, reason)
		return
	}
	if open > 0 {
		t.tries-- // it will be one when there is room
	}
	if open > 0 || s.makeRoom(now) {
		at = now
	}
	t.again(s, at, now, reason)
}

// notice takes in a NOTICE, which does not say for which request it is. A refusal is most likely
// for the one that was asked last. What else is not answered is given up soon.
func (s *Session) notice(text string, now time.Time) {
	s.Log.Debug("notice", "text", text)
	why := wire.ReadRefusal(text)
	var blamed asking
	switch {
	case why.Quiet:
		s.quieten(now, text)
		return
	case why.Fewer: // strfry sends EOSE before it looks how many there are
		why = wire.Refusal{Fewer: true}
		live := s.latest(func(a asking) bool { return isLive(a) && now.Before(a.req().asked.Add(s.Rules.Silence)) })
		blamed = s.latest(func(a asking) bool { return isPast(a) && isUnanswered(a) })
		if live != nil && blamed != nil { // it may be either
			s.requeue(blamed.(*task))
		}
		if live != nil {
			blamed = live
		}
	case why.Smaller:
		blamed = s.latest(func(a asking) bool { return isUnanswered(a) && len(a.Filters()) > 1 })
	}
	for _, a := range s.open {
		if r := a.req(); a != asked(blamed) && !r.answered && r.doubted.IsZero() {
			r.doubted = now
		}
	}
	if blamed == nil {
		return
	}
	s.stop(blamed)
	s.refused(blamed, why, text, now)
}

// patience is when a request is given up: the relay is silent, or drips, or may have refused it;
// zero: never. A time in which nothing was read is not the relay's silence.
func (s *Session) patience(a asked) time.Time {
	r := a.req()
	if x, ok := a.(*search); ok {
		if x.state != said {
			return time.Time{}
		}
		return later(x.asked, later(s.rec.heard, s.resumed)).Add(sessionSilence)
	}
	if r.answered && isLive(a) {
		return time.Time{}
	}
	end := earlier(later(r.heard, s.resumed).Add(s.Rules.Silence), later(r.asked, s.resumed).Add(slowest*s.Rules.Silence))
	if !r.doubted.IsZero() {
		end = earlier(end, later(r.doubted, s.resumed).Add(Doubtful))
	}
	return end
}

// expire gives up what the relay does not answer, or not to its end. What it has not begun to
// answer was most likely refused, whether it said so or not.
func (s *Session) expire(now time.Time) {
	for _, o := range s.open {
		if until := s.patience(o); until.IsZero() || now.Before(until) {
			continue
		}
		a, ok := o.(asking)
		if !ok {
			s.rec.silent(o.(*search), now)
			continue
		}
		s.stop(a)
		r, why := a.req(), fmt.Sprintf("no end of the answer after %v", now.Sub(a.req().asked))
		switch {
		case s.quiet.After(r.heard):
			a.again(s, now, now, why)
		case r.answered:
			a.failed(s, now, why)
		default:
			s.unanswered(a, why, now)
		}
	}
}

// unanswered takes a request that the relay does not answer for one that it has refused. However
// many of those that were open together it does not answer, that halves what is asked at once once.
func (s *Session) unanswered(a asking, why string, now time.Time) {
	live, past := s.count()
	doubted := !a.req().doubted.IsZero()
	if doubted || isLive(a) {
		s.warn("unanswered", "the relay does not answer a request, which counts as a refusal; fewer are open at once")
	}
	if a.req().order > s.lowered {
		s.limits.Refused((live + past + 1) / 2)
		s.lowered = s.asks
	}
	if doubted {
		a.again(s, now, now, why)
	} else {
		a.failed(s, now, why) // of what is live as of the past
	}
	if past == 0 && !isLive(a) {
		s.makeRoom(now)
	}
}
