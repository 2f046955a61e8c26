package relayconn

import (
	"cmp"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
)

// past is how far the connections before have come: what the next one may count on
// (docs/architecture.md, How things flow). It is a value.
type past struct {
	connected time.Time // until when the last connection held; zero: there was none
	complete  time.Time // what was confirmed is complete up to then; zero: nothing is
	whole     bool      // the past of layer 1 was never whole, so it must be asked for whole
}

// begun notes a fresh start.
func (p past) begun() past { return past{connected: p.connected, whole: true} }

// held notes that a connection stands. Only once it has caught up with what it missed, a next one
// need not go back as far as it did.
func (p past) held(now time.Time, caughtUp bool) past {
	p.connected = now
	if caughtUp {
		p.complete, p.whole = now, false
	}
	return p
}

// ended notes the end of a connection. What was confirmed on it has come live until now, or until
// something went missing, unless it was to be caught up with first.
func (p past) ended(now time.Time, caughtUp bool, missing time.Time) past {
	p = p.held(now, caughtUp)
	p.complete = cmp.Or(p.complete, missing, now)
	return p
}

// start decides between a fresh start and a quick reconnect, which a relay gets that was away for
// no longer than window.
func (p past) start(now time.Time, window time.Duration) session.Start {
	if p.connected.IsZero() || now.Sub(p.connected) > window {
		return session.Start{}
	}
	since := nostr.Timestamp(p.complete.Add(-window).Unix())
	return session.Start{Since: &since, Whole: p.whole, Live: p.connected}
}
