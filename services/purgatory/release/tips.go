package release

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/repository"
)

// prefixNostr is where the tips of pull requests lie.
const prefixNostr = "refs/nostr/"

// checkTips removes references under refs/nostr/ that name another commit than their event does,
// whose event was deleted, or has not come in time, and asks to be called again when the next one
// will have waited too long.
func (s *settlement) checkTips(ctx context.Context, owner string) error {
	repo := s.stock.repos[owner]
	if repo == nil || s.known.tidy[owner] && len(s.d.Withdrawn) == 0 {
		return nil
	}
	tips, err := readTips(ctx, repo)
	if err != nil {
		return err
	}
	tidy := true
	s.waiting[owner] = map[string]bool{}
	for event, tip := range tips {
		commit, known, err := CommitOf(s.d, s.Accepted, event)
		if err != nil {
			return err
		}
		until := tip.placed.Add(s.Hold)
		switch {
		case known && commit == tip.commit:
			continue
		case !known && !s.d.Withdrawn[event] && time.Now().Before(until):
			tidy = false
			s.waiting[owner][prefixNostr+event] = true
			s.soon(until)
			continue
		}
		if err := repo.DeleteRef(ctx, prefixNostr+event); err != nil {
			return fmt.Errorf("remove %s%s from %s: %w", prefixNostr, event, repo.Ref(), err)
		}
		s.Log.Info("a pushed commit without its event is removed", "repository", repo.Ref(), "event", event, "event_known", known)
	}
	if err := s.arrive(owner); err != nil {
		return err
	}
	s.known.tidy[owner] = tidy
	return nil
}

// arrive removes the notes of pushes that do not wait for their events any more.
func (s *settlement) arrive(owner string) error {
	repo := s.stock.repos[owner]
	notes, err := repo.Waiting()
	if err != nil {
		return err
	}
	for _, note := range notes {
		if s.waiting[owner][prefixNostr+note.Event] {
			continue
		}
		if err := repo.ForgetWaiting(note.Event); err != nil {
			return err
		}
		if s.Arrived != nil {
			s.Arrived(repo.Place(), note.Event)
		}
	}
	return nil
}

// tip is a reference under refs/nostr/.
type tip struct {
	commit string
	placed time.Time // when it was pushed; what has no file of its own is as old as can be
}

// readTips returns the references under refs/nostr/ by the rest of their names. Nothing here ever
// packs references, so that as a rule each is a file, and where there is none no git need be asked.
func readTips(ctx context.Context, repo *repository.Repo) (map[string]tip, error) {
	folder := filepath.Join(repo.Path(), filepath.FromSlash(prefixNostr))
	files, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for the tips of pull requests: %w", err)
	}
	_, packed := os.Lstat(filepath.Join(repo.Path(), "packed-refs"))
	if len(files) == 0 && errors.Is(packed, fs.ErrNotExist) {
		return nil, nil
	}
	refs, err := repo.Refs(ctx)
	if err != nil {
		return nil, err
	}
	tips := map[string]tip{}
	for name, id := range refs.ByName {
		event, is := strings.CutPrefix(name, prefixNostr)
		if !is {
			continue
		}
		tips[event] = tip{commit: id, placed: modified(filepath.Join(folder, filepath.FromSlash(event)))}
	}
	return tips, nil
}

func modified(path string) time.Time {
	info, err := os.Lstat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// Waiting returns the events that references under refs/nostr/ of a repository are named for and
// that are not accepted. It starts no git process where there are no such references.
func Waiting(ctx context.Context, repo *repository.Repo, accepted func(id string) (*nostr.Event, error)) (events []string, err error) {
	tips, err := readTips(ctx, repo)
	for event := range tips {
		have, err := accepted(event)
		if err != nil {
			return nil, err
		}
		if have == nil {
			events = append(events, event)
		}
	}
	return events, err
}

// CommitOf says which commit an event names that is known, held or accepted: only a pull request or
// an update names one, so that none may be pushed under the name of another event.
func CommitOf(d dossier.Dossier, accepted func(id string) (*nostr.Event, error), id string) (commit string, known bool, err error) {
	if commit, known := d.Commit(id); known {
		return commit, true, nil
	}
	if !nostr.IsHex64(id) {
		return "", false, nil
	}
	ev, err := accepted(id)
	if ev == nil || err != nil {
		return "", false, err
	}
	pr, err := nostr.ParsePullRequest(ev)
	if err != nil {
		return "", true, nil // of another kind
	}
	return pr.Commit, true, nil
}
