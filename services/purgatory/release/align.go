package release

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

const (
	// maxNamed bounds the references below refs/nostr/ that are set in one go.
	maxNamed = 64
	// maxSources bounds the repositories in which objects are looked for.
	maxSources = 16
)

// pass is one call of Release.
type pass struct {
	*Releaser
	v   repostate.View
	out *Result

	look  Look
	crowd *Crowd

	owners  []string                      // of the repositories that may be changed
	repos   map[string]*repository.Repo   // by owner; nil: it is not there
	locked  map[string]*repository.Locked // those of them that may be changed
	has     map[string]map[string]bool    // owner → object, of those that were asked for
	commits map[string][]string           // pullCommits, once they were asked for
	applied map[string]repostate.State    // owner → the state that counts there
	whole   map[string]map[string]bool    // owner → ids of held states whose objects are all there, each author's newest
	trial   map[string]bool               // owners whose references follow a state that is not accepted yet
	offered map[string]bool               // ids of held events whose commit is in a contributor's repository
	named   int                           // references below refs/nostr/ that were set
	// namedNow are their events. One may have ended since p.v was read.
	namedNow map[repository.Place][]string
	failed   error // of single repositories
}

// note notes what goes wrong in a repository, if anything does. The others go on.
func (p *pass) note(at repository.Place, err error) {
	if err != nil {
		p.failed = errors.Join(p.failed, fmt.Errorf("%s: %w", at, err))
	}
}

func (p *pass) place(owner string) repository.Place {
	return repository.Place{RepoRef: nostr.RepoRef{PubKey: owner, Identifier: p.v.Identifier}}
}

// align makes references what the states and pull requests say, and gives the events that are ready
// to be released, in the order of their release.
func (p *pass) align(ctx context.Context, scope []*repository.Locked) (ready []*nostr.Event) {
	p.applied, p.whole = map[string]repostate.State{}, map[string]map[string]bool{}
	p.offered, p.named, p.owners, p.failed = map[string]bool{}, 0, nil, nil
	p.namedNow = map[repository.Place][]string{}
	for _, repo := range scope {
		if repo.PRs {
			p.note(repo.Place, p.alignContribution(ctx, repo))
		} else if p.v.Hosts(repo.PubKey) {
			p.owners = append(p.owners, repo.PubKey)
			p.note(repo.Place, p.open(ctx, repo))
		}
	}
	for _, owner := range p.owners {
		p.note(p.place(owner), p.alignStates(ctx, owner))
	}
	prs := p.alignPullRequests(ctx)
	for _, owner := range p.owners {
		if repo := p.locked[owner]; repo != nil {
			_, err := p.checkTips(ctx, repo, func(ev *nostr.Event, commit string) error {
				return p.v.CheckTip(ev, commit, owner, func(pr *nostr.PullRequest) ([]nostr.RepoRef,
					error) {
					return p.Events.Repos(ctx, pr)
				})
			})
			p.note(repo.Place, err)
		}
	}
	ready = p.announcements(ctx)
	ready = append(ready, p.states(ready)...)
	return append(ready, prs...)
}

// open makes an owner's repository if it is not there, and removes what killed pushes left.
func (p *pass) open(ctx context.Context, repo *repository.Locked) error {
	err := errors.Join(repo.Ensure(ctx), repo.Sweep(), repo.SetArchive(p.v.IsArchived(repo.PubKey)))
	if err == nil && !p.v.Holds(repo.PubKey) {
		err = repo.SetProven()
	}
	if err == nil {
		p.repos[repo.PubKey], p.locked[repo.PubKey] = repo.Repo, repo
	}
	return err
}

// repo returns a repository, to be read if it is none of those that may be changed; nil: it is not
// there.
func (p *pass) repo(key string) *repository.Repo {
	repo, known := p.repos[key]
	if !known {
		var err error
		if repo, err = p.Store.At(p.place(key)); err != nil || !repo.Exists() {
			repo = nil
		}
		p.repos[key] = repo
	}
	return repo
}

// announcements are the held ones whose repository has data: any object that a state of its
// maintainers or a pull request names. What was pushed for an event that has not come is no data.
func (p *pass) announcements(ctx context.Context) (ready []*nostr.Event) {
	for _, a := range p.v.Announcements {
		owner := a.Ref.PubKey
		if !a.Held || a.Silent || !slices.Contains(p.owners, owner) || p.repos[owner] == nil {
			continue
		}
		var named []string
		for _, state := range p.v.StatesFor(owner) {
			named = append(named, state.Objects()...)
		}
		named = append(named, p.pullCommits()[owner]...)
		missing, err := p.missing(ctx, owner, named)
		p.note(p.place(owner), err)
		if err == nil && len(missing) < len(named) {
			ready = append(ready, a.Event)
		}
	}
	return ready
}

