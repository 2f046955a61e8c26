package importer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/lib/nostr"
)

// prefixNostr is where the commits of pull requests are named, by the ids of their events.
const prefixNostr = "refs/nostr/"

// maxTries bounds how many states of one identifier are tried: a stranger may sign one too.
const maxTries = 32

// Trees are the bare repositories of a folder, which are pushed to the server as their owners would
// push them: every check of a push holds. It implements [Repositories].
type Trees struct {
	git    gittree.Git
	server string // its http(s) URL
	repos  []*tree
	tell   func(done, of int)
}

// tree is one repository.
type tree struct {
	gittree.Found
	refs       map[string]string // branches and tags
	pulls      map[string]string // references below refs/nostr/ that are not at the server yet
	all        int               // how many of these there were
	identifier string            // under which the server hosts it; "": not known yet
	done       bool              // branches and tags are as they should be
	err        error             // why it could not be pushed
}

// NewTrees reads which repositories a folder has and what they have. tell is told how many of them
// were looked at in a pass.
func NewTrees(ctx context.Context, git gittree.Git, dir, server string, tell func(done, of int)) (*Trees, error) {
	found, err := gittree.Find(dir)
	if err != nil {
		return nil, err
	}
	t := &Trees{git: git, server: server, tell: tell}
	for _, f := range found {
		refs, err := git.References(ctx, f.Path)
		if _, ran := errors.AsType[*exec.ExitError](err); err != nil && !ran {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		// One that git cannot read keeps none of the others.
		r := &tree{Found: f, refs: nostr.BranchesAndTags(refs), pulls: map[string]string{}, err: err}
		for name, commit := range refs {
			if id, is := strings.CutPrefix(name, prefixNostr); is && nostr.IsHex64(id) {
				r.pulls[name] = commit
			}
		}
		r.all = len(r.pulls)
		t.repos = append(t.repos, r)
	}
	return t, nil
}

// PushStates implements [Repositories].
func (t *Trees) PushStates(ctx context.Context, states func(identifier string) ([]*nostr.State, error)) (pushed int, err error) {
	for n, r := range t.repos {
		t.tell(n, len(t.repos))
		if r.done || len(r.refs) == 0 {
			continue
		}
		r.err = t.pushState(ctx, r, states)
		if ctx.Err() != nil {
			return pushed, ctx.Err()
		}
		if r.err == nil {
			r.done = true
			pushed++
		}
	}
	return pushed, nil
}

// pushState pushes what the repository has, or else what a state says of which it has everything:
// the server takes just what a state event says.
func (t *Trees) pushState(ctx context.Context, r *tree, states func(identifier string) ([]*nostr.State, error)) error {
	var last error
	for _, identifier := range r.Identifiers {
		tries := []map[string]string{r.refs}
		list, err := states(identifier)
		if err != nil {
			return err
		}
		for _, state := range list {
			if state.Satisfiable() && len(state.Refs) > 0 && !maps.Equal(state.Refs, r.refs) {
				tries = append(tries, state.Refs)
			}
		}
		for _, refs := range tries[:min(len(tries), maxTries)] {
			err := t.push(ctx, r, identifier, refs, true)
			if err == nil {
				r.identifier = identifier
				return nil
			}
			if last == nil || !errors.Is(err, gittree.ErrMissing) {
				last = err
			}
			if ctx.Err() != nil || gittree.NotFound(err) {
				break // under this identifier there is none
			}
		}
	}
	return last
}

// PushPulls implements [Repositories]. Commits of pull requests that are not in the file stay where
// they are: they would wait for an event that does not come.
func (t *Trees) PushPulls(ctx context.Context, has func(id string) bool) (pushed int, err error) {
	for n, r := range t.repos {
		t.tell(n, len(t.repos))
		wanted := maps.Clone(r.pulls)
		maps.DeleteFunc(wanted, func(name, _ string) bool { return !has(strings.TrimPrefix(name, prefixNostr)) })
		if len(wanted) == 0 || !r.done && len(r.refs) > 0 {
			continue
		}
		identifier := r.identifier
		if identifier == "" {
			identifier = r.Identifiers[0]
		}
		r.err = t.push(ctx, r, identifier, wanted, false)
		took := wanted
		if r.err != nil && !gittree.NotFound(r.err) && len(wanted) > 1 { // one that is refused refuses all
			took, r.err = t.pushEach(ctx, r, identifier, wanted)
		} else if r.err != nil {
			took = nil
		}
		if ctx.Err() != nil {
			return pushed, ctx.Err()
		}
		pushed += len(took)
		for name := range took {
			delete(r.pulls, name)
		}
	}
	return pushed, nil
}

// pushEach pushes references one by one. It returns those that the server took, and why it did not
// take one of the others.
func (t *Trees) pushEach(ctx context.Context, r *tree, identifier string, refs map[string]string) (took map[string]string, last error) {
	took = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		if err := t.push(ctx, r, identifier, map[string]string{name: refs[name]}, false); err != nil {
			last = err
		} else {
			took[name] = refs[name]
		}
	}
	return took, last
}

// Pauses where the server has no room.
const (
	busyPause = 5 * time.Second
	busyTries = 24
)

func (t *Trees) push(ctx context.Context, r *tree, identifier string, refs map[string]string, exact bool) (err error) {
	for range busyTries {
		err = t.git.Push(ctx, r.Path, gittree.URL(t.server, r.Npub, identifier), refs, exact)
		if !errors.Is(err, gittree.ErrBusy) {
			return err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// Pushed is what came of it.
type Pushed struct {
	Repositories int      `json:"repositories"`     // whose branches and tags are at the server
	Empty        int      `json:"empty"`            // without branches and tags
	Failed       []string `json:"failed,omitempty"` // "<path>: why", of the others
	Pulls        int      `json:"pulls"`            // commits of pull requests that are at the server
	Waiting      int      `json:"waiting"`          // commits of pull requests that were not pushed
}

// Pushed sums up.
func (t *Trees) Pushed() (p Pushed) {
	for _, r := range t.repos {
		p.Pulls += r.all - len(r.pulls)
		p.Waiting += len(r.pulls)
		if r.done {
			p.Repositories++
		}
		if r.err != nil {
			p.Failed = append(p.Failed, fmt.Sprintf("%s: %v", r.Path, r.err))
		} else if len(r.refs) == 0 {
			p.Empty++
		}
	}
	return p
}
