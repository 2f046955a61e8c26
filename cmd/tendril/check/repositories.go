package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// checkRepositories compares what is on the disk with what is announced.
func (c *checker) checkRepositories(ctx context.Context) error {
	all := map[string][]string{} // owners of what is on the disk or served, by identifier
	for at, err := range c.Store.Places(ctx, nostr.RepoRef{}) {
		if err != nil {
			return err
		}
		if !at.PRs {
			all[at.Identifier] = append(all[at.Identifier], at.PubKey)
			c.Repositories++
		}
	}
	announcements, err := c.accepted(ctx, nostr.Filter{Kinds: []int{nostr.KindAnnouncement}})
	if err != nil {
		return err
	}
	for _, ev := range announcements {
		// Whether it is hosted is looked at with all that is announced of the identifier.
		a, err := nostr.ParseAnnouncement(ev)
		if err == nil && (c.Rules.Lists(a) || c.Rules.Archives(a)) && all[a.Ref.Identifier] == nil {
			all[a.Ref.Identifier] = []string{}
		}
	}
	strange, err := c.Store.Strange()
	if err != nil {
		return err
	}
	for _, name := range strange {
		c.found(Finding{Part: PartDisk, What: name, Problem: "unknown file in the git folder; move it elsewhere"})
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	var done atomic.Int64
	for name, owners := range all {
		group.Go(func() error {
			if err := c.checkIdentifier(ctx, name, owners); err != nil {
				return fmt.Errorf("%q: %w", name, err)
			}
			c.Progress("identifiers", int(done.Add(1)), len(all))
			return nil
		})
	}
	return group.Wait()
}

// accepted are the accepted events of a filter.
func (c *checker) accepted(ctx context.Context, f nostr.Filter) (all []*nostr.Event, err error) {
	for ev, err := range query.NewIndex(c.truth, c.Bus).Query(ctx, f) {
		if err != nil {
			return nil, err
		}
		all = append(all, ev)
	}
	return all, nil
}

// Where services work meanwhile, what is not as it should be is looked at again: it may be on its
// way.
const (
	looks     = 5
	lookAgain = time.Second
)

// identifier is what is accepted and held of one, and what is found of it.
type identifier struct {
	*checker
	name     string
	known    repostate.View
	findings []Finding
}

// checkIdentifier checks the repositories of an identifier. owners have one on the disk.
func (c *checker) checkIdentifier(ctx context.Context, name string, owners []string) error {
	for n := 1; ; n++ {
		i := &identifier{checker: c, name: name}
		err := i.look(ctx, owners)
		if !c.Running || n == looks || ctx.Err() != nil || err == nil && len(i.findings) == 0 {
			if err == nil {
				c.found(i.findings...)
			}
			return err
		}
		time.Sleep(lookAgain)
	}
}

// look compares the repositories with what is accepted and held at this moment.
func (i *identifier) look(ctx context.Context, owners []string) error {
	if err := errors.Join(i.holdings.CatchUp(ctx), query.NewIndex(i.truth, i.Bus).CatchUp(ctx)); err != nil {
		return err
	}
	var holding []proto.Held
	for _, e := range i.holdings.OfIdentifier(i.name) {
		holding = append(holding, e.Held)
	}
	accepted, err := i.accepted(ctx, nostr.Filter{Kinds: []int{nostr.KindAnnouncement, nostr.KindState},
		Tags: nostr.TagMap{"d": {i.name}}})
	if err != nil {
		return err
	}
	i.known = repostate.New(i.name, i.Rules, accepted, holding)
	for _, owner := range slices.Compact(slices.Sorted(slices.Values(append(i.known.Hosted, owners...)))) {
		repo, err := i.Store.Repo(nostr.RepoRef{PubKey: owner, Identifier: i.name})
		if err == nil && i.known.Hosts(owner) {
			err = i.hosted(ctx, owner, repo)
		} else if err == nil && repo.Exists() {
			err = i.orphan(ctx, repo)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// found notes a problem of a repository. mend says in words what do does under the lock.
func (i *identifier) found(part string, repo *repository.Repo, problem, mend string,
	do func(*repository.Locked) error) {
	f := Finding{Part: part, What: repo.RepoRef.Name(), Problem: problem, Mend: mend}
	if do != nil {
		f.mend = func() error { return repo.WithLock(context.Background(), do) }
	}
	i.findings = append(i.findings, f)
}

// orphan looks at a repository on the disk that is not announced, unless purgatory keeps it.
func (i *identifier) orphan(ctx context.Context, repo *repository.Repo) error {
	has, err := repo.HasObjects()
	if err != nil {
		return err
	}
	if !has {
		i.found(PartDisk, repo, "no announcement names this repository, and it is empty", "it is removed",
			func(repo *repository.Locked) error { return repo.Remove(ctx) })
		return nil
	}
	// Purgatory keeps it for a while or without an end (`tendril repo list`) if its owner once
	// announced it here.
	note, err := repo.Ended()
	if note != nil || err != nil {
		return err
	}
	announcement := &nostr.Event{Kind: nostr.KindAnnouncement, PubKey: repo.PubKey, Tags: nostr.Tags{{"d", i.name}}}
	_, kept, err := bus.Last(ctx, i.Bus.JS, proto.StreamEvents, proto.EventSubjectOf(announcement).String())
	if err == nil && !kept {
		i.found(PartDisk, repo, "no announcement names this repository", "it is moved into "+repository.OrphansFolder,
			putAside)
	}
	return err
}

// putAside moves a repository out of the way.
func putAside(repo *repository.Locked) error {
	owner := filepath.Dir(repo.Path)
	to := filepath.Join(filepath.Dir(owner), repository.OrphansFolder, filepath.Base(owner), filepath.Base(repo.Path))
	return errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Rename(repo.Path, to))
}

// hosted checks a repository that is announced here: its references and its objects.
func (i *identifier) hosted(ctx context.Context, owner string, repo *repository.Repo) error {
	served := slices.ContainsFunc(i.known.Announcements,
		func(a repostate.Announcement) bool { return a.Ref.PubKey == owner && !a.Held })
	if !repo.Exists() && served {
		create := func(repo *repository.Locked) error { return repo.Ensure(ctx) }
		i.found(PartDisk, repo, "it is announced and not on the disk",
			"it is made; its data must come from a back-up or a clone URL", create)
		if i.repair {
			if err := repo.WithLock(ctx, create); err != nil { // its references are next
				return err
			}
		}
	}
	if !repo.Exists() {
		return nil
	}
	refs, err := repo.Refs()
	if err != nil {
		i.found(PartReferences, repo, "they cannot be read: "+err.Error(), "", nil)
		return ctx.Err()
	}
	err = errors.Join(i.states(ctx, owner, repo, refs), i.pullRequests(ctx, repo, refs))
	if err == nil && !i.WithoutFsck {
		err = repo.Fsck(ctx)
	}
	if failed, ok := errors.AsType[*repository.Error](err); ok && failed.Messages != "" {
		lines := strings.Split(failed.Messages, "\n")
		i.found(PartObjects, repo, fmt.Sprintf("git fsck: %s (%d lines)", strings.Join(lines[:min(len(lines), 3)], "; "),
			len(lines)), "", nil)
		return nil
	}
	return err
}

// states compares branches and tags with the newest state that is accepted and whose objects are
// there. A newer one that is held and complete may have been applied already.
func (i *identifier) states(ctx context.Context, owner string, repo *repository.Repo, refs repository.Refs) error {
	have, gone := nostr.BranchesAndTags(refs.ByName), false
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
			i.found(PartObjects, repo, fmt.Sprintf("%d objects are gone that the state %s names, %s first", len(missing),
				s.Event.ID, missing[0]), "", nil)
			continue
		}
		differs := cmp.Or(repostate.Difference(s.Refs, have), "HEAD or a symbolic reference")
		i.found(PartReferences, repo, "they are not what the state "+s.Event.ID+" says: "+differs, "they are set",
			func(repo *repository.Locked) error {
				return repo.SetRefs(ctx, s.Refs, s.Symbolic, s.Head)
			})
		return nil
	}
	if len(have) > 0 && !gone && !i.mayStay(owner, refs) {
		i.found(PartReferences, repo, "there are branches or tags, and no state event says so: "+repostate.Difference(nil,
			have), "", nil)
	}
	return nil
}

// mayStay reports whether branches and tags are right that no state of today's confirmed
// maintainers names: where no one has authority, and where the author of the state that they follow
// has lost it, they stay as they are.
func (i *identifier) mayStay(owner string, refs repository.Refs) bool {
	return i.known.Group(owner).Root == "" || slices.ContainsFunc(i.known.States, func(s repostate.State) bool {
		return !s.Held && agrees(s, refs)
	})
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

// pullRequests compares the references below refs/nostr/ with the events that they are named for.
func (i *identifier) pullRequests(ctx context.Context, repo *repository.Repo, refs repository.Refs) error {
	const prefix = "refs/nostr/"
	tagging, err := i.accepted(ctx, nostr.Filter{Kinds: []int{nostr.KindPR, nostr.KindPRUpdate},
		Tags: nostr.TagMap{"a": {repo.RepoRef.String()}}})
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, ev := range tagging {
		pr, err := nostr.ParsePullRequest(ev)
		if err != nil {
			continue
		}
		name := prefix + ev.ID
		seen[name] = true
		if refs.ByName[name] == pr.Commit {
			continue
		}
		missing, err := repo.Missing(ctx, []string{pr.Commit})
		switch {
		case err != nil:
			return err
		case len(missing) == 0:
			i.found(PartReferences, repo, name+" does not name the commit of its pull request", "it is set",
				func(repo *repository.Locked) error { return repo.SetRef(ctx, name, pr.Commit) })
		case isOnlyFor(pr, repo.RepoRef):
			i.found(PartObjects, repo, fmt.Sprintf("the commit %s of the pull request %s is gone", pr.Commit, ev.ID), "", nil)
		}
	}
	view := i.truth.View()
	defer view.Close()
	for name, id := range refs.ByName {
		event, is := strings.CutPrefix(name, prefix)
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
			i.found(PartReferences, repo, name+" names a commit that its event does not", "it is removed",
				func(repo *repository.Locked) error { return repo.DeleteRef(ctx, name) })
		}
	}
	return nil
}

// isOnlyFor reports whether a pull request is for one repository alone. Of others the commit may be
// elsewhere and on its way.
func isOnlyFor(pr *nostr.PullRequest, repo nostr.RepoRef) bool {
	return !pr.Update && !slices.ContainsFunc(pr.Repos, func(ref nostr.RepoRef) bool { return ref != repo })
}