// states are the held ones whose objects are all in some repository whose announcement is accepted,
// or leaves with them, and whose author is a confirmed maintainer there: each author's newest.
// Those that are not the newest of all are served too, and count when the newer ones do not any
// more. A state that names no objects is complete at once, and would otherwise be served though
// nothing of its repository ever came.
func (p *pass) states(leaving []*nostr.Event) (ready []*nostr.Event) {
	counts := map[string]bool{}
	for _, a := range p.v.Announcements {
		if !a.Held || slices.Contains(leaving, a.Event) {
			maps.Copy(counts, p.whole[a.Ref.PubKey])
		}
	}
	for _, state := range p.v.States {
		if state.Held && counts[state.Event.ID] {
			ready = append(ready, state.Event)
		}
	}
	return ready
}

// alignStates applies to an owner's repository the state that counts there: the newest by a
// confirmed maintainer whose objects are all there, after they were brought together from the other
// repositories for which its author speaks. A state that no repository can have counts nowhere.
// Where none counts, because no one has authority or no state is left, the references stay as they
// are, unless the author of the state that they follow has deleted it. A held announcement waits
// for data, so objects of accepted states that do not count come too, until there are some.
func (p *pass) alignStates(ctx context.Context, owner string) error {
	repo := p.locked[owner]
	if repo == nil {
		return nil
	}
	whole, authors := map[string]bool{}, map[string]bool{}
	p.whole[owner] = whole
	seeks := p.seeks(owner)
	for _, state := range p.v.StatesFor(owner) {
		_, applied := p.applied[owner]
		if authors[state.Event.PubKey] || applied && !state.Held && !seeks {
			continue // of an author the newest counts that is complete
		}
		complete, err := p.gather(ctx, owner, p.sources(state.Event.PubKey), state.Objects(), 0)
		if err != nil {
			return err
		}
		if !complete {
			continue
		}
		if !applied {
			if applied, err = p.apply(ctx, owner, state); err != nil {
				return err
			}
			if !applied {
				continue
			}
		}
		if authors[state.Event.PubKey] = true; state.Held {
			whole[state.Event.ID] = true
		}
		seeks = seeks && len(state.Objects()) == 0
	}
	if _, applied := p.applied[owner]; applied {
		return nil
	}
	deleted, err := p.Events.StateDeleted(ctx, p.place(owner), p.v.Group(owner).Confirmed)
	if err != nil || !p.trial[owner] && !deleted {
		return err
	}
	// The state that these references follow was refused, or deleted, and no other counts.
	before := &nostr.State{}
	if !deleted {
		if before, err = p.followed(ctx, repo.Place); err != nil {
			return err
		}
	}
	if err = repo.SetRefs(ctx, before.Refs, before.Symbolic, before.Head); p.isBroken(err) {
		err = repo.SetRefs(ctx, nil, nil, "")
	}
	if err != nil {
		return fmt.Errorf("take back the references of a state that does not count: %w", err)
	}
	p.trial[owner] = false
	return nil
}

// followed is the state that the references of a repository followed last; the zero value: there is
// none in the log.
func (p *pass) followed(ctx context.Context, at repository.Place) (*nostr.State, error) {
	ev, err := p.Events.Followed(ctx, at)
	if ev == nil || err != nil {
		return &nostr.State{}, err
	}
	return nostr.ParseState(ev)
}

// seeks reports whether a repository waits for any data that its maintainers' states name, also that
// of accepted ones that do not count there: else a newer state without objects, which is complete at
// once, would keep the announcement waiting or not, depending on which event came first. An owner
// who only points to a lead gets copies of what references reach, and no more.
func (p *pass) seeks(owner string) bool { return p.v.Holds(owner) && p.v.Group(owner).Has(owner) }

// apply makes the references of an owner's repository those of a state; false: they cannot be.
func (p *pass) apply(ctx context.Context, owner string, state repostate.State) (applied bool, err error) {
	repo := p.locked[owner]
	err = repo.SetRefs(ctx, state.Refs, state.Symbolic, state.Head)
	switch {
	case p.isBroken(err):
		return false, nil
	case errors.Is(err, repository.ErrUnfit):
		p.Log.Warn("a state cannot be applied", "repository", repo.RepoRef, "event", state.Event.ID, "error", err)
		return false, nil
	case err != nil:
		return false, fmt.Errorf("apply state %s: %w", state.Event.ID, err)
	}
	p.trial[owner] = state.Held
	p.applied[owner] = state
	return true, nil
}

// sources are the owners in whose repositories the objects of an author's event may be: those for
// whom the author speaks, the author and those who may be changed now first.
func (p *pass) sources(author string) []string {
	owners := p.v.OwnersFor(author)
	first := slices.DeleteFunc(slices.Clone(owners), func(owner string) bool {
		return owner != author &&
			!slices.Contains(p.owners, owner)
	})
	return slices.Concat(first, owners[:min(len(owners), maxSources)])
}

