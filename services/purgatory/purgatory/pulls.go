package purgatory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/release"
)

const (
	// maxFollowed bounds the identifiers to which one pull request brings its commit.
	maxFollowed = 16
	// maxOwed bounds the accepted pull requests of one identifier that are looked after at once.
	maxOwed = 256
	// valuesAtOnce bounds the values of a query of the index.
	valuesAtOnce = 200
)

// pulls are the accepted pull requests and updates of the identifiers that this worker holds: whose
// commit is still to be named in some repository, and where one is named, so that a deletion finds
// it. Everything in here can be found again by lookForOwed.
type pulls struct {
	mu sync.Mutex
	by map[string]*pullsOf        // identifier
	at map[string]map[string]bool // event id → identifiers
}

type pullsOf struct {
	checked   bool                 // what was accepted before was looked at
	ids       map[string]bool      // those that at has for this identifier
	owed      map[string]time.Time // event id → since when
	withdrawn map[string]bool      // ids that were accepted and are not any more
}

func newPulls() *pulls {
	return &pulls{by: map[string]*pullsOf{}, at: map[string]map[string]bool{}}
}

func (p *pulls) of(identifier string) *pullsOf {
	one := p.by[identifier]
	if one == nil {
		one = &pullsOf{ids: map[string]bool{}, owed: map[string]time.Time{}, withdrawn: map[string]bool{}}
		p.by[identifier] = one
	}
	return one
}

// note says that an accepted event is for repositories of an identifier. owed: it is still to be
// named in one.
func (p *pulls) note(identifier, id string, owed bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at[id] == nil {
		p.at[id] = map[string]bool{}
	}
	p.at[id][identifier] = true
	one := p.of(identifier)
	one.ids[id] = true
	if _, already := one.owed[id]; owed && !already && len(one.owed) < maxOwed {
		one.owed[id] = now
	}
}

// owed are the events of an identifier that are still to be named, in order of their ids, and those
// that were deleted. What could not be named within hold is given up until it is looked for again.
func (p *pulls) owed(identifier string, now time.Time, hold time.Duration) (ids []string, withdrawn map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.by[identifier]
	if one == nil {
		return nil, nil
	}
	maps.DeleteFunc(one.owed, func(_ string, since time.Time) bool { return now.Sub(since) >= hold })
	return slices.Sorted(maps.Keys(one.owed)), maps.Clone(one.withdrawn)
}

// settled says which of the events that were looked after are still to be named, and that
// references of the withdrawn ones are gone.
func (p *pulls) settled(d dossier.Dossier, owed []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.by[d.Identifier]
	if one == nil {
		return
	}
	for _, pr := range d.PullRequests {
		if !pr.Held && !slices.Contains(owed, pr.Event.ID) {
			delete(one.owed, pr.Event.ID)
		}
	}
	for id := range d.Withdrawn {
		delete(one.withdrawn, id)
	}
}

// withdraw notes that an event is not accepted any more, and returns the identifiers that this
// concerns.
func (p *pulls) withdraw(id string) (identifiers []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for identifier := range p.at[id] {
		one := p.of(identifier)
		delete(one.ids, id)
		delete(one.owed, id)
		one.withdrawn[id] = true
		identifiers = append(identifiers, identifier)
	}
	delete(p.at, id)
	return identifiers
}

func (p *pulls) known(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at[id] != nil
}

// check reports whether what was accepted of an identifier before must be looked at, and notes
// that it is.
func (p *pulls) check(identifier string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.of(identifier)
	due := !one.checked
	one.checked = true
	return due
}

// recheck makes check say so again: others may be hosted now, or speak for what is.
func (p *pulls) recheck(identifier string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.by[identifier]; one != nil {
		one.checked = false
	}
}

// forget is for an identifier of which nothing is hosted.
func (p *pulls) forget(identifier string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave(identifier)
}

// leave forgets an identifier and the events that are known for its sake alone. p.mu is held.
func (p *pulls) leave(identifier string) {
	one := p.by[identifier]
	if one == nil {
		return
	}
	for id := range one.ids {
		delete(p.at[id], identifier)
		if len(p.at[id]) == 0 {
			delete(p.at, id)
		}
	}
	delete(p.by, identifier)
}

// drop forgets the identifiers of a shard.
func (p *pulls) drop(shard int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for identifier := range p.by {
		if proto.ShardOf(identifier) == shard {
			p.leave(identifier)
		}
	}
}

// heardPull hears of an accepted pull request or update: its commit must be named in repositories
// of every identifier that it tags.
func (w *worker) heardPull(ev *nostr.Event) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	refs, err := reposOf(ctx, w.events, ev)
	if err != nil {
		w.log.Error("an accepted pull request could not be applied", "event", ev.ID, "error", err)
	}
	for _, identifier := range identifiersOf(refs) {
		if w.shards.Holds(identifier) {
			w.pulls.note(identifier, ev.ID, true, time.Now())
			w.due.add(identifier)
		}
	}
}

// heardDeletion hears of an accepted deletion request: references that are named for what it
// deletes go.
func (w *worker) heardDeletion(ev *nostr.Event) {
	for tag := range ev.Tags.FindAll("e") {
		if !w.pulls.known(tag[1]) {
			continue
		}
		have, err := w.accepted(tag[1])
		if err != nil {
			w.log.Error("an accepted deletion request could not be applied", "event", tag[1], "error", err)
		}
		if have != nil || err != nil {
			continue // another's, or deletions are not respected here
		}
		for _, identifier := range w.pulls.withdraw(tag[1]) {
			w.due.add(identifier)
		}
	}
}

