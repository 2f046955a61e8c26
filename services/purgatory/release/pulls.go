package release

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// alignPullRequests names the commits of pull requests and updates that are there, in every
// repository that they are for and that may be changed, and returns those of the held ones that are
// named in one that they name themselves. The others follow: any number of strangers may announce
// repositories that list the same owner.
func (p *pass) alignPullRequests(ctx context.Context) (ready []*nostr.Event) {
	for _, pr := range p.v.PullRequests {
		tagged, direct := p.v.Tagged(pr), p.v.Named(pr)
		offered := p.offered[pr.Event.ID]
		if pr.Held && !offered && !slices.ContainsFunc(tagged, func(owner string) bool {
			return slices.Contains(p.owners,
				owner)
		}) {
			continue
		}
		everywhere, released := true, offered // what is offered by its author waits for no announced repository
		for _, owner := range inOrder(tagged, direct) {
			if p.v.Holds(owner) && !slices.Contains(p.owners, owner) {
				continue
			}
			full, err := p.isFull(ctx, owner, pr)
			if full || err != nil {
				p.note(p.place(owner), err)
				continue
			}
			named, err := p.nameCommit(ctx, owner, pr)
			p.note(p.place(owner), err)
			everywhere = everywhere && (named || p.v.Holds(owner))
			released = released || named && p.v.Releases(pr, owner)
		}
		switch {
		case !pr.Held && !everywhere:
			p.out.Owed = append(p.out.Owed, pr.Event.ID)
		case pr.Held && released:
			ready = append(ready, pr.Event)
		}
	}
	return ready
}

// inOrder are some owners, those of first before the others.
func inOrder(owners, first []string) []string {
	others := slices.DeleteFunc(slices.Clone(owners), func(owner string) bool { return slices.Contains(first, owner) })
	return slices.Concat(first, others)
}

// nameCommit names the commit of a pull request in an owner's repository, if that may be changed,
// and reports whether it is named there then. Beyond maxNamed that is for the next time. A commit
// that is copied, with any history, counts for the author of the pull request where that names the
// repository, else for its owner: it was the owner's wish that others' pull requests come here.
func (p *pass) nameCommit(ctx context.Context, owner string, pr repostate.PullRequest) (named bool, err error) {
	name, repo := repostate.PrefixNostr+pr.Event.ID, p.repo(owner)
	named = repo != nil && repo.IsNamed(name, pr.Commit)
	if named || repo == nil || !slices.Contains(p.owners, owner) {
		return named, nil
	}
	into := p.locked[owner]
	if into == nil {
		return false, nil
	}
	missing, err := p.missing(ctx, owner, []string{pr.Commit})
	there := false
	if lies := err == nil && len(missing) == 0; lies {
		if there, err = p.Counts(ctx, repo, pr); err == nil && !there {
			there, err = p.countsElsewhere(ctx, owner, pr)
		}
	} else if err == nil {
		payer := owner
		if slices.Contains(p.v.Named(pr), owner) {
			payer = pr.Event.PubKey
		}
		err = p.Events.Paid(ctx, into, payer, p.v.Serves(payer), func(most int64) (err error) {
			var from []string
			if from, err = p.pullSources(ctx, owner, pr); err == nil {
				there, err = p.gather(ctx, owner, from, missing, most)
			}
			if err == nil && !there {
				there, err = p.fromElsewhere(ctx, owner, pr, most)
			}
			return err
		})
	}
	if !there || err != nil {
		return false, err
	}
	if p.named == maxNamed {
		p.Later(repo.Place, time.Now())
		return false, nil
	}
	p.named++
	p.crowd.Add(repo.Place, pr.Event.PubKey)
	p.namedNow[repo.Place] = append(p.namedNow[repo.Place], pr.Event.ID)
	err = into.SetRef(ctx, name, pr.Commit)
	if err == nil {
		p.brought.Delete(broughtCommit{repo.Place, pr.Event.PubKey, pr.Commit})
	}
	if p.isBroken(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("name the commit of %s: %w", pr.Event.ID, err)
	}
	return true, nil
}

