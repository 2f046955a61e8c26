package purgatory

import (
	"context"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/holdings"
	"tendril.dev/services/purgatory/release"
)

// expireAtOnce bounds how many expiries are asked for in one go.
const expireAtOnce = 200

// watchClocks looks from time to time for held events whose time is over, and asks ingest to end it: a waiting announcement falls silent, the others
// go (spec/purgatory.md, What waits).
func (w *worker) watchClocks(ctx context.Context) error {
	tick := time.NewTicker(w.node.Settings.HuntInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			w.due.ripen(now)
			if err := w.expire(ctx, w.over(now)); err != nil && ctx.Err() == nil {
				w.log.Warn("events whose time in purgatory is over could not be expired", "error", err)
			}
		}
	}
}

// over gives entries of this worker's shards whose time is over.
func (w *worker) over(now time.Time) (list []holdings.Entry) {
	for _, identifier := range w.holdings.Identifiers() {
		if !w.shards.Holds(identifier) {
			continue
		}
		for _, e := range w.holdings.Of(identifier) {
			if now.After(e.ExpiresAt) {
				list = append(list, e)
			}
			if len(list) == expireAtOnce {
				return list
			}
		}
	}
	return list
}

func (w *worker) expire(ctx context.Context, list []holdings.Entry) error {
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
	for _, e := range list {
		w.metrics.left(e.Event.Kind, "expired", e.HeldAt)
		w.tell(e.Identifier, proto.GitExpired, proto.GitNotice{Event: e.Event.ID, Kind: e.Event.Kind, Reason: "no git data came in time"})
		w.log.Info("expired", "identifier", e.Identifier, "kind", e.Event.Kind, "event", e.Event.ID, "phase", e.Phase)
	}
	return nil
}
