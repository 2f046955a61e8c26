package purgatory

import (
	"context"
	"maps"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/held"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/release"
)

// expireAtOnce bounds how many expiries are asked for in one go.
const expireAtOnce = 200

// asked is an entry whose end was asked for: not again for a while, unless its clock was started
// anew. Ingest's clock may be behind ours.
type asked struct{ about, again time.Time }

// watchClocks looks from time to time for held events whose time is over, and asks ingest to end
// it: a waiting announcement falls silent, the others go.
func (w *worker) watchClocks(ctx context.Context) error {
	tick := time.NewTicker(w.node.Settings.HuntInterval)
	defer tick.Stop()
	before := map[string]asked{} // by key
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			maps.DeleteFunc(before, func(_ string, a asked) bool { return !now.Before(a.again) })
			if err := w.expire(ctx, w.over(now, before)); err != nil && ctx.Err() == nil {
				w.log.Warn("events whose time in purgatory is over could not be expired", "error", err)
			}
		}
	}
}

// over returns entries of this worker's shards whose time is over and whose end was not asked for
// lately, and notes that it is now.
func (w *worker) over(now time.Time, before map[string]asked) []*held.Entry {
	list := w.holdings.Over(now, expireAtOnce, func(e *held.Entry) bool {
		return w.shards.Holds(e.Identifier) && !before[e.Key].about.Equal(e.ExpiresAt) &&
			mayExpire(e, w.openedAt(e.Identifier), now, w.hunter.Exhausted)
	})
	for _, e := range list {
		before[e.Key] = asked{about: e.ExpiresAt, again: now.Add(w.node.Settings.HuntBackoffBase)}
	}
	return list
}

// lastChance is how long what is overdue when a worker takes a shard is hunted before it expires.
const lastChance = 5 * time.Minute

// mayExpire reports whether an entry whose time is over may end. What was overdue when the worker
// took the shard, because no worker ran, is hunted once before.
func mayExpire(e *held.Entry, opened, now time.Time, hunted func(identifier string) bool) bool {
	if e.Phase != proto.PhaseWaiting || e.ExpiresAt.After(opened) || now.Sub(opened) > lastChance {
		return true
	}
	return hunted(e.Identifier)
}

func (w *worker) openedAt(identifier string) time.Time {
	w.openedMu.Lock()
	defer w.openedMu.Unlock()
	return w.opened[proto.ShardOf(identifier)]
}

// expire asks ingest to end the time of entries, and tells of those for which it did.
func (w *worker) expire(ctx context.Context, list []*held.Entry) error {
	if len(list) == 0 {
		return nil
	}
	var asks []candidates.Candidate
	for _, e := range list {
		asks = append(asks, candidates.Candidate{Event: e.Event, Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: proto.ActionExpire})
	}
	if _, err := release.Ask(ctx, w.releaser.Offerer, asks); err != nil {
		return err
	}
	if err := w.readHeld(ctx); err != nil {
		return err
	}
	for _, e := range list {
		now := w.holdings.ByKey(e.Key)
		if now != nil && now.Phase == e.Phase {
			continue // its clock was started anew meanwhile, or ingest's is behind
		}
		if e.Phase == proto.PhaseWaiting { // the end of the silence is no news
			w.metrics.left(e.Event.Kind, "expired", e.HeldAt)
			w.tell(e.Identifier, proto.GitExpired, proto.GitNotice{Event: e.Event.ID, Kind: e.Event.Kind, Reason: "no git data came in time"})
		}
		w.log.Info("expired", "identifier", e.Identifier, "kind", e.Event.Kind, "event", e.Event.ID, "phase", e.Phase)
	}
	return nil
}
