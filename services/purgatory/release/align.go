package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/repository"
)

// maxFollowers bounds the repositories that are brought in line with a state in one go besides the
// first: a crowd may name somebody popular as its maintainer, but others need not wait for it.
const maxFollowers = 16

// maxNamed bounds the references below refs/nostr/ that are set in one go: a pull request may be
// for thousands of repositories, and each costs a git process.
const maxNamed = 64

// maxMade bounds the repositories that are made in one go: each costs the disk a dozen writes, and
// the push of an owner waits meanwhile, whoever else has announced the identifier. A client that
// asks for one is not kept waiting for it.
const maxMade = 16

// settlement is one identifier while it is settled.
type settlement struct {
	*Releaser
	d     dossier.Dossier
	known *remembered
	stock *inventory

	applied map[string]dossier.State   // owner → the state that counts there
	moved   int                        // repositories whose references were set
	made    int                        // repositories that were not there
	named   int                        // references below refs/nostr/ that were set
	waiting map[string]map[string]bool // owner → references whose event is not known
	failed  map[string]error           // owner → what went wrong in the owner's repository
	again   time.Time
	unfit   []Unfit
	owed    []string
	commits map[string][]string // pullCommits, once they were asked for

	offered  map[string]bool // ids of held events whose commit is in a contributor's repository
	restless map[string]time.Time
}

func (r *Releaser) begin(d dossier.Dossier) *settlement {
	s := &settlement{Releaser: r, d: d, known: r.memory.of(d.Identifier), failed: map[string]error{}, waiting: map[string]map[string]bool{}}
	s.stock = &inventory{repos: map[string]*repository.Repo{}, has: map[string]map[string]bool{}, concerns: s.concerns}
	return s
}

// without goes on as if some events had never been.
func (s *settlement) without(ids []string) { s.d, s.commits = s.d.Without(ids...), nil }

// fail notes what went wrong in an owner's repository. The others go on.
func (s *settlement) fail(owner string, err error) {
	if s.failed[owner] == nil {
		s.failed[owner] = err
	}
}

func (s *settlement) err() error {
	var all []error
	for _, key := range s.everywhere() {
		all = append(all, s.failed[key])
	}
	return errors.Join(all...)
}

// soon asks to be settled again at a time.
func (s *settlement) soon(at time.Time) {
	if s.again.IsZero() || at.Before(s.again) {
		s.again = at
	}
}

// order is that in which owners come: those who have signed states first, those who only announce
// to have a part in it last.
func (s *settlement) order() []string {
	rank := map[string]int{}
	for _, state := range s.d.States {
		rank[state.Event.PubKey] -= 2
	}
	for _, a := range s.d.Announcements {
		if !a.Held {
			rank[a.Ref.PubKey]--
		}
	}
	order := slices.Clone(s.d.Hosted())
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(max(rank[a], -3), max(rank[b], -3)) })
	return order
}

// align makes references what the states and pull requests say, and gives the events that are ready
// to be released, in the order of their release, and the states that have lost.
func (s *settlement) align(ctx context.Context) (ready []*nostr.Event, lost []dossier.State) {
	s.again, s.applied, s.owed = time.Time{}, map[string]dossier.State{}, nil
	s.moved, s.made, s.named = 0, 0, 0
	owners := s.order()
	for _, owner := range owners {
		if err := s.open(ctx, owner); err != nil {
			s.fail(owner, err)
		}
	}
	s.alignContributions(ctx)
	for _, owner := range owners {
		if err := s.alignStates(ctx, owner); err != nil {
			s.fail(owner, err)
		}
	}
	prs := s.alignPullRequests(ctx)
	for _, owner := range owners {
		if err := s.checkTips(ctx, owner); err != nil {
			s.fail(owner, err)
		}
	}
	ready = s.announcements(ctx)
	ready = append(ready, s.states(ready)...)
	return append(ready, prs...), s.d.Superseded(s.applied)
}

