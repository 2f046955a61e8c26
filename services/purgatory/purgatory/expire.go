package purgatory

import (
	"context"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/held"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/release"
)

const (
	// expireAtOnce bounds how many expiries are asked for in one go.
	expireAtOnce = 200
	// lastChance is how long what is overdue when a worker takes a shard is hunted before it expires.
	lastChance = 5 * time.Minute
)

// expire asks ingest to end the time of held events of an identifier that are overdue: a waiting
// announcement falls silent, the others go. It returns when the next one will be; zero: never.
func (w *worker) expire(ctx context.Context, identifier string) (next time.Time, err error) {
	now := time.Now()
	opened := w.openedAt(identifier)
	soonest := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	var over []*held.Entry
	for _, e := range w.holdings.OfIdentifier(identifier) {
		switch {
		case now.Before(e.ExpiresAt):
			soonest(e.ExpiresAt)
		case !mayExpire(e, opened, now, w.hunter.Exhausted) || len(over) == expireAtOnce:
			soonest(now.Add(w.node.Settings.HuntInterval))
		default:
			over = append(over, e)
		}
	}
	if len(over) == 0 {
		return next, nil
	}
	var asks []candidates.Candidate
	for _, e := range over {
		asks = append(asks, candidates.Candidate{Event: e.Event, Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: proto.ActionExpire})
	}
	if _, err := release.Ask(ctx, w.releaser.Offerer, asks); err != nil {
		return next, err
	}
	if err := w.readHeld(ctx); err != nil {
		return next, err
	}
	for _, e := range over {
		if now := w.holdings.ByKey(e.Key); now != nil && now.Phase == e.Phase {
			// Its clock was started anew meanwhile, or ingest's is behind.
			soonest(time.Now().Add(w.node.Settings.HuntBackoffBase))
			continue
		}
		if e.Phase == proto.PhaseWaiting { // the end of the silence is no news
			w.metrics.left(e.Event.Kind, "expired", e.HeldAt)
			w.tell(e.Identifier, proto.GitExpired, proto.GitNotice{Event: e.Event.ID, Kind: e.Event.Kind, Reason: "no git data came in time"})
		}
		w.log.Info("expired", "identifier", e.Identifier, "kind", e.Event.Kind, "event", e.Event.ID, "phase", e.Phase)
	}
	return next, nil
}

// mayExpire reports whether an entry whose time is over may end. What was overdue when the worker
// took the shard, because no worker ran, is hunted once before.
func mayExpire(e *held.Entry, opened, now time.Time, hunted func(identifier string) bool) bool {
	if e.Phase != proto.PhaseWaiting || e.ExpiresAt.After(opened) || now.Sub(opened) > lastChance {
		return true
	}
	return hunted(e.Identifier)
}
