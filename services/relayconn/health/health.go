// Package health knows how a relay has been behaving and when it may be tried again
// (docs/architecture.md, How things flow). It is a value; time is passed in. It connects to
// nothing.
package health

import (
	"time"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/netguard"
)

// State is what dashboards show of a relay.
type State int

// The states, with the values of `ngit_sync_relay_status`.
const (
	Healthy      State = 1
	Disconnected State = 2
	Degraded     State = 3
	Dead         State = 4
	RateLimited  State = 5
	// PolicyLimited: it refuses us, or a request, for good. The connection and all else stay.
	PolicyLimited State = 6
)

// String is the state's name.
func (s State) String() string {
	names := [...]string{"unknown", "healthy", "disconnected", "degraded", "dead", "rate_limited", "policy_limited"}
	if s < 0 || int(s) >= len(names) {
		s = 0
	}
	return names[s]
}

// Rules are the delays, all of them settings.
type Rules struct {
	Base, Max  time.Duration // back-off
	Stable     time.Duration // a connection that held so long is healthy
	DeadAfter  time.Duration // failing so long without a break; then tried once in that time
	NaughtyFor time.Duration // after a failure that is the relay's own
}

// Health is how one relay has been behaving. With nothing but its rules it is a relay that was
// never tried.
type Health struct {
	Rules
	Failures int // that may pass, in a row, without an answer between them
	// Recovering: it has failed, and no connection has been stable since.
	Recovering bool
	// FailingSince is since when it has been failing by what may pass, without a connection or a
	// failure of its own in between; zero: it is not.
	FailingSince time.Time
	NaughtyUntil time.Time      // on the naughty list until
	NaughtyCause netguard.Cause // why it is on that list; none: it is not
	Limited      time.Time      // rate limited until
	Refused      time.Time      // policy limited until
	Connected    time.Time      // since; zero: not connected
	NextAttempt  time.Time
	LastError    string
}

// Failed notes a connection that could not be made.
func (h Health) Failed(now time.Time, err error) Health {
	h = h.count(now, err)
	h.NextAttempt = now.Add(h.Backoff(h.Failures))
	if h.dead(now) {
		h.NextAttempt = now.Add(h.DeadAfter)
	}
	return h.blame(now, err)
}

// count counts a failure that may pass. One that is the relay's own counts neither towards its
// death nor towards the back-off.
func (h Health) count(now time.Time, err error) Health {
	h.Recovering = true
	if netguard.Classify(err).Lasting() {
		h.FailingSince = time.Time{}
		return h
	}
	if h.Failures++; h.FailingSince.IsZero() {
		h.FailingSince = now
	}
	return h
}

func (h Health) dead(now time.Time) bool {
	return !h.FailingSince.IsZero() && now.Sub(h.FailingSince) >= h.DeadAfter
}

// blame notes why there is no connection. A relay whose failure is its own and will not pass soon
// is put on the naughty list.
func (h Health) blame(now time.Time, err error) Health {
	h.Connected = time.Time{}
	if err != nil {
		h.LastError = err.Error()
	}
	if cause := netguard.Classify(err); cause.Lasting() {
		h.NaughtyUntil, h.NaughtyCause = now.Add(h.Rules.NaughtyFor), cause
		h.NextAttempt = h.NaughtyUntil // which is longer than any back-off
	}
	return h
}

// Opened notes a connection. It ends a row of failures as far as death is concerned; the back-off
// remembers them until the relay has answered.
func (h Health) Opened(now time.Time) Health {
	h.Connected, h.FailingSince = now, time.Time{}
	return h.Forgiven()
}

// Forgiven takes the relay off the naughty list.
func (h Health) Forgiven() Health {
	h.NaughtyUntil, h.NaughtyCause = time.Time{}, netguard.CauseNone
	return h
}

// Answered notes that the relay has answered on a connection: the next back-off begins at the base.
func (h Health) Answered() Health {
	h.Failures = 0
	return h
}

// Dropped notes the end of a connection that the relay has brought about. A relay that was healthy
// is tried again at once. But a connection that did not hold counts as a failure, so that one that
// accepts and hangs up is not hammered; and a breach of protocol is one.
func (h Health) Dropped(now time.Time, err error) Health {
	h = h.Held(now)
	h.NextAttempt = now
	if h.Recovering {
		h.NextAttempt = now.Add(h.Backoff(h.Failures + 1))
	}
	if now.Sub(h.Connected) < h.Stable {
		h = h.count(now, err)
	}
	return h.blame(now, err)
}

// Left notes the end of a connection that we have brought about: nothing is wrong with the relay,
// and it may be tried again at once.
func (h Health) Left(now time.Time) Health {
	h = h.Held(now)
	h.Connected, h.NextAttempt = time.Time{}, now
	return h
}

// Held forgets the failures of a relay whose connection has held.
func (h Health) Held(now time.Time) Health {
	if !h.Connected.IsZero() && now.Sub(h.Connected) >= h.Stable {
		h.Failures, h.Recovering, h.LastError = 0, false, ""
	}
	return h
}

// State is where the relay stands at now.
func (h Health) State(now time.Time) State {
	switch {
	case now.Before(h.Limited):
		return RateLimited
	case now.Before(h.Refused) && !h.Connected.IsZero():
		return PolicyLimited
	case !h.Connected.IsZero() && (!h.Recovering || now.Sub(h.Connected) >= h.Stable):
		return Healthy
	case !h.Connected.IsZero() || !h.Recovering || h.FailingSince.IsZero() && h.NaughtyUntil.IsZero():
		return Disconnected
	case h.dead(now):
		return Dead
	}
	return Degraded
}

// Backoff is base · 2^(failures−1), at most Max.
func (r Rules) Backoff(failures int) time.Duration {
	return backoff.After(max(failures, 1), r.Base, r.Max)
}
