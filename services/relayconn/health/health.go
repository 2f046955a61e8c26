// Package health knows how a relay has been behaving and when it may be tried again (spec/sync.md, Health). It is a value; time is passed in.
package health

import (
	"time"

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
)

// String is the state's name.
func (s State) String() string {
	switch s {
	case Healthy:
		return "healthy"
	case Disconnected:
		return "disconnected"
	case Degraded:
		return "degraded"
	case Dead:
		return "dead"
	case RateLimited:
		return "rate_limited"
	}
	return "unknown"
}

// Rules are the delays, all of them settings.
type Rules struct {
	Base, Max   time.Duration // back-off
	Stable      time.Duration // a connection that held so long is healthy
	Dead        time.Duration // failing so long without a break; then tried once in that time
	Naughty     time.Duration // after a failure that is the relay's own
	RateLimited time.Duration // quiet after it told us so
}

// Health is how one relay has been behaving. The zero value is a relay that was never tried.
type Health struct {
	Failures     int       // in a row
	FailingSince time.Time // first of them
	Naughty      time.Time // on the naughty list until
	Limited      time.Time // rate limited until
	Connected    time.Time // since; zero: not connected
	NextAttempt  time.Time
	LastError    string
}

// Failed notes a connection that could not be made.
func (h Health) Failed(r Rules, now time.Time, err error) Health {
	h.Connected = time.Time{}
	h.Failures++
	if h.FailingSince.IsZero() {
		h.FailingSince = now
	}
	h.LastError = err.Error()
	wait := r.Backoff(h.Failures)
	if now.Sub(h.FailingSince) >= r.Dead {
		wait = r.Dead
	}
	if netguard.Classify(err).Lasting() {
		h.Naughty = now.Add(r.Naughty)
		wait = max(wait, r.Naughty)
	}
	h.NextAttempt = now.Add(wait)
	return h
}

// Opened notes a connection. Past failures count until it has been stable.
func (h Health) Opened(now time.Time) Health {
	h.Connected, h.Naughty = now, time.Time{}
	return h
}

// Dropped notes the end of a connection. One that had been stable is tried again at once; otherwise the back-off goes on, so that a relay that
// accepts and hangs up is not hammered.
func (h Health) Dropped(r Rules, now time.Time, err error) Health {
	if err != nil {
		h.LastError = err.Error()
	}
	if h.State(r, now) == Healthy {
		return Health{NextAttempt: now, LastError: h.LastError, Limited: h.Limited}
	}
	h.Connected = time.Time{}
	h.Failures++
	if h.FailingSince.IsZero() {
		h.FailingSince = now
	}
	h.NextAttempt = now.Add(r.Backoff(h.Failures))
	return h
}

// Settled forgets the failures of a relay whose connection has held.
func (h Health) Settled(r Rules, now time.Time) Health {
	if !h.Connected.IsZero() && now.Sub(h.Connected) >= r.Stable {
		h.Failures, h.FailingSince, h.LastError = 0, time.Time{}, ""
	}
	return h
}

// Slowed notes that the relay told us that we ask too much.
func (h Health) Slowed(r Rules, now time.Time) Health {
	h.Limited = now.Add(r.RateLimited)
	return h
}

// State is where the relay stands at now.
func (h Health) State(r Rules, now time.Time) State {
	switch {
	case now.Before(h.Limited):
		return RateLimited
	case !h.Connected.IsZero() && (h.Failures == 0 || now.Sub(h.Connected) >= r.Stable):
		return Healthy
	case !h.Connected.IsZero() || h.Failures == 0:
		return Disconnected
	case now.Sub(h.FailingSince) >= r.Dead:
		return Dead
	}
	return Degraded
}

// Backoff is base · 2^(failures−1), at most Max.
func (r Rules) Backoff(failures int) time.Duration {
	wait := r.Base
	for range failures - 1 {
		if wait *= 2; wait >= r.Max {
			return r.Max
		}
	}
	return min(wait, r.Max)
}
