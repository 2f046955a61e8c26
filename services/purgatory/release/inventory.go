package release

import (
	"context"
	"fmt"
	"slices"

	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/repository"
)

// inventory is what the hosted repositories of an identifier have of the objects that matter. Each
// is asked once, for all that concerns it.
type inventory struct {
	repos    map[string]*repository.Repo // owner
	has      map[string]map[string]bool  // owner → object, of those that were asked for
	concerns func(owner string) []string // objects to ask for in the same go
}

// missing returns those of the objects that an owner's repository lacks.
func (v *inventory) missing(ctx context.Context, owner string, wanted []string) ([]string, error) {
	objects := wanted
	if v.has[owner] == nil {
		v.has[owner] = map[string]bool{}
		objects = slices.Concat(wanted, v.concerns(owner))
	}
	known := v.has[owner]
	var ask []string
	for _, id := range objects {
		if _, asked := known[id]; !asked {
			ask = append(ask, id)
		}
	}
	// What references name is there, so that no git is started for a push that has just come.
	named, err := v.repos[owner].Named(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", v.repos[owner].Place(), err)
	}
	for _, id := range ask {
		known[id] = true
	}
	ask = slices.DeleteFunc(ask, func(id string) bool {
		_, is := slices.BinarySearch(named, id)
		return is
	})
	absent, err := v.repos[owner].Missing(ctx, ask)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", v.repos[owner].Place(), err)
	}
	for _, id := range absent {
		known[id] = false
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(id string) bool { return known[id] }), nil
}

// gather brings objects into an owner's repository from the sources, which are repositories that
// may share with it, and reports whether all are there then. Nothing is brought if some of them are
// nowhere.
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
		if err := v.repos[owner].Share(ctx, v.repos[source], bring[source]); err != nil {
			return false, fmt.Errorf("%s, from %s: %w", v.repos[owner].Place(), v.repos[source].Place(), err)
		}
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
// is for, its author's people's, and that in which its author offers it.
func (s *settlement) sources(pr dossier.PullRequest) []string {
	sources := slices.Clone(s.d.Tagged(pr))
	for _, owner := range s.d.OwnersFor(pr.Event.PubKey) {
		if !slices.Contains(sources, owner) {
			sources = append(sources, owner)
		}
	}
	if s.offered[pr.Event.ID] {
		sources = append(sources, keyOf(pr.Event.PubKey))
	}
	return sources
}
