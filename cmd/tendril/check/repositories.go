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
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// checkRepositories holds what lies on the disk against what is announced.
func (c *checker) checkRepositories(ctx context.Context) error {
	owners := map[string][]string{} // of what lies on the disk or is served, by identifier
	for ref, err := range c.Store.All(ctx) {
		if err != nil {
			return err
		}
		owners[ref.Identifier] = append(owners[ref.Identifier], ref.PubKey)
		c.report.Repositories++
	}
	if err := c.announced(ctx, owners); err != nil {
		return err
	}
	strange, err := c.Store.Strange()
	if err != nil {
		return err
	}
	for _, name := range strange {
		c.found(Finding{Part: PartDisk, What: name, Problem: "it lies in the git folder, and Tendril did not put it there; move it elsewhere"}, nil)
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

// announced adds the identifiers of which a repository is served.
func (c *checker) announced(ctx context.Context, owners map[string][]string) error {
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
	return nil
}

// Where services work meanwhile, what is not as it should be is looked at again, for it may be on
// its way.
const (
	looks     = 5
	lookAgain = time.Second
)

// checkIdentifier checks the repositories of an identifier, of which the owners' lie on the disk.
func (c *checker) checkIdentifier(ctx context.Context, name string, owners []string) error {
	var i *identifier
	for n := range looks {
		if n > 0 {
			select {
			case <-time.After(lookAgain):
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var err error
		if i, err = c.know(ctx, name); err != nil {
			return err
		}
		err = errors.Join(i.orphans(ctx, owners), i.repositories(ctx))
		if err != nil && (!c.Running || n == looks-1) {
			return err
		}
		if err == nil && len(i.problems) == 0 || !c.Running {
			break
		}
	}
	for _, text := range i.kept {
		c.report.noteSome("a repository that is kept though it is not hosted", text)
	}
	for _, p := range i.problems {
		c.found(p.Finding, p.mend)
	}
	return nil
}

// orphans finds repositories on the disk that are not announced. One with git data of which the log
// has an announcement is for purgatory, which keeps it for a while, or without an end: it is no
// finding, and left alone.
func (i *identifier) orphans(ctx context.Context, owners []string) error {
	for _, owner := range owners {
		if i.known.Hosts(owner) {
			continue
		}
		repo, err := i.repo(owner)
		if err != nil {
			return err
		}
		if !repo.Exists() {
			continue // it went meanwhile
		}
		has, err := repo.HasObjects()
		if err != nil {
			return err
		}
		if !has {
			i.problem(PartDisk, repo, "nobody announces this repository here, and it is empty", "it is removed", func() error { return repo.Remove(ctx) })
			continue
		}
		why, err := i.whyKept(ctx, repo)
		if err != nil {
			return err
		}
		if why != "" {
			i.kept = append(i.kept, repo.Ref().String()+": "+why)
			continue
		}
		i.problem(PartDisk, repo, "nobody announces this repository here", "it is moved into "+repository.OrphansFolder, func() error { return putAside(repo) })
	}
	return nil
}

// whyKept says why a repository that is not hosted is kept all the same; "": it is not.
func (i *identifier) whyKept(ctx context.Context, repo *repository.Repo) (string, error) {
	note, err := repo.Ended()
	if err != nil {
		return "", err
	}
	switch {
	case note == nil:
		ref := repo.Ref()
		place := &nostr.Event{Kind: nostr.KindAnnouncement, PubKey: ref.PubKey, Tags: nostr.Tags{{"d", ref.Identifier}}}
		_, found, err := bus.Last(ctx, i.Bus.JS, proto.StreamEvents, proto.EventSubjectOf(place).String())
		if err != nil || !found {
			return "", err
		}
		return "it is not hosted any more, and its owner once announced it here: purgatory decides what becomes of it, and keeps it until then", nil
	case note.Kept:
		return fmt.Sprintf("its owner gave it up (%s), and an operator keeps it", note.Reason), nil
	}
	until := repostate.KeptUntil(*note, i.DeletionGrace, time.Now())
	return fmt.Sprintf("its owner gave it up (%s): it waits, and is removed after %s (NGIT_DELETION_GRACE)",
		note.Reason, until.UTC().Format(time.RFC3339)), nil
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

// fault returns what git has found wrong, in words; an error: git could not look.
func fault(err error) (string, error) {
	failed, ok := errors.AsType[*repository.Error](err)
	if err == nil || !ok || failed.Messages == "" {
		return "", err
	}
	lines := strings.Split(failed.Messages, "\n")
	text := "git fsck: " + strings.Join(lines[:min(len(lines), 3)], "; ")
	if len(lines) > 3 {
		text += fmt.Sprintf(" and %d lines more", len(lines)-3)
	}
	return text, nil
}
