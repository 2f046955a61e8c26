// Package release brings repositories of one identifier in line with its events and hands what that
// satisfied to ingest: references follow the newest state whose objects are there; announcements,
// states and pull requests leave purgatory.
//
// Anybody may announce an identifier. So only the repositories that the caller names are touched,
// errors stay with the repository that they are of, and each repository is asked at most once for
// the objects that concern it. Where nothing changed no git is started.
package release

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// rounds bounds how often the repositories are aligned again because ingest refused what was
// aligned.
const rounds = 5

// Offerer takes candidates; *candidates.Sender is one.
type Offerer interface {
	Offer(ctx context.Context, c candidates.Candidate) error
}

// Releaser releases. Calls for one repository must not overlap.
type Releaser struct {
	Store   *repository.Store
	Offerer Offerer
	Events  Events
	// Hold is how long a reference waits for the event that it is named for.
	Hold time.Duration
	// Later asks for a look at a repository though nothing happens.
	Later func(at repository.Place, when time.Time)
	Log   *slog.Logger

	// brought are commits that a fetch brought for pull requests, and that no reference names yet.
	brought sync.Map // broughtCommit → nil

	// Tips are the events for which references below refs/nostr/ are named in the repositories of which
	// all of these were looked at.
	Tips repository.Mentions
}

// Finder finds an event.
type Finder interface {
	// Accepted returns an accepted event, Held one that is held; nil: there is none.
	Accepted(ctx context.Context, id string) (*nostr.Event, error)
	Held(id string) *nostr.Event
}

// Events are all accepted ones, and those that are held for any identifier.
type Events interface {
	// CatchUp waits until the answers have everything that is committed now.
	CatchUp(ctx context.Context) error
	Finder
	// Unknown returns the ids of events that are neither accepted nor held.
	Unknown(ctx context.Context, ids []string) ([]string, error)
	// Repos returns what a pull request or update is for; of an update also what its pull request is
	// for.
	Repos(ctx context.Context, pr *nostr.PullRequest) ([]nostr.RepoRef, error)
	// Paid copies into a repository at most what an author may still store, for whom it counts. Where
	// that is nothing, or too little, nothing is copied.
	Paid(ctx context.Context, into *repository.Locked, author string, served bool, copy func(most int64) error) error
	// StateDeleted reports whether the author of the state that a repository's references follow has
	// deleted it. confirmed are the maintainers of the repository.
	StateDeleted(ctx context.Context, at repository.Place, confirmed []string) (bool, error)
	// Followed is the accepted state that a repository's references followed when they were last noted
	// to follow one; nil: there is none.
	Followed(ctx context.Context, at repository.Place) (*nostr.Event, error)
	// PullsBy are the ids of the accepted pull requests and updates of an author.
	PullsBy(ctx context.Context, author string) iter.Seq2[string, error]
	// Hosts reports whether a repository of any identifier is hosted now.
	Hosts(ctx context.Context, ref nostr.RepoRef) (bool, error)
}

// broughtCommit is a commit that came into a repository for the pull requests of an author.
type broughtCommit struct {
	repository.Place
	author, commit string
}

// Brought hears that a fetch has brought commits for an author's pull requests into a repository.
// Until a reference names them, nothing else tells them from what only lies there. For others they
// do not count: the owner may have removed them meanwhile. A worker that takes over fetches them
// again.
func (r *Releaser) Brought(at repository.Place, author string, commits []string) {
	for _, id := range commits {
		r.brought.Store(broughtCommit{at, author, id}, nil)
	}
}

// Forget forgets the repositories that which picks: they are removed, or another worker's.
func (r *Releaser) Forget(which func(repository.Place) bool) {
	r.Tips.Drop(which)
	for of := range r.brought.Range {
		if which(of.(broughtCommit).Place) {
			r.brought.Delete(of)
		}
	}
}