// gather brings objects into an owner's repository from the sources, which may share objects with
// it, and reports whether all are there then. Nothing is brought if some of them are nowhere. What
// is there but not whole counts as not there. paid is as in bring.
func (p *pass) gather(ctx context.Context, owner string, sources, objects []string, paid int64) (complete bool,
	err error) {
	missing, err := p.missing(ctx, owner, objects)
	if err != nil {
		return false, err
	}
	bring := map[string][]string{} // source → objects
	var from []string
	for _, source := range sources {
		if len(missing) == 0 || source == owner || p.repo(source) == nil {
			continue
		}
		absent, err := p.missing(ctx, source, missing)
		if err != nil {
			return false, err
		}
		if len(absent) < len(missing) {
			bring[source] = slices.DeleteFunc(slices.Clone(missing), func(id string) bool { return !p.has[source][id] })
			from = append(from, source)
		}
		missing = absent
	}
	if len(missing) > 0 {
		return false, nil
	}
	for _, source := range from {
		brought, err := p.bring(ctx, owner, source, bring[source], paid)
		if p.isBroken(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("from %s: %w", p.repos[source].Place, err)
		}
		if !brought {
			return false, nil
		}
	}
	for _, id := range objects {
		p.has[owner][id] = true
	}
	return true, nil
}

// bring brings objects from one repository to another. Those with the same root share them. Another
// gets copies, and its owner is charged: no packs are linked because a stranger wrote a name. Of what
// somebody pays for already, paid is how many bytes that may be; else it is 0.
func (p *pass) bring(ctx context.Context, owner, source string, objects []string, paid int64) (brought bool,
	err error) {
	into, from := p.locked[owner], p.repos[source]
	done := func(err error) error {
		brought = err == nil
		return err
	}
	copied := func(most int64) error { return done(into.Copy(ctx, from, objects, most)) }
	switch {
	case paid > 0:
		err = copied(paid)
	case slices.Contains(p.v.Sharing(owner), source):
		err = done(into.Share(ctx, from, objects))
	default:
		err = p.Events.Paid(ctx, into, owner, p.v.Serves(owner), copied)
	}
	return brought, err
}

// isBroken reports whether an error is that of objects that are there but not whole.
func (p *pass) isBroken(err error) bool {
	broken := errors.Is(err, repository.ErrBroken)
	if broken {
		p.Log.Warn("git data is there in part only", "identifier", p.v.Identifier, "error", err)
	}
	return broken
}

// missing returns those of the objects that a repository lacks. It is asked once, for all that
// concerns it. What references name is there, so that no git is started for a push that has just
// come.
func (p *pass) missing(ctx context.Context, key string, wanted []string) ([]string, error) {
	known, repo := p.has[key], p.repos[key]
	ask := wanted
	if known == nil {
		known = map[string]bool{}
		p.has[key] = known
		refs, err := repo.BranchesAndTags(refNames(p.look.Events)...)
		if err != nil {
			return nil, err
		}
		for _, id := range refs.ByName {
			known[id] = true
		}
		ask = slices.Concat(wanted, p.concerns(key, known))
	}
	ask = slices.DeleteFunc(slices.Clone(ask), func(id string) bool {
		_, asked := known[id]
		return asked
	})
	absent, err := repo.Missing(ctx, ask)
	if err != nil {
		return nil, err
	}
	for _, id := range ask {
		known[id] = true
	}
	for _, id := range absent {
		known[id] = false
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(id string) bool { return known[id] }), nil
}

// concerns are the objects that an owner's repository may soon be asked for: those of its states, of
// a served one up to the newest accepted state, or to one whose objects references name, and
// commits of pull requests.
func (p *pass) concerns(owner string, named map[string]bool) (ids []string) {
	counted := false // a state that counts, or may
	for _, state := range p.v.StatesFor(owner) {
		if counted && !state.Held && !p.v.Holds(owner) {
			continue
		}
		objects := state.Objects()
		if slices.ContainsFunc(objects, func(id string) bool { return !named[id] }) {
			ids = append(ids, objects...)
			counted = counted || !state.Held
		} else {
			counted = true
		}
	}
	return append(ids, p.pullCommits()[owner]...)
}

// pullCommits are the commits of pull requests that may be in each owner's repository.
func (p *pass) pullCommits() map[string][]string {
	if p.commits == nil {
		p.commits = map[string][]string{}
		for _, pr := range p.v.PullRequests {
			for _, owner := range p.v.Tagged(pr) {
				p.commits[owner] = append(p.commits[owner], pr.Commit)
			}
		}
	}
	return p.commits
}