// open makes an owner's repository if it is not there, and sweeps it up the first time. Beyond
// maxMade that is for the next time, which is soon.
func (s *settlement) open(ctx context.Context, owner string) error {
	repo, err := s.Store.Repo(nostr.RepoRef{PubKey: owner, Identifier: s.d.Identifier})
	if err != nil {
		return err
	}
	there := repo.Exists()
	if !there && s.made == maxMade {
		s.soon(time.Now())
		return nil
	}
	if !s.known.swept[owner] || !there {
		if !there {
			s.made++
		}
		s.forget(owner)
		if err := repo.Ensure(ctx); err != nil {
			return fmt.Errorf("%s: %w", repo.Ref(), err)
		}
		if err := repo.SweepPushes(); err != nil { // whoever settles has the lock, and so nobody pushes
			return fmt.Errorf("%s: %w", repo.Ref(), err)
		}
		s.known.swept[owner] = true
	}
	if err := repo.SetArchive(s.d.IsArchived(owner)); err != nil {
		return err
	}
	s.stock.repos[owner] = repo
	return nil
}

// forget is for a repository that is not as it was remembered.
func (s *settlement) forget(owner string) { s.known.forget(owner) }

// announcements are the held ones whose repository has data.
func (s *settlement) announcements(ctx context.Context) (ready []*nostr.Event) {
	for _, a := range s.d.Announcements {
		if !a.Held || a.Silent || s.stock.repos[a.Ref.PubKey] == nil || !s.d.Hosts(a.Ref.PubKey) {
			continue
		}
		has, err := s.hasData(ctx, a.Ref.PubKey)
		if err != nil {
			s.fail(a.Ref.PubKey, err)
		}
		if has {
			ready = append(ready, a.Event)
		}
	}
	return ready
}

// hasData reports whether an owner's repository has any object that a state of its maintainers or a
// pull request names. What was pushed for an event that has not come is no data.
func (s *settlement) hasData(ctx context.Context, owner string) (bool, error) {
	if has, err := s.stock.repos[owner].HasData(ctx); !has || err != nil {
		return false, err
	}
	var named []string
	for _, pr := range s.d.PullRequests {
		if slices.Contains(s.d.Tagged(pr), owner) {
			named = append(named, pr.Commit)
		}
	}
	for _, state := range s.d.StatesFor(owner) {
		named = append(named, state.Objects()...)
	}
	missing, err := s.stock.missing(ctx, owner, named)
	return len(missing) < len(named), err
}

// states are the held ones that count in some repository whose announcement is accepted, or leaves
// with them. A state that names no objects is complete at once, and would otherwise be served
// though nothing of its repository ever came.
func (s *settlement) states(leaving []*nostr.Event) (ready []*nostr.Event) {
	served := map[string]bool{}
	for _, a := range s.d.Announcements {
		if !a.Held || slices.Contains(leaving, a.Event) {
			served[a.Ref.PubKey] = true
		}
	}
	counts := map[string]bool{}
	for owner, state := range s.applied {
		counts[state.Event.ID] = counts[state.Event.ID] || served[owner]
	}
	for _, state := range s.d.States {
		if state.Held && counts[state.Event.ID] {
			ready = append(ready, state.Event)
		}
	}
	return ready
}

