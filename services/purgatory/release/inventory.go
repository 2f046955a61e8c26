package release

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/repository"
)

// inventory is what the hosted repositories of an identifier have of the objects that matter. Each
// is asked once, for all that concerns it.
type inventory struct {
	repos    map[string]*repository.Repo // owner
	has      map[string]map[string]bool  // owner → object, of those that were asked for
	concerns func(owner string) []string // objects to ask for in the same go
	shelves  map[string]shelf            // what is remembered of earlier inventories
}

// recall returns what is known of an owner's repository without asking git, and the packs that
// there are.
func (v *inventory) recall(owner string) (has map[string]bool, packs string, err error) {
	if packs, err = v.packs(owner); err != nil {
		return nil, "", err
	}
	had := v.shelves[owner]
	has = map[string]bool{}
	for id, there := range had.has {
		if there || had.packs == packs {
			has[id] = there
		}
	}
	return has, packs, nil
}

// packs names the packs that an owner's repository can see.
func (v *inventory) packs(owner string) (string, error) {
	repo := v.repos[owner]
	var names strings.Builder
	for _, folder := range []string{repo.Path(), repo.Pool().Path()} {
		files, err := os.ReadDir(filepath.Join(folder, "objects", "pack"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("look for packs: %w", err)
		}
		for _, file := range files {
			if strings.HasSuffix(file.Name(), ".idx") {
				names.WriteString(file.Name())
			}
		}
		names.WriteByte('/')
	}
	return names.String(), nil
}

// missing returns those of the objects that an owner's repository lacks.
func (v *inventory) missing(ctx context.Context, owner string, wanted []string) ([]string, error) {
	known, objects := v.has[owner], wanted
	if known == nil {
		has, packs, err := v.recall(owner)
		if err != nil {
			return nil, err
		}
		known, v.has[owner] = has, has
		objects = slices.Concat(wanted, v.concerns(owner))
		v.shelves[owner] = shelf{packs: packs, has: known}
	}
	var ask []string
	for _, id := range objects {
		if _, asked := known[id]; !asked {
			ask = append(ask, id)
		}
	}
	absent, err := v.repos[owner].Missing(ctx, ask)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", v.repos[owner].Ref(), err)
	}
	for _, id := range ask {
		known[id] = true
	}
	for _, id := range absent {
		known[id] = false
	}
	if len(known) > maxShelf {
		delete(v.shelves, owner)
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(id string) bool { return known[id] }), nil
}

// gather brings objects together in the pool, where an owner's repository sees them, and reports
// whether all are there then, with everything that they link to. Nothing is brought if some of them
// are nowhere.
func (v *inventory) gather(ctx context.Context, owner string, sources, objects []string) (complete bool, err error) {
	missing, err := v.missing(ctx, owner, objects)
	if err != nil {
		return false, err
	}
	bring := map[string][]string{} // source → objects
	var from []string
	for _, source := range sources {
		if len(missing) == 0 || source == owner || v.repos[source] == nil {
			continue
		}
		absent, err := v.missing(ctx, source, missing)
		if err != nil {
			return false, err
		}
		if len(absent) < len(missing) {
			bring[source] = slices.DeleteFunc(slices.Clone(missing), func(id string) bool { return !v.has[source][id] })
			from = append(from, source)
		}
		missing = absent
	}
	if len(missing) > 0 {
		return false, nil
	}
	for _, source := range from {
		if err := v.repos[source].Promote(ctx, bring[source]); err != nil {
			return false, fmt.Errorf("%s: %w", v.repos[source].Ref(), err)
		}
	}
	if err := v.repos[owner].Promote(ctx, objects); err != nil {
		return false, fmt.Errorf("%s: %w", v.repos[owner].Ref(), err)
	}
	for _, id := range objects {
		v.has[owner][id] = true
	}
	return true, nil
}

// concerns are the objects of the held events that an owner's repository may have to do with, and
// of the newest accepted state.
func (s *settlement) concerns(owner string) []string {
	var ids []string
	for _, state := range s.d.StatesFor(owner) {
		if s.known.aligned[owner].state == state.Event.ID {
			break
		}
		ids = append(ids, state.Objects()...)
		if !state.Held {
			break
		}
	}
	return append(ids, s.pullCommits()[owner]...)
}

// pullCommits are the commits of pull requests that may be in each owner's repository. That is
// worked out once: thousands may announce an identifier, and as many wait with pull requests for
// it.
func (s *settlement) pullCommits() map[string][]string {
	if s.commits == nil {
		s.commits = map[string][]string{}
		for _, pr := range s.d.PullRequests {
			for _, owner := range s.sources(pr) {
				s.commits[owner] = append(s.commits[owner], pr.Commit)
			}
		}
	}
	return s.commits
}

// sources are the owners in whose repositories the commit of a pull request may be: those that it
// is for, and its author's people.
func (s *settlement) sources(pr dossier.PullRequest) []string {
	sources := slices.Clone(s.d.Tagged(pr))
	for _, owner := range s.d.OwnersFor(pr.Event.PubKey) {
		if !slices.Contains(sources, owner) {
			sources = append(sources, owner)
		}
	}
	return sources
}
