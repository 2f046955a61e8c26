package release

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/repository"
)

// keyOf tells a contributor's repository from an owner's of the same public key, where both are
// kept under one key.
func keyOf(contributor string) string { return "prs/" + contributor }

// everywhere is the keys of all repositories that are looked at: owners', then contributors'.
func (s *settlement) everywhere() []string {
	keys := s.order()
	for _, contributor := range s.d.Contributors {
		keys = append(keys, keyOf(contributor))
	}
	return keys
}

// alignContributions looks at the repositories in which contributors offer pull requests of the
// identifier (GRASP-06). What does not match its event goes, and so does a repository without any
// reference; the commit of a held event that matches is offered to the announced repositories.
func (s *settlement) alignContributions(ctx context.Context) {
	s.offered, s.restless = map[string]bool{}, map[string]time.Time{}
	for _, contributor := range s.d.Contributors {
		if err := s.alignContribution(ctx, contributor); err != nil {
			s.fail(keyOf(contributor), err)
			s.restless[contributor] = time.Now()
		}
	}
}

// alignContribution looks at one contributor's repository.
func (s *settlement) alignContribution(ctx context.Context, contributor string) error {
	key := keyOf(contributor)
	repo, err := s.openContribution(ctx, contributor)
	if err != nil || repo == nil {
		return err
	}
	tips, err := readTips(ctx, repo)
	if err != nil {
		return err
	}
	s.waiting[key] = map[string]bool{}
	left := 0
	for event, tip := range tips {
		fate, err := s.decideContribution(repo, event, tip)
		if err == nil {
			err = s.carryOut(ctx, repo, event, tip, fate)
		}
		if err != nil {
			return err
		}
		if fate.goes == "" {
			left++
		}
	}
	if err := s.arrive(key); err != nil || left > 0 {
		return err
	}
	delete(s.stock.repos, key)
	delete(s.known.swept, key)
	if err := repo.Remove(ctx); err != nil {
		return err
	}
	s.Log.Info("a contributor's repository without a pull request is removed", "repository", repo.Place())
	return nil
}

// openContribution returns a contributor's repository, swept up the first time; nil if it is not
// there.
func (s *settlement) openContribution(ctx context.Context, contributor string) (*repository.Repo, error) {
	key := keyOf(contributor)
	repo, err := s.Store.At(repository.Place{RepoRef: nostr.RepoRef{PubKey: contributor, Identifier: s.d.Identifier}, PRs: true})
	if err != nil {
		return nil, err
	}
	if !repo.Exists() {
		delete(s.known.swept, key)
		return nil, nil
	}
	if !s.known.swept[key] {
		if err := errors.Join(repo.Ensure(ctx), repo.SweepPushes()); err != nil {
			return nil, fmt.Errorf("%s: %w", repo.Place(), err)
		}
		s.known.swept[key] = true
	}
	s.stock.repos[key] = repo
	return repo, nil
}

// fate is what becomes of a reference in a contributor's repository.
type fate struct {
	goes    string // why it goes; empty: it stays
	waits   bool   // its event is not accepted yet
	matched bool   // its event is held for this identifier and names it
}

// decideContribution decides about one reference in a contributor's repository.
func (s *settlement) decideContribution(repo *repository.Repo, event string, tip tip) (fate, error) {
	ev, err := s.Accepted(event)
	accepted := ev != nil
	if ev == nil && err == nil {
		ev, err = s.Held(event)
	}
	switch {
	case err != nil:
		return fate{}, err
	case ev == nil && !time.Now().Before(tip.placed.Add(s.Hold)):
		return fate{goes: "its event has not come"}, nil
	case ev == nil:
		return fate{waits: true}, nil
	}
	if mismatch := dossier.CheckContribution(ev, repo.Ref(), tip.commit, s.d.Domain); mismatch != nil {
		return fate{goes: mismatch.Error()}, nil
	}
	here := slices.ContainsFunc(s.d.PullRequests, func(pr dossier.PullRequest) bool { return pr.Held && pr.Event.ID == event })
	return fate{waits: !accepted, matched: here}, nil
}

// carryOut does what was decided about a reference.
func (s *settlement) carryOut(ctx context.Context, repo *repository.Repo, event string, tip tip, f fate) error {
	name := prefixNostr + event
	switch {
	case f.goes != "":
		if err := repo.DeleteRef(ctx, name); err != nil {
			return fmt.Errorf("remove %s from %s: %w", name, repo.Place(), err)
		}
		s.Log.Info("a contributor's commit is removed", "repository", repo.Place(), "event", event, "reason", f.goes)
	case f.matched:
		s.offered[event] = true
	case f.waits:
		contributor := repo.Ref().PubKey
		s.waiting[keyOf(contributor)][name] = true
		until := tip.placed.Add(s.Hold)
		if now := time.Now(); until.Before(now) {
			until = now.Add(s.Hold) // its event is held for another identifier, by a clock of its own
		}
		if before, is := s.restless[contributor]; !is || until.Before(before) {
			s.restless[contributor] = until
		}
		s.soon(until)
	}
	return nil
}

// mirror names the commit of a pull request that is offered here in the announced repositories that
// it is for. What cannot be named now is named when the event is accepted, as in repositories of
// other identifiers: an announced repository does not hold up a contributor.
func (s *settlement) mirror(ctx context.Context, pr dossier.PullRequest, owners []string) {
	for _, owner := range owners {
		there, err := s.hasCommit(ctx, owner, pr)
		if err == nil && there {
			_, err = s.nameCommit(ctx, owner, pr)
		}
		if err != nil {
			s.fail(owner, err)
		}
	}
}