// pullSources are the owners of other repositories in which the commit of a pull request counts, of
// those that it is for and those for whom its author speaks.
func (p *pass) pullSources(ctx context.Context, owner string, pr repostate.PullRequest) (sources []string, err error) {
	tagged := p.v.Tagged(pr)
	for _, source := range slices.Concat(tagged[:min(len(tagged), maxSources)], p.sources(pr.Event.PubKey)) {
		repo := p.repo(source)
		if source == owner || repo == nil || slices.Contains(sources, source) {
			continue
		}
		missing, err := p.missing(ctx, source, []string{pr.Commit})
		if err != nil {
			return nil, err
		}
		if len(missing) > 0 {
			continue
		}
		counts, err := p.Counts(ctx, repo, pr)
		if err != nil {
			return nil, err
		}
		if counts {
			sources = append(sources, source)
		}
	}
	return sources, nil
}

// countsElsewhere reports whether the commit of a pull request, which lies in an owner's
// repository, counts in another one from which it would be copied.
func (p *pass) countsElsewhere(ctx context.Context, owner string, pr repostate.PullRequest) (bool, error) {
	sources, err := p.pullSources(ctx, owner, pr)
	if err != nil || len(sources) > 0 {
		return err == nil, err
	}
	return p.fromElsewhere(ctx, owner, pr, 0)
}

// fromElsewhere copies the commit of a pull request from a repository of another identifier that it
// is for too, or in which its author offers it, if it is named there. That may be another worker's,
// and may change or go at any time: what cannot be read there is not there. most bounds the bytes, as
// in Copy.
func (p *pass) fromElsewhere(ctx context.Context, owner string, pr repostate.PullRequest, most int64) (came bool,
	err error) {
	var places []repository.Place
	for _, ref := range pr.Repos {
		places = append(places, repository.Place{RepoRef: ref})
	}
	for _, identifier := range pr.Offered {
		places = append(places, repository.Place{RepoRef: nostr.RepoRef{PubKey: pr.Event.PubKey, Identifier: identifier},
			PRs: true})
	}
	for _, at := range places {
		from, err := p.Store.At(at)
		if err != nil || at == p.place(owner) || !from.IsNamed(repostate.PrefixNostr+pr.Event.ID, pr.Commit) {
			continue
		}
		hosted := at.PRs
		if !hosted {
			hosted, err = p.Events.Hosts(ctx, at.RepoRef)
		}
		if hosted && err == nil {
			err = p.locked[owner].Copy(ctx, from, []string{pr.Commit}, most)
		}
		if _, limited := repository.LimitReached(err); limited {
			return false, err
		}
		if !hosted || err != nil {
			p.Log.Debug("a commit could not be copied", "from", at, "to", p.place(owner), "error", err)
			continue
		}
		p.has[owner][pr.Commit] = true
		return true, nil
	}
	return false, nil
}

// alignContribution looks at the repository in which a contributor offers pull requests of the
// identifier (GRASP-06). What does not match its event goes, and so does a repository without any
// reference; the commit of a held event that matches is offered to the announced repositories.
func (p *pass) alignContribution(ctx context.Context, repo *repository.Locked) error {
	if !repo.Exists() {
		return nil
	}
	if err := repo.Sweep(); err != nil {
		return err
	}
	left, err := p.checkTips(ctx, repo, func(ev *nostr.Event, commit string) error {
		return repostate.CheckContribution(ev, repo.RepoRef, commit, p.v.Domain)
	})
	for _, pr := range p.v.PullRequests {
		p.offered[pr.Event.ID] = p.offered[pr.Event.ID] || pr.Held && slices.Contains(left, pr.Event.ID)
	}
	if err != nil || len(left) > 0 {
		return err
	}
	if err := repo.Remove(ctx); err != nil {
		return err
	}
	p.Log.Info("a contributor's repository without a pull request is removed", "repository", repo.Place)
	return nil
}

// Find returns an event that is known, held or accepted, or nil.
func Find(ctx context.Context, from Finder, id string) (*nostr.Event, error) {
	if ev := from.Held(id); ev != nil || !nostr.IsHex64(id) {
		return ev, nil
	}
	return from.Accepted(ctx, id)
}
