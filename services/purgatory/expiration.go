package purgatory

import (
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repostate"
)

// expirationSettles is how long after the second in which it expires an event is gone from every
// index.
const expirationSettles = 2 * time.Second

// isOver reports whether the time of an event is over (NIP-40).
func isOver(ev *nostr.Event, now time.Time) bool {
	at := eventdb.Expiration(ev)
	return at != 0 && now.After(at.Time().Add(time.Second))
}

// expiresAt is when an event has expired everywhere; false: it does not expire, or has done so.
func expiresAt(ev *nostr.Event, now time.Time) (at time.Time, will bool) {
	expiration := eventdb.Expiration(ev)
	at = expiration.Time().Add(expirationSettles)
	return at, expiration != 0 && at.After(now)
}

// awaitExpiration has repositories looked at when the time of a pull request is over whose commit is
// named there: it ends then as if its author had deleted it, without any message. What else a hosted
// repository depends on, remember awaits, and what is held, expire.
func (w *schedule) awaitExpiration(v repostate.View, pr repostate.PullRequest) {
	at, will := expiresAt(pr.Event, time.Now())
	if !will {
		return
	}
	for _, owner := range v.Tagged(pr) {
		w.queue.addExpiration(placeOf(owner, v.Identifier), at, pr.Event.ID)
	}
}
