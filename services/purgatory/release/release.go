// Package release brings the repositories of one identifier in line with what is known of it, and hands what that satisfied to ingest: references
// follow the newest state whose objects are there, in every repository that its author speaks for; announcements, states and pull requests leave
// purgatory (spec/purgatory.md, Release).
package release

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/repository"
)

// Superseded is the reason by which a held state goes that a newer one has overtaken.
const Superseded = "superseded"

// prefixNostr is where the tips of pull requests lie.
const prefixNostr = "refs/nostr/"

// rounds bounds how often the repositories are aligned anew because ingest refused what was aligned.
const rounds = 5

// Offerer takes candidates; *candidates.Sender is one.
type Offerer interface {
	Offer(ctx context.Context, c candidates.Candidate) error
}

// Releaser settles identifiers. Calls for one identifier must not overlap.
type Releaser struct {
	Store   *repository.Store
	Offerer Offerer
	// Accepted gives an accepted event, or nil.
	Accepted func(eventID string) (*nostr.Event, error)
	// Hold is how long a reference waits for the event that it is named for.
	Hold time.Duration
	Log  *slog.Logger
}

// Settled is what came of settling an identifier.
type Settled struct {
	Released []*nostr.Event // accepted now
	Expired  []*nostr.Event // superseded by what was released
	Seq      uint64         // of the log; what was released is visible in projections that have reached it
	// Again is when a reference that waits for its event has waited long enough; zero: none waits.
	Again time.Time
}

// Settle aligns the repositories of an identifier and releases what is complete. It may be called at any time and again; an error leaves nothing
// behind that a later call does not put right.
func (r *Releaser) Settle(ctx context.Context, d dossier.Dossier) (Settled, error) {
	var out Settled
	for range rounds {
		repos, err := r.open(ctx, d)
		if err != nil {
			return out, err
		}
		ready, lost, err := r.align(ctx, d, repos)
		if err != nil {
			return out, err
		}
		if out.Again, err = r.checkTips(ctx, d, repos); err != nil {
			return out, err
		}
		refused, err := r.commit(ctx, ready, lost, &out)
		if err != nil || len(refused) == 0 {
			return out, err
		}
		// What ingest refused does not count, and the repositories must not look as if it did.
		for _, id := range refused {
			d = d.Without(id)
		}
	}
	return out, fmt.Errorf("settle %q: still refused after %d rounds", d.Identifier, rounds)
}

// repos are the hosted repositories of an identifier, by owner.
type repos map[string]*repository.Repo

func (r *Releaser) open(ctx context.Context, d dossier.Dossier) (repos, error) {
	all := repos{}
	for _, owner := range d.Hosted() {
		repo, err := r.Store.Repo(nip34.RepoRef{PubKey: owner, Identifier: d.Identifier})
		if err != nil {
			return nil, err
		}
		if err := repo.Ensure(ctx); err != nil {
			return nil, fmt.Errorf("make the repository of %s: %w", repo.Ref(), err)
		}
		all[owner] = repo
	}
	return all, nil
}

// align makes references what the states and pull requests say, and gives the events that are ready to be released, in the order of their release,
// and the states that have lost.
func (r *Releaser) align(ctx context.Context, d dossier.Dossier, all repos) (ready []*nostr.Event, lost []dossier.State, err error) {
	applied, err := r.alignStates(ctx, d, all)
	if err != nil {
		return nil, nil, err
	}
	prs, err := r.alignPullRequests(ctx, d, all)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range d.Announcements {
		if repo := all[a.Ref.PubKey]; a.Held && !a.Silent && repo != nil {
			has, err := repo.HasData(ctx)
			if err != nil {
				return nil, nil, err
			}
			if has {
				ready = append(ready, a.Event)
			}
		}
	}
	for _, s := range d.States {
		if s.Held && slices.ContainsFunc(d.Hosted(), func(owner string) bool { return applied[owner].State == s.State }) {
			ready = append(ready, s.Event)
		}
	}
	return append(ready, prs...), d.Superseded(applied), nil
}

// alignStates applies to every repository the state that counts there, and says which that is. A state that no repository can have, whatever data
// comes, counts nowhere.
func (r *Releaser) alignStates(ctx context.Context, d dossier.Dossier, all repos) (map[string]dossier.State, error) {
	applied := map[string]dossier.State{}
	for owner, repo := range all {
		for rest := d; ; {
			s, ok, err := r.stateFor(ctx, rest, owner, all)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			if _, err = repo.SetRefs(ctx, s.Refs, s.Symbolic, s.Head); err == nil {
				applied[owner] = s
				break
			}
			if !errors.Is(err, repository.ErrUnfit) {
				return nil, fmt.Errorf("apply state %s to %s: %w", s.Event.ID, repo.Ref(), err)
			}
			r.Log.Warn("a state cannot be applied", "repository", repo.Ref(), "event", s.Event.ID, "error", err)
			rest = rest.Without(s.Event.ID)
		}
	}
	return applied, nil
}

