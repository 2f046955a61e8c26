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

// Bounds of what is kept of the states of one identifier: how many authors' besides those who own a
// repository of it here, and how many bytes of all of them. Anybody may have signed a state.
const (
	maxAuthors    = 32
	maxStateBytes = 64 << 20
)

// Trees are the bare repositories of a folder, which are pushed to the server as their owners would
// push them: every check of a push holds. It implements [Repositories].
type Trees struct {
	git    gittree.Git
	server string // its http(s) URL
	repos  []*tree
	states map[string]map[string]*nostr.State // identifier → author → the newest state
	bytes  int                                // that those of strangers take
	pulls  map[string]bool                    // event ids for which a repository has a reference: seen in the file?
	tell   func(done, of int)
}

// tree is one repository.
type tree struct {
	gittree.Found
	refs       map[string]string
	identifier string // under which the server hosts it; "": not known yet
	states     bool   // branches and tags are as they should be
	left       []string
	err        error // why it could not be pushed
}

// NewTrees reads which repositories a folder has and what they have. tell is told how many of them
// were looked at in a pass; nil: nobody.
func NewTrees(ctx context.Context, git gittree.Git, dir, server string, tell func(done, of int)) (*Trees, error) {
	found, err := gittree.Find(dir)
	if err != nil {
		return nil, err
	}
	t := &Trees{git: git, server: server, states: map[string]map[string]*nostr.State{}, pulls: map[string]bool{}, tell: tell}
	for _, f := range found {
		refs, err := git.References(ctx, f.Path)
		if _, ran := errors.AsType[*exec.ExitError](err); err != nil && !ran {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		r := &tree{Found: f, refs: refs, err: err} // one that git cannot read keeps none of the others
		for name := range refs {
			if id, is := strings.CutPrefix(name, prefixNostr); is && nostr.IsHex64(id) {
				t.pulls[id] = false
				r.left = append(r.left, id)
			}
		}
		slices.Sort(r.left)
		for _, identifier := range f.Identifiers {
			if t.states[identifier] == nil {
				t.states[identifier] = map[string]*nostr.State{}
			}
		}
		t.repos = append(t.repos, r)
	}
	return t, nil
}

// Note implements [Repositories].
func (t *Trees) Note(raw []byte, kind int) {
	var ev nostr.Event
	if kind == nostr.KindAnnouncement || ev.UnmarshalJSON(raw) != nil {
		return
	}
	if _, named := t.pulls[ev.ID]; named && kind != nostr.KindState {
		t.pulls[ev.ID] = true
		return
	}
	byAuthor := t.states[ev.Tags.GetD()]
	if kind != nostr.KindState || byAuthor == nil {
		return
	}
	state, err := nostr.ParseState(&ev)
	if err != nil {
		return
	}
	before := byAuthor[ev.PubKey]
	switch {
	case before != nil && before.Event.CreatedAt >= ev.CreatedAt:
		return
	case !t.owns(ev.PubKey, state.Identifier):
		if before == nil && len(byAuthor) >= maxAuthors || t.bytes+len(raw) > maxStateBytes {
			return
		}
		t.bytes += len(raw)
	}
	byAuthor[ev.PubKey] = state
}

func (t *Trees) owns(pubkey, identifier string) bool {
	return slices.ContainsFunc(t.repos, func(r *tree) bool {
		return r.Owner == pubkey && slices.Contains(r.Identifiers, identifier)
	})
}

// PushStates implements [Repositories].
func (t *Trees) PushStates(ctx context.Context) (pushed int, err error) {
	for n, r := range t.repos {
		t.told(n)
		if r.states || !hasBranchesOrTags(r.refs) {
			continue
		}
		r.err = t.pushState(ctx, r)
		if ctx.Err() != nil {
			return pushed, ctx.Err()
		}
		if r.err == nil {
			r.states = true
			pushed++
		}
	}
	return pushed, nil
}

// pushState pushes what the repository has, or else what a state says of which it has everything:
// the server takes just what a state event says.
func (t *Trees) pushState(ctx context.Context, r *tree) error {
	identifiers := r.Identifiers
	if r.identifier != "" {
		identifiers = []string{r.identifier}
	}
	var last error
	for _, identifier := range identifiers {
		tries := []map[string]string{nostr.BranchesAndTags(r.refs)}
		for _, state := range t.newest(identifier) {
			if state.Satisfiable() && len(state.Refs) > 0 && !maps.Equal(state.Refs, tries[0]) {
				tries = append(tries, state.Refs)
			}
		}
		for _, refs := range tries {
			err := t.push(ctx, r, identifier, refs, true)
			if err == nil {
				r.identifier = identifier
				return nil
			}
			if last == nil || !errors.Is(err, gittree.ErrMissing) {
				last = err
			}
			if ctx.Err() != nil || isUnknown(err) {
				break // under this identifier there is none
			}
		}
	}
	return last
}

// newest are the states of an identifier, newest first.
func (t *Trees) newest(identifier string) []*nostr.State {
	return slices.SortedFunc(maps.Values(t.states[identifier]), func(a, b *nostr.State) int {
		return int(b.Event.CreatedAt - a.Event.CreatedAt)
	})
}

// PushPulls implements [Repositories]. Commits of pull requests that are not in the file stay where
// they are: they would wait for an event that does not come.
func (t *Trees) PushPulls(ctx context.Context) (pushed int, err error) {
	for n, r := range t.repos {
		t.told(n)
		if !r.states && hasBranchesOrTags(r.refs) {
			continue
		}
		var wanted, rest []string
		for _, id := range r.left {
			if t.pulls[id] {
				wanted = append(wanted, id)
			} else {
				rest = append(rest, id)
			}
		}
		if len(wanted) == 0 {
			continue
		}
		refused, err := t.pushIDs(ctx, r, wanted)
		if ctx.Err() != nil {
			return pushed, ctx.Err()
		}
		pushed += len(wanted) - len(refused)
		r.left, r.err = append(rest, refused...), err
		slices.Sort(r.left)
	}
	return pushed, nil
}

// pushIDs pushes commits of pull requests in one go. Where that is refused the halves are tried,
// and so on, because one that is refused refuses all. It returns those that are left and why.
func (t *Trees) pushIDs(ctx context.Context, r *tree, ids []string) (refused []string, err error) {
	refs := map[string]string{}
	for _, id := range ids {
		refs[prefixNostr+id] = r.refs[prefixNostr+id]
	}
	identifier := r.identifier
	if identifier == "" {
		identifier = r.Identifiers[0]
	}
	err = t.push(ctx, r, identifier, refs, false)
	switch {
	case err == nil:
		return nil, nil
	case len(ids) == 1 || isUnknown(err) || ctx.Err() != nil:
		return ids, err
	}
	half := len(ids) / 2
	first, firstErr := t.pushIDs(ctx, r, ids[:half])
	second, secondErr := t.pushIDs(ctx, r, ids[half:])
	if firstErr == nil {
		firstErr = secondErr
	}
	return append(first, second...), firstErr
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

// isUnknown reports whether git says that the server has no such repository.
func isUnknown(err error) bool {
	var failed *gittree.Error
	return errors.As(err, &failed) && strings.Contains(failed.Said, "' not found")
}

func (t *Trees) told(n int) {
	if t.tell != nil {
		t.tell(n, len(t.repos))
	}
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
	left := 0
	for _, r := range t.repos {
		left += len(r.left)
		switch {
		case r.err != nil:
			p.Failed = append(p.Failed, fmt.Sprintf("%s: %v", r.Path, r.err))
		case r.states:
		case !hasBranchesOrTags(r.refs):
			p.Empty++
		}
		if r.states {
			p.Repositories++
		}
	}
	total := 0
	for _, r := range t.repos {
		for name := range r.refs {
			if id, is := strings.CutPrefix(name, prefixNostr); is && nostr.IsHex64(id) {
				total++
			}
		}
	}
	p.Pulls, p.Waiting = total-left, left
	return p
}

func hasBranchesOrTags(refs map[string]string) bool { return len(nostr.BranchesAndTags(refs)) > 0 }
