package purgatory

import (
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
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

// awaitExpirations has repositories looked at when the time of an event is over that may have
// changed them: the event ends then as if its author had deleted it, without any message. What else
// a hosted repository depends on, remember awaits.
func (w *schedule) awaitExpirations(v repostate.View, scope []*repository.Locked) {
	now := time.Now()
	for _, a := range v.Announcements {
		if at, will := expiresAt(a.Event, now); will && isAmong(scope, placeOf(a.Ref.PubKey, v.Identifier)) {
			w.queue.addExpiration(placeOf(a.Ref.PubKey, v.Identifier), at)
		}
	}
	for _, s := range v.States {
		if at, will := expiresAt(s.Event, now); will {
			w.queue.addExpiration(placeOf(s.Event.PubKey, v.Identifier), at)
		}
	}
	for _, pr := range v.PullRequests {
		w.awaitExpiration(v, pr)
	}
}

// awaitExpiration is awaitExpirations for a pull request, whose commit is named in every repository
// that it is for.
func (w *schedule) awaitExpiration(v repostate.View, pr repostate.PullRequest) {
	at, will := expiresAt(pr.Event, time.Now())
	if !will {
		return
	}
	for _, owner := range v.Tagged(pr) {
		w.queue.addExpiration(placeOf(owner, v.Identifier), at)
	}
}