// alignStates applies to an owner's repository the state that counts there: the newest by somebody
// who speaks for it whose objects are all there, after they were brought together from the
// other repositories for which its author speaks. A state that no repository can have, whatever
// data comes, counts nowhere.
func (s *settlement) alignStates(ctx context.Context, owner string) error {
	repo, before := s.stock.repos[owner], s.known.aligned[owner]
	if repo == nil {
		return nil
	}
	for _, state := range s.d.StatesFor(owner) {
		id := state.Event.ID
		if s.known.unfit[id] {
			continue
		}
		if before.state != id {
			complete, err := s.gather(ctx, owner, s.d.OwnersFor(state.Event.PubKey), state.Objects())
			if err != nil {
				return err
			}
			if !complete {
				continue
			}
			if s.moved > maxFollowers {
				s.soon(time.Now())
				return nil
			}
			s.moved++
			s.forget(owner) // until it is done
			_, err = repo.SetRefs(ctx, state.Refs, state.Symbolic, state.Head)
			if s.isBroken(err) {
				continue
			}
			if errors.Is(err, repository.ErrUnfit) {
				s.Log.Warn("a state cannot be applied", "repository", repo.Ref(), "event", id, "error", err)
				s.known.unfit[id] = true
				s.unfit = append(s.unfit, Unfit{State: state.Event, Owner: owner, Err: err})
				continue
			}
			if err != nil {
				return fmt.Errorf("apply state %s to %s: %w", id, repo.Ref(), err)
			}
		}
		s.known.aligned[owner] = aligned{state: id, held: state.Held}
		s.applied[owner] = state
		return nil
	}
	if before.state == "" || !before.held {
		return nil
	}
	// What these references stand on was never accepted, and nothing else counts.
	if _, err := repo.SetRefs(ctx, nil, nil, ""); err != nil {
		return fmt.Errorf("take back state %s from %s: %w", before.state, repo.Ref(), err)
	}
	s.forget(owner)
	return nil
}

// alignPullRequests names the commits of pull requests and updates that are there, in every
// repository that they are for, and returns those of the held ones that are complete.
func (s *settlement) alignPullRequests(ctx context.Context) (ready []*nostr.Event) {
	for _, pr := range s.d.PullRequests {
		owners := s.d.Tagged(pr)
		if !pr.Held {
			s.nameOwed(ctx, pr, owners)
			continue
		}
		if s.offered[pr.Event.ID] {
			s.mirror(ctx, pr, owners)
			ready = append(ready, pr.Event)
			continue
		}
		complete := len(owners) > 0
		for _, owner := range owners {
			there, err := s.hasCommit(ctx, owner, pr)
			if err != nil {
				s.fail(owner, err)
			}
			complete = complete && there
		}
		if !complete {
			continue
		}
		for _, owner := range owners {
			named, err := s.nameCommit(ctx, owner, pr)
			if err != nil {
				s.fail(owner, err)
			}
			complete = complete && named
		}
		if complete {
			ready = append(ready, pr.Event)
		}
	}
	return ready
}

func (s *settlement) hasCommit(ctx context.Context, owner string, pr dossier.PullRequest) (bool, error) {
	if s.stock.repos[owner] == nil {
		return false, nil
	}
	there, err := s.gather(ctx, owner, s.sources(pr), []string{pr.Commit})
	if there || err != nil || !s.fromElsewhere(ctx, owner, pr) {
		return there, err
	}
	return s.gather(ctx, owner, s.sources(pr), []string{pr.Commit})
}

// gather is inventory.gather. What is there but not whole counts as not there.
func (s *settlement) gather(ctx context.Context, owner string, sources, objects []string) (complete bool, err error) {
	complete, err = s.stock.gather(ctx, owner, sources, objects)
	if s.isBroken(err) {
		return false, nil
	}
	return complete, err
}

// isBroken reports whether an error is that of objects that are there but not whole.
func (s *settlement) isBroken(err error) bool {
	broken := errors.Is(err, repository.ErrBroken)
	if broken {
		s.Log.Warn("git data is there in part only", "identifier", s.d.Identifier, "error", err)
	}
	return broken
}

// nameCommit names the commit of a pull request in an owner's repository, and reports whether it is
// named there then. Beyond maxNamed that is for the next time, which is soon.
func (s *settlement) nameCommit(ctx context.Context, owner string, pr dossier.PullRequest) (named bool, err error) {
	repo := s.stock.repos[owner]
	delete(s.known.tidy, owner)
	if repo.IsNamed(prefixNostr+pr.Event.ID, pr.Commit) {
		return true, nil
	}
	if s.named == maxNamed {
		s.soon(time.Now())
		return false, nil
	}
	s.named++
	err = repo.SetRef(ctx, prefixNostr+pr.Event.ID, pr.Commit)
	if s.isBroken(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("name the commit of %s in %s: %w", pr.Event.ID, repo.Ref(), err)
	}
	return true, nil
}
