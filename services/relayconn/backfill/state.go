package backfill

import (
	"slices"
	"time"

	"tendril.dev/services/relayconn/moment"
)

// Missing is since when events are being made up for; zero: none are.
func (b *Backfill) Missing() (missing time.Time) {
	for _, batch := range b.batches {
		missing = moment.Earlier(missing, batch.cause.Missing)
	}
	return missing
}

// MakingUp counts how often the past is being asked for instead of what did not come live.
func (b *Backfill) MakingUp() (n int) {
	for _, batch := range b.batches {
		if !batch.cause.Missing.IsZero() {
			n++
		}
	}
	return n
}

// MakingUpFor reports whether that is so for a live subscription.
func (b *Backfill) MakingUpFor(sub string) bool {
	return slices.ContainsFunc(b.batches, func(batch *batch) bool { return batch.sub == sub && sub != "" })
}

// Judging reports whether events that had no verdict are being asked for again.
func (b *Backfill) Judging() bool {
	return slices.ContainsFunc(b.batches, func(batch *batch) bool { return batch.cause.Unjudged })
}

// Working reports whether anything is pending.
func (b *Backfill) Working() bool { return slices.ContainsFunc(b.batches, (*batch).pending) }

// Incomplete reports whether a batch has failed and has not come to its end since.
func (b *Backfill) Incomplete() bool {
	return slices.ContainsFunc(b.batches, func(batch *batch) bool { return !batch.pending() })
}

// Open counts the requests that are open at the relay.
func (b *Backfill) Open() int { return len(b.open) }

// Find returns the open request of that name; nil: there is none.
func (b *Backfill) Find(name string) *Request { return b.open[name] }

// Pending reports whether batches that the diff has found are pending.
func (b *Backfill) Pending() bool {
	return slices.ContainsFunc(b.batches, func(batch *batch) bool { return batch.found() && batch.pending() })
}
