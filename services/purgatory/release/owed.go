package release

import (
	"context"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/repository"
)

// nameOwed names the commit of an accepted pull request or update in those of its repositories
// where it is and is not named yet.
func (s *settlement) nameOwed(ctx context.Context, pr dossier.PullRequest, owners []string) {
	named := 0
	for _, owner := range owners {
		is, err := s.isNamed(ctx, owner, pr)
		if err == nil && !is {
			if is, err = s.hasCommit(ctx, owner, pr); err == nil && is {
				is, err = s.nameCommit(ctx, owner, pr)
			}
		}
		if err != nil {
			s.fail(owner, err)
		} else if is {
			named++
		}
	}
	if named < len(owners) {
		s.owed = append(s.owed, pr.Event.ID)
	}
}

func (s *settlement) isNamed(ctx context.Context, owner string, pr dossier.PullRequest) (bool, error) {
	repo := s.stock.repos[owner]
	if repo == nil {
		return false, nil
	}
	if repo.IsNamed(prefixNostr+pr.Event.ID, pr.Commit) {
		return true, nil
	}
	tips, err := readTips(ctx, repo)
	return tips[pr.Event.ID].commit == pr.Commit, err
}

// Tips are the commits that references under refs/nostr/ of a repository name, by event id. A
// repository that is not there has none.
func Tips(ctx context.Context, repo *repository.Repo) (map[string]string, error) {
	if !repo.Exists() {
		return nil, nil
	}
	tips, err := readTips(ctx, repo)
	commits := make(map[string]string, len(tips))
	for event, tip := range tips {
		commits[event] = tip.commit
	}
	return commits, err
}

// elsewhere are the places besides repositories of the identifier where the commit of a pull
// request may be.
func elsewhere(pr dossier.PullRequest) (places []repository.Place) {
	for _, ref := range pr.Elsewhere {
		places = append(places, repository.Place{RepoRef: ref})
	}
	for _, identifier := range pr.Offered {
		ref := nostr.RepoRef{PubKey: pr.Event.PubKey, Identifier: identifier}
		places = append(places, repository.Place{RepoRef: ref, PRs: true})
	}
	return places
}

// fromElsewhere copies the commit of a pull request from a repository of another identifier that it
// is for too, or in which its author offers it, if it is in one. That may be another worker's, and
// may change or go at any time: what cannot be read there is not there.
func (s *settlement) fromElsewhere(ctx context.Context, owner string, pr dossier.PullRequest) (came bool) {
	into := s.stock.repos[owner]
	for _, at := range elsewhere(pr) {
		from, err := s.Store.At(at)
		if err != nil || !from.Exists() {
			continue
		}
		if missing, err := from.Missing(ctx, []string{pr.Commit}); err != nil || len(missing) > 0 {
			continue
		}
		if err := into.Share(ctx, from, []string{pr.Commit}); err != nil {
			s.Log.Debug("a commit could not be copied", "from", at, "to", nostr.RepoRef{PubKey: owner, Identifier: s.d.Identifier}, "error", err)
			continue
		}
		s.stock.has[owner][pr.Commit] = true
		return true
	}
	return false
}