// stateFor finds the state that counts in an owner's repository, bringing objects together there on the way.
func (r *Releaser) stateFor(ctx context.Context, d dossier.Dossier, owner string, all repos) (s dossier.State, ok bool, err error) {
	s, ok = d.StateFor(owner, func(s dossier.State) bool {
		complete, failed := r.gather(ctx, all[owner], all, s.Objects())
		err = errors.Join(err, failed)
		return complete
	})
	return s, ok, err
}

// gather brings objects together in one repository from its siblings, and says whether all are there then.
func (r *Releaser) gather(ctx context.Context, into *repository.Repo, all repos, objects []string) (bool, error) {
	missing, err := into.Missing(ctx, objects)
	for _, sibling := range all {
		if err != nil || len(missing) == 0 {
			break
		}
		if sibling == into {
			continue
		}
		var absent []string
		if absent, err = sibling.Missing(ctx, missing); err != nil {
			break
		}
		tips := slices.DeleteFunc(slices.Clone(missing), func(id string) bool { return slices.Contains(absent, id) })
		if len(tips) == 0 {
			continue
		}
		if err = into.CopyFrom(ctx, sibling, tips); err != nil {
			err = fmt.Errorf("copy objects from %s to %s: %w", sibling.Ref(), into.Ref(), err)
			break
		}
		missing = absent
	}
	return len(missing) == 0, err
}

// alignPullRequests names the commits of held pull requests and updates that are there, in every repository that they are for.
func (r *Releaser) alignPullRequests(ctx context.Context, d dossier.Dossier, all repos) (ready []*nostr.Event, err error) {
	for _, pr := range d.PullRequests {
		owners := d.Tagged(pr)
		complete := len(owners) > 0
		for _, owner := range owners {
			there, err := r.gather(ctx, all[owner], all, []string{pr.Commit})
			if err != nil {
				return nil, err
			}
			complete = complete && there
		}
		if !complete {
			continue
		}
		for _, owner := range owners {
			if err := all[owner].SetRef(ctx, prefixNostr+pr.Event.ID, pr.Commit); err != nil {
				return nil, fmt.Errorf("name the commit of %s in %s: %w", pr.Event.ID, all[owner].Ref(), err)
			}
		}
		ready = append(ready, pr.Event)
	}
	return ready, nil
}

// checkTips removes references under refs/nostr/ that name another commit than their event does, or whose event has not come in time, and says
// when the next one will have waited too long.
func (r *Releaser) checkTips(ctx context.Context, d dossier.Dossier, all repos) (again time.Time, err error) {
	for _, repo := range all {
		refs, err := repo.Refs(ctx)
		if err != nil {
			return again, err
		}
		for name, id := range refs.ByName {
			event, is := strings.CutPrefix(name, prefixNostr)
			if !is {
				continue
			}
			commit, known, err := CommitOf(d, r.Accepted, event)
			if err != nil {
				return again, err
			}
			until := placedAt(repo, name).Add(r.Hold)
			switch {
			case known && commit == id:
				continue
			case !known && time.Now().Before(until):
				if again.IsZero() || until.Before(again) {
					again = until
				}
				continue
			}
			if err := repo.DeleteRef(ctx, name); err != nil {
				return again, fmt.Errorf("remove %s from %s: %w", name, repo.Ref(), err)
			}
			r.Log.Info("a pushed commit without its event is removed", "repository", repo.Ref(), "event", event, "event_known", known)
		}
	}
	return again, nil
}

// CommitOf says which commit an event names that is known as a pull request or an update, held or accepted.
func CommitOf(d dossier.Dossier, accepted func(id string) (*nostr.Event, error), id string) (commit string, known bool, err error) {
	for _, pr := range d.PullRequests {
		if pr.Event.ID == id {
			return pr.Commit, true, nil
		}
	}
	if !nip34.IsHex64(id) {
		return "", false, nil
	}
	ev, err := accepted(id)
	if ev == nil || err != nil {
		return "", false, err
	}
	pr, err := nip34.ParsePullRequest(ev)
	if err != nil {
		// An event of another kind names no commit, so that none may be pushed under its name.
		return "", true, nil
	}
	return pr.Commit, true, nil
}

// placedAt is when a reference was pushed: nothing here ever packs references, so that git's own file tells. What has no file is as old as can be.
func placedAt(repo *repository.Repo, name string) time.Time {
	info, err := os.Lstat(filepath.Join(repo.Path(), filepath.FromSlash(name)))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// commit asks ingest to accept what is ready and to drop what has lost, waits for its verdicts, and gives the ids that were refused.
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
		switch {
		case i >= len(ready):
			out.Expired = append(out.Expired, ev)
		case v.Outcome == proto.Accepted:
			out.Released = append(out.Released, ev)
		case v.Outcome == proto.Rejected:
			r.Log.Warn("ingest refused a release", "event", ev.ID, "kind", ev.Kind, "reason", v.Message)
			refused = append(refused, ev.ID)
		}
	}
	return refused, nil
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
