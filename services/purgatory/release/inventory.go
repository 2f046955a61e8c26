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

// maxCopies bounds the copies from one repository to another in one go: a stranger's announcement that names somebody popular as its maintainer gets
// all of that person's data, but others need not wait for it.
const maxCopies = 16

// inventory is what the hosted repositories of an identifier have of the objects that matter. Each is asked once, for all that concerns it.
type inventory struct {
	repos    map[string]*repository.Repo // owner
	has      map[string]map[string]bool  // owner → object, of those that were asked for
	concerns func(owner string) []string // objects to ask for in the same go
	shelves  map[string]shelf            // what is remembered of earlier inventories
	copies   int
}

// recall gives what is known of an owner's repository without asking git, and the packs that there are.
func (v *inventory) recall(owner string) (has map[string]bool, packs string, err error) {
	files, err := os.ReadDir(filepath.Join(v.repos[owner].Path(), "objects", "pack"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("look for packs: %w", err)
	}
	var names strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file.Name(), ".idx") {
			names.WriteString(file.Name())
		}
	}
	packs = names.String()
	had := v.shelves[owner]
	has = map[string]bool{}
	for id, there := range had.has {
		if there || had.packs == packs {
			has[id] = there
		}
	}
	return has, packs, nil
}

// missing gives those of the objects that an owner's repository lacks.
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

// gather brings objects together in one repository from others, and says whether all are there then. more: there was more to copy than may be
// copied at once.
func (v *inventory) gather(ctx context.Context, owner string, sources, objects []string) (complete, more bool, err error) {
	missing, err := v.missing(ctx, owner, objects)
	if err != nil {
		return false, false, err
	}
	into := v.repos[owner]
	for _, source := range sources {
		from := v.repos[source]
		if len(missing) == 0 || source == owner || from == nil {
			continue
		}
		absent, err := v.missing(ctx, source, missing)
		if err != nil {
			return false, more, err
		}
		tips := slices.DeleteFunc(slices.Clone(missing), func(id string) bool { return !v.has[source][id] })
		if len(tips) == 0 {
			continue
		}
		if v.copies == maxCopies {
			return false, true, nil
		}
		v.copies++
		if err := into.CopyFrom(ctx, from, tips); err != nil {
			return false, more, fmt.Errorf("from %s to %s: %w", from.Ref(), into.Ref(), err)
		}
		for _, id := range tips {
			v.has[owner][id] = true
		}
		missing = absent
	}
	return len(missing) == 0, more, nil
}

// concerns are the objects of the held events that an owner's repository may have to do with, and of the newest accepted state.
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
	for _, pr := range s.d.PullRequests {
		if slices.Contains(s.sources(pr), owner) {
			ids = append(ids, pr.Commit)
		}
	}
	return ids
}

// sources are the owners in whose repositories the commit of a pull request may be: those that it is for, and its author's people.
func (s *settlement) sources(pr dossier.PullRequest) []string {
	sources := slices.Clone(s.d.Tagged(pr))
	for _, owner := range s.d.OwnersFor(pr.Event.PubKey) {
		if !slices.Contains(sources, owner) {
			sources = append(sources, owner)
		}
	}
	return sources
}