// Counts reports whether the commit of a pull request is in a repository as its data: a reference
// reaches it, or a fetch brought it for its author. What only lies there may be what the owner has
// removed.
func (r *Releaser) Counts(ctx context.Context, repo *repository.Repo, pr repostate.PullRequest) (bool, error) {
	if _, brought := r.brought.Load(broughtCommit{repo.Place, pr.Event.PubKey, pr.Commit}); brought {
		return true, nil
	}
	unreached, err := repo.Unreached(ctx, []string{pr.Commit})
	return err == nil && len(unreached) == 0, err
}

// Result is what came of a call of Release.
type Result struct {
	Released []*nostr.Event // accepted now
	// Applied are the states that the repositories of owners follow now.
	Applied map[string]repostate.State
	Owed    []string // ids of accepted pull requests whose commits are not named everywhere yet
	Seq     uint64   // of the log; what was released is visible in projections that have reached it
}

// Release aligns repositories of an identifier and releases what is complete. Only those in scope
// are changed. It may be called at any time and again; an error leaves nothing behind that a later
// call does not put right. The result counts beside an error too, which is of some repositories and
// does not hold up the others.
//
// References are made, and are on disk, before ingest is asked to accept their events: in the other
// order a crash could leave an event served without its git data.
func (r *Releaser) Release(ctx context.Context, v repostate.View, scope []*repository.Locked, look Look) (out Result,
	err error) {
	p := &pass{Releaser: r, v: v, out: &out, look: look, crowd: r.Crowd(), repos: map[string]*repository.Repo{},
		locked: map[string]*repository.Locked{}, has: map[string]map[string]bool{}, trial: map[string]bool{}}
	for range rounds {
		out.Owed = nil
		ready := p.align(ctx, scope)
		refused, err := r.commit(ctx, ready, &out)
		if err != nil || len(refused) == 0 {
			out.Applied = p.applied
			return out, errors.Join(p.failed, err)
		}
		// What ingest refused does not count, and the repositories must not look as if it did.
		p.v, p.commits = p.v.Without(refused...), nil
	}
	return out, fmt.Errorf("release %q: still refused after %d rounds", v.Identifier, rounds)
}

// commit asks ingest to accept what is ready, waits for its verdicts, and gives the ids that were
// refused. With a state ingest drops the older ones of its author that are held.
func (r *Releaser) commit(ctx context.Context, ready []*nostr.Event, out *Result) (refused []string, err error) {
	verdicts, err := Ask(ctx, r.Offerer, proto.ActionRelease, "", ready...)
	for i, v := range verdicts {
		ev := ready[i]
		out.Seq = max(out.Seq, v.Seq)
		served, err := r.served(ctx, ev, v)
		if err != nil {
			return nil, err
		}
		if served {
			out.Released = append(out.Released, ev)
			continue
		}
		r.Log.Warn("ingest refused a release", "event", ev.ID, "kind", ev.Kind, "outcome", v.Outcome, "reason", v.Message)
		refused = append(refused, ev.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("release: %w", err)
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
	if err := r.Events.CatchUp(ctx); err != nil {
		return false, err
	}
	have, err := r.Events.Accepted(ctx, ev.ID)
	return have != nil, err
}

// Ask asks ingest for an action on events, and waits for the verdicts on all of them, in their
// order.
func Ask(ctx context.Context, to Offerer, action proto.Action, reason string, events ...*nostr.Event) ([]proto.Verdict,
	error) {
	verdicts := make([]proto.Verdict, len(events))
	answers := make(chan error, len(events))
	for i, ev := range events {
		c := candidates.Candidate{Event: ev, Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: action,
			Reason: reason}
		c.Done = func(v proto.Verdict, err error) {
			verdicts[i] = v
			answers <- err
		}
		if err := to.Offer(ctx, c); err != nil {
			return nil, fmt.Errorf("offer %s: %w", ev.ID, err)
		}
	}
	for range events {
		select {
		case err := <-answers:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return verdicts, nil
}
