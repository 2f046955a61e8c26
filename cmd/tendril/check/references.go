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
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/repository"
)

const prefixNostr = "refs/nostr/"

// identifier is what is known of one, and what lies on the disk.
type identifier struct {
	*checker
	name    string
	owners  []string // of repositories on the disk
	dossier dossier.Dossier
	pulls   map[string][]*nostr.PullRequest // accepted ones, by the owner whose repository they tag
	kept    []string                        // those that are not hosted and kept all the same, and why
}

// know reads what is accepted and held of an identifier at this moment.
func (c *checker) know(ctx context.Context, name string, owners []string) (*identifier, error) {
	if err := c.heldHead.Read(ctx); err != nil {
		return nil, fmt.Errorf("read what is held: %w", err)
	}
	entries := c.holdings.OfIdentifier(name)
	if err := c.logHead.Read(ctx); err != nil {
		return nil, fmt.Errorf("read what is accepted: %w", err)
	}
	held := make([]proto.Held, len(entries))
	for n, e := range entries {
		held[n] = e.Held
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
	i := &identifier{checker: c, name: name, owners: owners, dossier: dossier.New(name, c.Rules, accepted, held), pulls: map[string][]*nostr.PullRequest{}}
	for _, owner := range i.dossier.Hosted() {
		address := nostr.RepoRef{PubKey: owner, Identifier: name}.String()
		for ev, err := range view.Query(ctx, nostr.Filter{Kinds: []int{nostr.KindPR, nostr.KindPRUpdate}, Tags: nostr.TagMap{"a": {address}}}) {
			if err != nil {
				return nil, err
			}
			if pr, err := nostr.ParsePullRequest(ev); err == nil {
				i.pulls[owner] = append(i.pulls[owner], pr)
			}
		}
	}
	return i, nil
}

func (i *identifier) repo(owner string) (*repository.Repo, error) {
	return i.Store.Repo(nostr.RepoRef{PubKey: owner, Identifier: i.name})
}

// repositories checks those that are announced here.
func (i *identifier) repositories(ctx context.Context) (problems []problem, err error) {
	for _, owner := range i.dossier.Hosted() {
		repo, err := i.repo(owner)
		if err != nil {
			return nil, err
		}
		served := slices.ContainsFunc(i.dossier.Announcements, func(a dossier.Announcement) bool { return a.Ref.PubKey == owner && !a.Held })
		if !repo.Exists() && served {
			problems = append(problems, problem{PartDisk, repo.Ref().String(), "it is announced and not on the disk", "it is made; its data must come from a back-up or a clone URL", func() error { return repo.Ensure(ctx) }})
			if i.Repair {
				if err := repo.Ensure(ctx); err != nil { // its references are next
					return nil, err
				}
			}
		}
		if !repo.Exists() {
			continue
		}
		found, err := i.repository(ctx, owner, repo)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", repo.Ref(), err)
		}
		problems = append(problems, found...)
	}
	return problems, nil
}

// repository checks one: what its references are, and its objects.
func (i *identifier) repository(ctx context.Context, owner string, repo *repository.Repo) (problems []problem, err error) {
	what := repo.Ref().String()
	refs, err := repo.Refs(ctx)
	if err != nil {
		return append(problems, problem{PartReferences, what, "they cannot be read: " + err.Error(), "", nil}), ctx.Err()
	}
	found, err := i.states(ctx, owner, repo, refs)
	if err != nil {
		return nil, err
	}
	problems = append(problems, found...)
	if found, err = i.pullRequests(ctx, owner, repo, refs); err != nil {
		return nil, err
	}
	problems = append(problems, found...)
	if i.WithoutFsck {
		return problems, nil
	}
	text, err := fault(repo.Fsck(ctx))
	if err != nil {
		return nil, err
	}
	if text != "" {
		problems = append(problems, problem{PartObjects, what, text, "", nil})
	}
	return problems, nil
}

// states holds branches and tags against the newest state that is accepted and whose objects are
// there. A newer one that is held and complete may have been applied already.
func (i *identifier) states(ctx context.Context, owner string, repo *repository.Repo, refs repository.Refs) (problems []problem, err error) {
	what := repo.Ref().String()
	var counts *dossier.State // the newest accepted one that is complete
	for _, s := range i.dossier.StatesFor(owner) {
		missing, err := repo.Missing(ctx, s.Objects())
		if err != nil {
			return nil, err
		}
		if len(missing) == 0 && agrees(s, refs) {
			return problems, nil
		}
		switch {
		case s.Held:
		case len(missing) > 0:
			problems = append(problems, problem{PartObjects, what, fmt.Sprintf("%d objects are gone that the state %s names, %s first", len(missing), s.Event.ID, missing[0]), "", nil})
		default:
			counts = &s
		}
		if counts != nil {
			break
		}
	}
	names := nostr.BranchesAndTags(refs.ByName)
	switch {
	case counts != nil:
		return append(problems, problem{PartReferences, what, "they are not what the state " + counts.Event.ID + " says: " + difference(counts.Refs, names),
			"they are set", func() error {
				_, err := repo.SetRefs(ctx, counts.Refs, counts.Symbolic, counts.Head)
				return err
			}}), nil
	case len(names) > 0 && len(problems) == 0:
		return append(problems, problem{PartReferences, what, "there are branches or tags, and no state event says so: " + difference(nil, names), "", nil}), nil
	}
	return problems, nil
}

// agrees reports whether the references are what a state says.
func agrees(s dossier.State, refs repository.Refs) bool {
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
func (i *identifier) pullRequests(ctx context.Context, owner string, repo *repository.Repo, refs repository.Refs) (problems []problem, err error) {
	what := repo.Ref().String()
	set := func(name, commit string) func() error {
		return func() error { return repo.SetRef(ctx, name, commit) }
	}
	seen := map[string]bool{}
	for _, pr := range i.pulls[owner] {
		name := prefixNostr + pr.Event.ID
		seen[name] = true
		if refs.ByName[name] == pr.Commit {
			continue
		}
		missing, err := repo.Missing(ctx, []string{pr.Commit})
		if err != nil {
			return nil, err
		}
		switch {
		case len(missing) == 0:
			problems = append(problems, problem{PartReferences, what, name + " does not name the commit of its pull request", "it is set", set(name, pr.Commit)})
		case isOnlyFor(pr, owner, i.name):
			problems = append(problems, problem{PartObjects, what, fmt.Sprintf("the commit %s of the pull request %s is gone", pr.Commit, pr.Event.ID), "", nil})
		}
	}
	view := i.truth.View()
	defer view.Close()
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
			return nil, err
		}
		if pr, err := nostr.ParsePullRequest(ev); err != nil || pr.Commit != id {
			problems = append(problems, problem{PartReferences, what, name + " names a commit that its event does not", "it is removed", func() error { return repo.DeleteRef(ctx, name) }})
		}
	}
	return problems, nil
}

// isOnlyFor reports whether a pull request is for one repository alone. Of others the commit may be
// elsewhere and on its way.
func isOnlyFor(pr *nostr.PullRequest, owner, identifier string) bool {
	return !pr.Update && !slices.ContainsFunc(pr.Repos, func(ref nostr.RepoRef) bool { return ref.PubKey != owner || ref.Identifier != identifier })
}

// difference names a few references in which two sets differ; where they are the same, what HEAD or
// a symbolic reference follows is not as it should be.
func difference(want, have map[string]string) string {
	return cmp.Or(dossier.Difference(want, have), "HEAD or a symbolic reference")
}
