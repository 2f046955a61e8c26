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

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/grace"
	"tendril.dev/services/purgatory/repository"
)

// checkRepositories holds what lies on the disk against what is announced.
func (c *checker) checkRepositories(ctx context.Context) error {
	onDisk, err := c.onDisk(ctx)
	if err != nil {
		return err
	}
	identifiers := map[string]bool{}
	for identifier := range onDisk {
		identifiers[identifier] = true
	}
	if err := c.announced(ctx, identifiers); err != nil {
		return err
	}
	strange, err := c.Store.Strange()
	if err != nil {
		return err
	}
	for _, name := range strange {
		c.found(PartDisk, name, "it lies in the git folder, and Tendril did not put it there; move it elsewhere", "", nil)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	var done atomic.Uint64
	for _, identifier := range slices.Sorted(maps.Keys(identifiers)) {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			err := c.checkIdentifier(ctx, identifier, onDisk[identifier])
			c.Progress("identifiers", done.Add(1), uint64(len(identifiers)))
			if err != nil {
				return fmt.Errorf("%q: %w", identifier, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// onDisk returns the owners of the repositories that lie on the disk, by identifier.
func (c *checker) onDisk(ctx context.Context) (map[string][]string, error) {
	owners := map[string][]string{}
	for ref, err := range c.Store.All(ctx) {
		if err != nil {
			return nil, err
		}
		owners[ref.Identifier] = append(owners[ref.Identifier], ref.PubKey)
		c.report.Repositories++
	}
	return owners, nil
}

// announced adds the identifiers of which a repository is served.
func (c *checker) announced(ctx context.Context, identifiers map[string]bool) error {
	view := c.truth.View()
	defer view.Close()
	for ev, err := range view.Query(ctx, nostr.Filter{Kinds: []int{nostr.KindAnnouncement}}) {
		if err != nil {
			return err
		}
		if a, err := nostr.ParseAnnouncement(ev); err == nil && c.Rules.Keeps(a) {
			identifiers[a.Ref.Identifier] = true
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
func (c *checker) checkIdentifier(ctx context.Context, identifier string, owners []string) error {
	var problems []problem
	var kept []string
	for n := range looks {
		if n > 0 {
			select {
			case <-time.After(lookAgain):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		i, err := c.know(ctx, identifier, owners)
		if err != nil {
			return err
		}
		problems, err = i.look(ctx)
		kept = i.kept
		if err != nil && (!c.Running || n == looks-1) {
			return err
		}
		if err == nil && len(problems) == 0 || !c.Running {
			break
		}
	}
	for _, text := range kept {
		c.report.noteSome("a repository that is kept though it is not hosted", text)
	}
	for _, p := range problems {
		c.found(p.part, p.what, p.text, p.mend, p.do)
	}
	return nil
}

// problem is a finding before it is told.
type problem struct {
	part, what, text, mend string
	do                     func() error
}

// look finds what is not as it should be with an identifier.
func (i *identifier) look(ctx context.Context) (problems []problem, err error) {
	for _, step := range []func(context.Context) ([]problem, error){i.orphans, i.repositories} {
		found, err := step(ctx)
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	}
	return problems, nil
}

// orphans finds repositories on the disk that nobody announces. One with git data of which the log
// has an announcement is for purgatory, which keeps it for a while, or without an end: it is no
// finding, and left alone.
func (i *identifier) orphans(ctx context.Context) (problems []problem, err error) {
	for _, owner := range i.owners {
		if i.dossier.Hosts(owner) {
			continue
		}
		repo, err := i.repo(owner)
		if err != nil {
			return nil, err
		}
		if !repo.Exists() {
			continue // it went meanwhile
		}
		has, err := repo.HasData(ctx)
		if err != nil {
			return nil, err
		}
		p := problem{part: PartDisk, what: repo.Ref().String(), text: "nobody announces this repository here, and it is empty", mend: "it is removed"}
		p.do = func() error { return repo.Remove(ctx) }
		if has {
			kept, err := i.isKept(ctx, repo)
			if err != nil {
				return nil, err
			}
			if kept {
				continue
			}
			p.text = "nobody announces this repository here"
			p.mend = "a copy is put into " + repository.OrphansFolder + ", and the repository is removed"
			p.do = func() error { return i.putAside(ctx, repo) }
		}
		problems = append(problems, p)
	}
	return problems, nil
}

// isKept reports whether a repository that is not hosted is kept all the same, and notes why.
func (i *identifier) isKept(ctx context.Context, repo *repository.Repo) (bool, error) {
	note, err := repo.Ended()
	if err != nil {
		return false, err
	}
	text := "it is not hosted any more, and its owner once announced it here: purgatory decides what becomes of it, and keeps it until then"
	switch {
	case note == nil:
		stream, err := i.Bus.JS.Stream(ctx, proto.StreamEvents)
		if err != nil {
			return false, err
		}
		ref := repo.Ref()
		place := &nostr.Event{Kind: nostr.KindAnnouncement, PubKey: ref.PubKey, Tags: nostr.Tags{{"d", ref.Identifier}}}
		_, err = stream.GetLastMsgForSubject(ctx, proto.EventSubjectOf(place).String())
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read the last announcement of %s: %w", ref, err)
		}
	case note.Kept:
		text = fmt.Sprintf("its owner gave it up (%s), and an operator keeps it", note.Reason)
	default:
		until := grace.Until(*note, i.DeletionGrace, time.Now())
		text = fmt.Sprintf("its owner gave it up (%s): it waits, and is removed after %s (NGIT_DELETION_GRACE)",
			note.Reason, until.UTC().Format(time.RFC3339))
	}
	i.kept = append(i.kept, repo.Ref().String()+": "+text)
	return true, nil
}

// putAside makes a copy of a repository and removes the repository then.
func (i *identifier) putAside(ctx context.Context, repo *repository.Repo) error {
	root := filepath.Dir(filepath.Dir(repo.Path()))
	to := filepath.Join(root, repository.OrphansFolder, filepath.Base(filepath.Dir(repo.Path())), filepath.Base(repo.Path()))
	if _, err := os.Stat(to); err == nil {
		return fmt.Errorf("%s is there already: move it away first", to)
	}
	if err := (gittree.Git{Program: i.Store.Git()}).Mirror(ctx, repo.Path(), to); err != nil {
		return err
	}
	return repo.Remove(ctx)
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
