package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

const prefixNostr = "refs/nostr/"

// identifier is what is accepted and held of one, and what is found of it.
type identifier struct {
	*checker
	name     string
	known    repostate.View
	problems []problem
	kept     []string // repositories that are not hosted and kept all the same, and why
}

// problem is a finding before it is told.
type problem struct {
	Finding
	mend func() error
}

func (i *identifier) problem(part string, repo *repository.Repo, text, mend string, do func() error) {
	i.problems = append(i.problems, problem{Finding{Part: part, What: repo.Ref().String(), Problem: text, Mend: mend}, do})
}

// know reads what is accepted and held of an identifier at this moment.
func (c *checker) know(ctx context.Context, name string) (*identifier, error) {
	if err := c.holdings.CatchUp(ctx); err != nil {
		return nil, fmt.Errorf("read what is held: %w", err)
	}
	var holding []proto.Held
	for _, e := range c.holdings.OfIdentifier(name) {
		holding = append(holding, e.Held)
	}
	if err := query.NewIndex(c.truth, c.Bus).CatchUp(ctx); err != nil {
		return nil, fmt.Errorf("read what is accepted: %w", err)
	}
	view := c.truth.View()
	defer view.Close()
	var accepted []*nostr.Event
	for ev, err := range view.Query(ctx, nostr.Filter{Kinds: []int{nostr.KindAnnouncement, nostr.KindState}, Tags: nostr.TagMap{"d": {name}}}) {
		if err != nil {
			return nil, err
		}
		accepted = append(accepted, ev)
	}
	return &identifier{checker: c, name: name, known: repostate.New(name, c.Rules, accepted, holding)}, nil
}

func (i *identifier) repo(owner string) (*repository.Repo, error) {
	return i.Store.Repo(nostr.RepoRef{PubKey: owner, Identifier: i.name})
}

// repositories checks those that are announced here.
func (i *identifier) repositories(ctx context.Context) error {
	for _, owner := range i.known.Hosted() {
		repo, err := i.repo(owner)
		if err != nil {
			return err
		}
		served := slices.ContainsFunc(i.known.Announcements, func(a repostate.Announcement) bool { return a.Ref.PubKey == owner && !a.Held })
		if !repo.Exists() && served {
			i.problem(PartDisk, repo, "it is announced and not on the disk", "it is made; its data must come from a back-up or a clone URL", func() error { return repo.Ensure(ctx) })
			if i.Repair {
				if err := repo.Ensure(ctx); err != nil { // its references are next
					return err
				}
			}
		}
		if !repo.Exists() {
			continue
		}
		if err := i.repository(ctx, owner, repo); err != nil {
			return fmt.Errorf("%s: %w", repo.Ref(), err)
		}
	}
	return nil
}

// repository checks one: what its references are, and its objects.
func (i *identifier) repository(ctx context.Context, owner string, repo *repository.Repo) error {
	refs, err := repo.Refs(ctx)
	if err != nil {
		i.problem(PartReferences, repo, "they cannot be read: "+err.Error(), "", nil)
		return ctx.Err()
	}
	if err := i.states(ctx, owner, repo, refs); err != nil {
		return err
	}
	if err := i.pullRequests(ctx, repo, refs); err != nil {
		return err
	}
	if i.WithoutFsck {
		return nil
	}
	text, err := fault(repo.Fsck(ctx))
	if text != "" {
		i.problem(PartObjects, repo, text, "", nil)
	}
	return err
}

// states holds branches and tags against the newest state that is accepted and whose objects are
// there. A newer one that is held and complete may have been applied already.
func (i *identifier) states(ctx context.Context, owner string, repo *repository.Repo, refs repository.Refs) error {
	gone := false
	for _, s := range i.known.StatesFor(owner) {
		missing, err := repo.Missing(ctx, s.Objects())
		switch {
		case err != nil:
			return err
		case len(missing) == 0 && agrees(s, refs):
			return nil
		case s.Held:
			continue
		case len(missing) > 0:
			gone = true
			i.problem(PartObjects, repo, fmt.Sprintf("%d objects are gone that the state %s names, %s first", len(missing), s.Event.ID, missing[0]), "", nil)
			continue
		}
		text := "they are not what the state " + s.Event.ID + " says: " + difference(s.Refs, nostr.BranchesAndTags(refs.ByName))
		i.problem(PartReferences, repo, text, "they are set", func() error {
			_, err := repo.SetRefs(ctx, s.Refs, s.Symbolic, s.Head)
			return err
		})
		return nil
	}
	if names := nostr.BranchesAndTags(refs.ByName); len(names) > 0 && !gone {
		i.problem(PartReferences, repo, "there are branches or tags, and no state event says so: "+difference(nil, names), "", nil)
	}
	return nil
}

// agrees reports whether the references are what a state says.
func agrees(s repostate.State, refs repository.Refs) bool {
	if !maps.Equal(s.Refs, nostr.BranchesAndTags(refs.ByName)) {
		return false
	}
	for name, branch := range s.Symbolic {
		if _, born := s.Refs[branch]; born && refs.Symbolic[name] != branch {
			return false
		}
	}
	_, born := s.Refs[s.Head]
	return !born || refs.Head == s.Head
}

// pullRequests holds the references below refs/nostr/ against the events that they are named for.
func (i *identifier) pullRequests(ctx context.Context, repo *repository.Repo, refs repository.Refs) error {
	view := i.truth.View()
	defer view.Close()
	seen := map[string]bool{}
	tagging := nostr.Filter{Kinds: []int{nostr.KindPR, nostr.KindPRUpdate}, Tags: nostr.TagMap{"a": {repo.Ref().String()}}}
	for ev, err := range view.Query(ctx, tagging) {
		if err != nil {
			return err
		}
		pr, err := nostr.ParsePullRequest(ev)
		if err != nil {
			continue
		}
		name := prefixNostr + ev.ID
		seen[name] = true
		if refs.ByName[name] == pr.Commit {
			continue
		}
		missing, err := repo.Missing(ctx, []string{pr.Commit})
		switch {
		case err != nil:
			return err
		case len(missing) == 0:
			i.problem(PartReferences, repo, name+" does not name the commit of its pull request", "it is set", func() error { return repo.SetRef(ctx, name, pr.Commit) })
		case isOnlyFor(pr, repo.Ref()):
			i.problem(PartObjects, repo, fmt.Sprintf("the commit %s of the pull request %s is gone", pr.Commit, ev.ID), "", nil)
		}
	}
	for name, id := range refs.ByName {
		event, is := strings.CutPrefix(name, prefixNostr)
		if !is || seen[name] {
			continue
		}
		ev, err := view.Event(event)
		if errors.Is(err, eventdb.ErrNotFound) {
			continue // it waits for its event, or its event for it
		}
		if err != nil {
			return err
		}
		if pr, err := nostr.ParsePullRequest(ev); err != nil || pr.Commit != id {
			i.problem(PartReferences, repo, name+" names a commit that its event does not", "it is removed", func() error { return repo.DeleteRef(ctx, name) })
		}
	}
	return nil
}

// isOnlyFor reports whether a pull request is for one repository alone. Of others the commit may be
// elsewhere and on its way.
func isOnlyFor(pr *nostr.PullRequest, repo nostr.RepoRef) bool {
	return !pr.Update && !slices.ContainsFunc(pr.Repos, func(ref nostr.RepoRef) bool { return ref != repo })
}

// difference names a few references in which two sets differ; where they are the same, what HEAD or
// a symbolic reference follows is not as it should be.
func difference(want, have map[string]string) string {
	return cmp.Or(repostate.Difference(want, have), "HEAD or a symbolic reference")
}