// reposOf are the repositories that a pull request or update is for; an update also those of its
// pull request.
func reposOf(ctx context.Context, from events, ev *nostr.Event) ([]nostr.RepoRef, error) {
	pr, err := nostr.ParsePullRequest(ev)
	if err != nil {
		return nil, nil // of another kind, or one that nobody would accept
	}
	if !pr.Update {
		return pr.Repos, nil
	}
	root, err := query.Event(ctx, from, pr.Root)
	if errors.Is(err, query.ErrNotFound) {
		return pr.Repos, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pull request %s: %w", pr.Root, err)
	}
	refs := pr.Repos
	for _, ref := range nostr.RootRefs(root) {
		if !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	return refs, nil
}

// identifiersOf are those of repositories, each once, as many as are followed.
func identifiersOf(refs []nostr.RepoRef) (identifiers []string) {
	for _, ref := range refs {
		if len(identifiers) < maxFollowed && !slices.Contains(identifiers, ref.Identifier) {
			identifiers = append(identifiers, ref.Identifier)
		}
	}
	return identifiers
}

// lookForOwed looks once through the accepted pull requests and updates that are for hosted
// repositories of an identifier, and notes those whose commit is not named in all of them. It
// reports whether there were any. So it is found what happened while nobody held the shard, and
// what is for a repository that is new.
func (w *worker) lookForOwed(ctx context.Context, d dossier.Dossier) (looked bool, err error) {
	if len(d.Hosted()) == 0 {
		w.pulls.forget(d.Identifier)
		return false, nil
	}
	if !w.pulls.check(d.Identifier) {
		return false, nil
	}
	defer func() {
		if err != nil {
			w.pulls.recheck(d.Identifier)
		}
	}()
	found, err := pullsFor(ctx, w.events, d)
	if err != nil || len(found) == 0 {
		return false, err
	}
	tips := map[string]map[string]string{}
	for _, owner := range d.Hosted() {
		repo, err := w.store.Repo(nostr.RepoRef{PubKey: owner, Identifier: d.Identifier})
		if err == nil {
			tips[owner], err = release.Tips(ctx, repo)
		}
		if err != nil {
			return false, err
		}
	}
	for _, ev := range found {
		pr, err := nostr.ParsePullRequest(ev)
		if err != nil {
			continue
		}
		if pr.Repos, err = reposOf(ctx, w.events, ev); err != nil {
			return false, err
		}
		owed := slices.ContainsFunc(d.Tagged(dossier.PullRequest{PullRequest: pr}), func(owner string) bool { return tips[owner][ev.ID] != pr.Commit })
		w.pulls.note(d.Identifier, ev.ID, owed, time.Now())
	}
	return true, nil
}

// pullsFor are the accepted pull requests that tag somebody who speaks for a hosted repository, and
// the accepted updates of those.
func pullsFor(ctx context.Context, from events, d dossier.Dossier) (list []*nostr.Event, err error) {
	var addresses, roots []string
	for _, pubkey := range d.People() {
		addresses = append(addresses, nostr.RepoRef{PubKey: pubkey, Identifier: d.Identifier}.String())
	}
	seen := map[string]bool{}
	query := func(tag string, values []string, kinds ...int) error {
		for some := range slices.Chunk(values, valuesAtOnce) {
			for ev, err := range from.Query(ctx, nostr.Filter{Kinds: kinds, Tags: nostr.TagMap{tag: some}}) {
				if err != nil {
					return fmt.Errorf("look for pull requests of %q: %w", d.Identifier, err)
				}
				if seen[ev.ID] {
					continue
				}
				seen[ev.ID] = true
				list = append(list, ev)
				if ev.Kind == nostr.KindPR {
					roots = append(roots, ev.ID)
				}
			}
		}
		return nil
	}
	if err := query("a", addresses, nostr.KindPR, nostr.KindPRUpdate); err != nil {
		return nil, err
	}
	for _, tag := range []string{"E", "e"} {
		if err := query(tag, roots, nostr.KindPRUpdate); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// others are what is accepted of other identifiers, looked up once each while pull requests of one
// identifier are looked at.
type others struct {
	worker *worker
	by     map[string]dossier.Dossier
}

// maxOthers bounds the other identifiers that are looked up for the pull requests of one.
const maxOthers = 64

// hosted are the hosted repositories of other identifiers that a pull request is for.
func (o *others) hosted(ctx context.Context, identifier string, pr *nostr.PullRequest) (refs []nostr.RepoRef, err error) {
	for _, other := range identifiersOf(pr.Repos) {
		d, known := o.by[other]
		if other == identifier || !known && len(o.by) == maxOthers {
			continue
		}
		if !known {
			have, err := acceptedOf(ctx, o.worker.events, other)
			if err != nil {
				return nil, err
			}
			d = dossier.New(other, o.worker.rules, have, nil)
			o.by[other] = d
		}
		for _, owner := range d.Tagged(dossier.PullRequest{PullRequest: pr}) {
			refs = append(refs, nostr.RepoRef{PubKey: owner, Identifier: other})
		}
	}
	return refs, nil
}
