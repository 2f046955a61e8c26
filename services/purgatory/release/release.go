// Package release brings the repositories of one identifier in line with what is known of it, and
// hands what that satisfied to ingest: references follow the newest state whose objects are there,
// in every repository that its author speaks for; announcements, states and pull requests leave
// purgatory.
//
// Anybody may announce an identifier, so that what is done for one owner must neither fail nor grow
// expensive because of others: errors stay with the repository that they are of, each repository is
// asked at most once for the objects that concern it, and one whose references are known to be
// right is not asked at all.
package release

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/repository"
)

// Superseded is the reason by which a held state goes that a newer one has overtaken.
const Superseded = "superseded"

// rounds bounds how often the repositories are aligned anew because ingest refused what was
// aligned.
const rounds = 5

// Offerer takes candidates; *candidates.Sender is one.
type Offerer interface {
	Offer(ctx context.Context, c candidates.Candidate) error
}

// Releaser settles identifiers. Calls for one identifier must not overlap.
type Releaser struct {
	Store   *repository.Store
	Offerer Offerer
	// Accepted returns an accepted event, or nil.
	Accepted func(eventID string) (*nostr.Event, error)
	// Held returns an event that is held, for whatever identifier, or nil.
	Held func(eventID string) (*nostr.Event, error)
	// CatchUp waits until Accepted answers for everything that is committed now.
	CatchUp func(ctx context.Context) error
	// Hold is how long a reference waits for the event that it is named for.
	Hold time.Duration
	// Arrived is called when a reference does not wait for its event any more: that has come, or
	// the reference has gone. nil: nobody wants to know.
	Arrived func(at repository.Place, event string)
	Log     *slog.Logger

	memory memory
}

// Settled is what came of settling an identifier.
type Settled struct {
	Released []*nostr.Event // accepted now
	Expired  []*nostr.Event // superseded by what was released
	Unfit    []Unfit        // found now; each is told once, until it is forgotten
	Owed     []string       // accepted pull requests whose commit is not named everywhere yet
	// Restless are contributors in whose repositories something waits for its event, and when they
	// must be looked at though nothing happens.
	Restless map[string]time.Time
	Seq      uint64 // of the log; what was released is visible in projections that have reached it
	// Again is when to settle again though nothing happens: a reference that waits for its event
	// has waited long enough then, or there is more to copy than was copied at once. Zero: never.
	Again time.Time
}

// Unfit is a state that no repository can have, whatever data comes: it waits until its time is
// over.
type Unfit struct {
	State *nostr.Event
	Owner string // of the repository in which that was found
	Err   error  // why; repository.ErrUnfit
}

// Settle aligns the repositories of an identifier and releases what is complete. It may be called
// at any time and again; an error leaves nothing behind that a later call does not put right. What
// came of it counts beside an error too: that is of some repositories, and does not hold up the
// others.
func (r *Releaser) Settle(ctx context.Context, d dossier.Dossier) (Settled, error) {
	var out Settled
	s := r.begin(d)
	for range rounds {
		ready, lost := s.align(ctx)
		out.Again, out.Unfit, out.Owed, out.Restless = s.again, s.unfit, s.owed, s.restless
		refused, err := r.commit(ctx, ready, lost, &out)
		if err != nil || len(refused) == 0 {
			return out, errors.Join(err, s.err())
		}
		// What ingest refused does not count, and the repositories must not look as if it did.
		s.without(refused)
	}
	return out, fmt.Errorf("settle %q: still refused after %d rounds", d.Identifier, rounds)
}

// commit asks ingest to accept what is ready and to drop what has lost, waits for its verdicts, and
// gives the ids that were refused.
func (r *Releaser) commit(ctx context.Context, ready []*nostr.Event, lost []dossier.State, out *Settled) (refused []string, err error) {
	var asks []candidates.Candidate
	for _, ev := range ready {
		asks = append(asks, candidates.Candidate{Event: ev, Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: proto.ActionRelease})
	}
	for _, s := range lost {
		asks = append(asks, candidates.Candidate{Event: s.Event, Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: proto.ActionExpire, Reason: Superseded})
	}
	verdicts, err := Ask(ctx, r.Offerer, asks)
	if err != nil {
		return nil, fmt.Errorf("release: %w", err)
	}
	for i, v := range verdicts {
		ev := asks[i].Event
		out.Seq = max(out.Seq, v.Seq)
		if i >= len(ready) {
			out.Expired = append(out.Expired, ev)
			continue
		}
		served, err := r.served(ctx, ev, v)
		if err != nil {
			return nil, fmt.Errorf("release: %w", err)
		}
		if served {
			out.Released = append(out.Released, ev)
			continue
		}
		r.Log.Warn("ingest refused a release", "event", ev.ID, "kind", ev.Kind, "outcome", v.Outcome, "reason", v.Message)
		refused = append(refused, ev.ID)
	}
	return refused, nil
}

// served reports whether a release was accepted. One that was decided before, because its first
// verdict was lost on the way, is a duplicate; so is one in whose place something newer is, and
// only the log tells them apart.
func (r *Releaser) served(ctx context.Context, ev *nostr.Event, v proto.Verdict) (bool, error) {
	if v.Outcome != proto.Duplicate {
		return v.Outcome == proto.Accepted, nil
	}
	if err := r.CatchUp(ctx); err != nil {
		return false, err
	}
	have, err := r.Accepted(ev.ID)
	return have != nil, err
}

// Ask offers candidates and waits for the verdicts on all of them, in their order.
func Ask(ctx context.Context, to Offerer, asks []candidates.Candidate) ([]proto.Verdict, error) {
	type answer struct {
		i   int
		v   proto.Verdict
		err error
	}
	answers := make(chan answer, len(asks))
	for i, c := range asks {
		c.Done = func(v proto.Verdict, err error) { answers <- answer{i, v, err} }
		if err := to.Offer(ctx, c); err != nil {
			return nil, fmt.Errorf("offer %s: %w", c.Event.ID, err)
		}
	}
	verdicts := make([]proto.Verdict, len(asks))
	for range asks {
		select {
		case a := <-answers:
			if a.err != nil {
				return nil, fmt.Errorf("event %s: %w", asks[a.i].Event.ID, a.err)
			}
			verdicts[a.i] = a.v
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return verdicts, nil
}
