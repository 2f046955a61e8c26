package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// checkRepositories compares what is on the disk with what is announced.
func (c *checker) checkRepositories(ctx context.Context) error {
	owners := map[string][]string{} // of what is on the disk or served, by identifier
	for at, err := range c.Store.Places(ctx, nostr.RepoRef{}) {
		if err != nil {
			return err
		}
		if !at.PRs {
			owners[at.Identifier] = append(owners[at.Identifier], at.PubKey)
			c.report.Repositories++
		}
	}
	view := c.truth.View()
	defer view.Close()
	for ev, err := range view.Query(ctx, nostr.Filter{Kinds: []int{nostr.KindAnnouncement}}) {
		if err != nil {
			return err
		}
		if a, err := nostr.ParseAnnouncement(ev); err == nil && c.Rules.Keeps(a) && owners[a.Ref.Identifier] == nil {
			owners[a.Ref.Identifier] = []string{}
		}
	}
	strange, err := c.Store.Strange()
	if err != nil {
		return err
	}
	for _, name := range strange {
		c.report.found(Finding{Part: PartDisk, What: name, Problem: "it lies in the git folder, and Tendril did not put it there; move it elsewhere"}, false)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	var done atomic.Int64
	for _, identifier := range slices.Sorted(maps.Keys(owners)) {
		group.Go(func() error {
			if err := c.checkIdentifier(ctx, identifier, owners[identifier]); err != nil {
				return fmt.Errorf("%q: %w", identifier, err)
			}
			c.Progress("identifiers", int(done.Add(1)), len(owners))
			return nil
		})
	}
	return group.Wait()
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
		last := !c.Running || n == looks
		i := &identifier{checker: c, name: name}
		if err := i.know(ctx); err != nil {
			return err
		}
		err := errors.Join(i.orphans(ctx, owners), i.repositories(ctx))
		if last && err != nil {
			return err
		}
		if last || err == nil && len(i.findings) == 0 {
			for _, f := range i.findings {
				c.report.found(f, c.Repair)
			}
			return nil
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// know reads what is accepted and held at this moment.
func (i *identifier) know(ctx context.Context) error {
	if err := errors.Join(i.holdings.CatchUp(ctx), query.NewIndex(i.truth, i.Bus).CatchUp(ctx)); err != nil {
		return err
	}
	var holding []proto.Held
	for _, e := range i.holdings.OfIdentifier(i.name) {
		holding = append(holding, e.Held)
	}
	view := i.truth.View()
	defer view.Close()
	var accepted []*nostr.Event
	for ev, err := range view.Query(ctx, nostr.Filter{Kinds: []int{nostr.KindAnnouncement, nostr.KindState}, Tags: nostr.TagMap{"d": {i.name}}}) {
		if err != nil {
			return err
		}
		accepted = append(accepted, ev)
	}
	i.known = repostate.New(i.name, i.Rules, accepted, holding)
	return nil
}

func (i *identifier) repo(owner string) (*repository.Repo, error) {
	return i.Store.Repo(nostr.RepoRef{PubKey: owner, Identifier: i.name})
}

// found notes a problem of a repository. mend says in words what do does.
func (i *identifier) found(part string, repo *repository.Repo, problem, mend string, do func() error) {
	i.findings = append(i.findings, Finding{Part: part, What: repo.Ref().String(), Problem: problem, Mend: mend, mend: do})
}

// orphans finds repositories on the disk that are not announced, and that purgatory does not keep.
func (i *identifier) orphans(ctx context.Context, owners []string) error {
	for _, owner := range owners {
		repo, err := i.repo(owner)
		if err != nil {
			return err
		}
		if i.known.Hosts(owner) || !repo.Exists() {
			continue
		}
		has, err := repo.HasObjects()
		if err != nil {
			return err
		}
		if !has {
			i.found(PartDisk, repo, "no announcement names this repository, and it is empty", "it is removed", func() error { return repo.Remove(ctx) })
			continue
		}
		kept, err := i.isKept(ctx, repo)
		if err != nil {
			return err
		}
		if kept {
			continue
		}
		i.found(PartDisk, repo, "no announcement names this repository", "it is moved into "+repository.OrphansFolder, func() error { return putAside(repo) })
	}
	return nil
}

// isKept reports whether a repository that is not hosted is for purgatory, which keeps it for a while
// or without an end (`tendril repo list`): its owner once announced it here.
func (i *identifier) isKept(ctx context.Context, repo *repository.Repo) (bool, error) {
	note, err := repo.Ended()
	if note != nil || err != nil {
		return true, err
	}
	ref := repo.Ref()
	announcement := &nostr.Event{Kind: nostr.KindAnnouncement, PubKey: ref.PubKey, Tags: nostr.Tags{{"d", ref.Identifier}}}
	_, found, err := bus.Last(ctx, i.Bus.JS, proto.StreamEvents, proto.EventSubjectOf(announcement).String())
	return found, err
}

// putAside moves a repository out of the way.
func putAside(repo *repository.Repo) error {
	owner := filepath.Dir(repo.Path())
	to := filepath.Join(filepath.Dir(owner), repository.OrphansFolder, filepath.Base(owner), filepath.Base(repo.Path()))
	if _, err := os.Stat(to); err == nil {
		return fmt.Errorf("%s is there already: move it away first", to)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.Rename(repo.Path(), to)
}
