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
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

const prefixNostr = "refs/nostr/"

// repositories checks those that are announced here.
func (i *identifier) repositories(ctx context.Context) error {
	for _, owner := range i.known.Hosted() {
		repo, err := i.repo(owner)
		if err != nil {
			return err
		}
		served := slices.ContainsFunc(i.known.Announcements, func(a repostate.Announcement) bool { return a.Ref.PubKey == owner && !a.Held })
		if !repo.Exists() && served {
			i.found(PartDisk, repo, "it is announced and not on the disk", "it is made; its data must come from a back-up or a clone URL", func() error { return repo.Ensure(ctx) })
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

// repository checks one: its references and its objects.
func (i *identifier) repository(ctx context.Context, owner string, repo *repository.Repo) error {
	refs, err := repo.Refs()
	if err != nil {
		i.found(PartReferences, repo, "they cannot be read: "+err.Error(), "", nil)
		return ctx.Err()
	}
	if err := errors.Join(i.states(ctx, owner, repo, refs), i.pullRequests(ctx, repo, refs)); err != nil || i.WithoutFsck {
		return err
	}
	err = repo.Fsck(ctx)
	if failed, ok := errors.AsType[*repository.Error](err); ok && failed.Messages != "" {
		lines := strings.Split(failed.Messages, "\n")
		text := "git fsck: " + strings.Join(lines[:min(len(lines), 3)], "; ")
		if len(lines) > 3 {
			text += fmt.Sprintf(" and %d lines more", len(lines)-3)
		}
		i.found(PartObjects, repo, text, "", nil)
		return nil
	}
	return err
}

// states compares branches and tags with the newest state that is accepted and whose objects are
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
			i.found(PartObjects, repo, fmt.Sprintf("%d objects are gone that the state %s names, %s first", len(missing), s.Event.ID, missing[0]), "", nil)
			continue
		}
		text := "they are not what the state " + s.Event.ID + " says: " + difference(s.Refs, nostr.BranchesAndTags(refs.ByName))
		i.found(PartReferences, repo, text, "they are set", func() error {
			_, err := repo.SetRefs(ctx, s.Refs, s.Symbolic, s.Head)
			return err
		})
		return nil
	}
	if names := nostr.BranchesAndTags(refs.ByName); len(names) > 0 && !gone {
		i.found(PartReferences, repo, "there are branches or tags, and no state event says so: "+difference(nil, names), "", nil)
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

// difference names a few references in which two sets differ; where they are the same, HEAD or a
// symbolic reference follows something else.
func difference(want, have map[string]string) string {
	return cmp.Or(repostate.Difference(want, have), "HEAD or a symbolic reference")
}

// pullRequests compares the references below refs/nostr/ with the events that they are named for.
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
			i.found(PartReferences, repo, name+" does not name the commit of its pull request", "it is set", func() error { return repo.SetRef(ctx, name, pr.Commit) })
		case isOnlyFor(pr, repo.Ref()):
			i.found(PartObjects, repo, fmt.Sprintf("the commit %s of the pull request %s is gone", pr.Commit, ev.ID), "", nil)
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
			i.found(PartReferences, repo, name+" names a commit that its event does not", "it is removed", func() error { return repo.DeleteRef(ctx, name) })
		}
	}
	return nil
}

// isOnlyFor reports whether a pull request is for one repository alone. Of others the commit may be
// elsewhere and on its way.
func isOnlyFor(pr *nostr.PullRequest, repo nostr.RepoRef) bool {
	return !pr.Update && !slices.ContainsFunc(pr.Repos, func(ref nostr.RepoRef) bool { return ref != repo })
}
