package purgatory

import (
	"context"
	"fmt"
	"slices"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repostate"
)

const (
	// maxAround bounds the keys whose announcements are looked for on behalf of one owner or one pull
	// request, as authority.MaxLooks does for one question.
	maxAround = 4096
	// othersShown is how many of the newest states by others are read, so that a push can be told
	// whose they are.
	othersShown = 16
	// keysAtOnce bounds the authors of one question. With more the index would not go by authors, and
	// would walk through all of the identifier (eventdb.MaxMerged).
	keysAtOnce = 32
)

// around gathers what is known at this moment of the repositories of some owners: the announcements
// that their chains reach, the states of these people, and the pull requests for them, and others by
// their ids. Of the identifier it reads nothing else: anybody may announce it, and what is done for
// one repository must not cost what all of them say. Who names a lead in a chain, without being
// listed in it, is not found here.
func (w *knowledge) around(ctx context.Context, identifier string, owners, pulls []string) (v repostate.View,
	err error) {
	if err := w.holdings.CatchUp(ctx); err != nil {
		return v, fmt.Errorf("read what is held: %w", err)
	}
	r := chain{knowledge: w, identifier: identifier, lists: map[string][]string{}}
	var starts [][]string
	for _, owner := range owners {
		starts = append(starts, []string{owner})
	}
	err = r.follow(ctx, starts)
	var repos map[string][]nostr.RepoRef
	if err == nil {
		repos, err = r.pulls(ctx, owners, pulls)
	}
	if err == nil {
		err = r.states(ctx)
	}
	if err != nil {
		return v, err
	}
	v = w.view(identifier, r.have, r.entries)
	for _, pr := range v.PullRequests {
		pr.Repos = repos[pr.Event.ID]
	}
	return v, nil
}

// chain is what is read around some people of an identifier. What is held is read before what is
// accepted: an event that leaves purgatory while we look is seen in at least one of the two.
type chain struct {
	*knowledge
	identifier string
	lists      map[string][]string // by a key whose announcement was looked for: whom that names
	people     []string            // these keys, the nearest first
	have       []*nostr.Event
	entries    []*held.Entry
}

// follow reads the announcements of some keys, of whom these list, and so on. Each of the starts has
// room of its own, so that no owner's people take the place of another's.
func (r *chain) follow(ctx context.Context, starts [][]string) error {
	seen := make([]map[string]bool, len(starts))
	for i := range seen {
		seen[i] = map[string]bool{}
	}
	for more := true; more; {
		var unread []string
		for i, keys := range starts {
			starts[i] = nil
			for _, key := range keys {
				if seen[i][key] || len(seen[i]) == maxAround {
					continue
				}
				seen[i][key], starts[i] = true, append(starts[i], key)
				if _, read := r.lists[key]; !read {
					r.lists[key], unread = nil, append(unread, key)
				}
			}
		}
		if err := r.announcements(ctx, unread); err != nil {
			return err
		}
		more = false
		for i, keys := range starts {
			starts[i] = nil
			for _, key := range keys {
				starts[i] = append(starts[i], r.lists[key]...)
			}
			more = more || len(starts[i]) > 0
		}
	}
	return nil
}

// announcements reads the announcements of some keys.
func (r *chain) announcements(ctx context.Context, authors []string) error {
	if len(authors) == 0 {
		return nil
	}
	events, entries, err := r.by(ctx, nostr.KindAnnouncement, authors)
	if err != nil {
		return err
	}
	r.people, r.have, r.entries = append(r.people, authors...), append(r.have, events...), append(r.entries, entries...)
	for _, e := range entries {
		events = append(events, e.Event)
	}
	for _, ev := range events {
		if a, err := nostr.ParseAnnouncement(ev); err == nil {
			r.lists[ev.PubKey] = slices.Concat(r.lists[ev.PubKey], a.Listed, a.Leads)
		}
	}
	return nil
}

// by reads the events of a kind of the identifier by some authors.
func (r *chain) by(ctx context.Context, kind int, authors []string) (events []*nostr.Event, entries []*held.Entry,
	err error) {
	for _, author := range authors {
		entries = append(entries, r.holdings.At(nostr.Address{Kind: kind, PubKey: author, Identifier: r.identifier})...)
	}
	if err := r.CatchUp(ctx); err != nil {
		return nil, nil, err
	}
	for some := range slices.Chunk(authors, keysAtOnce) {
		found, err := r.accepted(ctx, nostr.Filter{Kinds: []int{kind}, Authors: some,
			Tags: nostr.TagMap{"d": {r.identifier}}})
		if err != nil {
			return nil, nil, err
		}
		events = append(events, found...)
	}
	return events, entries, nil
}

func (r *chain) accepted(ctx context.Context, filter nostr.Filter) (events []*nostr.Event, err error) {
	for ev, err := range r.events.Query(ctx, filter) {
		if err != nil {
			return nil, fmt.Errorf("read what is accepted of %q: %w", r.identifier, err)
		}
		events = append(events, ev)
	}
	return events, nil
}

// pulls reads the pull requests and updates of some ids, and the held ones that are for one of the
// people or by an owner, who may offer them here (GRASP-06), with whom else they are for. It returns
// what each is for, by id.
func (r *chain) pulls(ctx context.Context, owners, ids []string) (repos map[string][]nostr.RepoRef, err error) {
	repos = map[string][]nostr.RepoRef{}
	var starts [][]string
	add := func(ev *nostr.Event, wanted bool) (is bool, err error) {
		pr, err := nostr.ParsePullRequest(ev)
		if _, again := repos[ev.ID]; again || err != nil {
			return false, nil
		}
		refs, err := r.Repos(ctx, pr)
		if err != nil {
			return false, err
		}
		wanted = wanted || len(refs) == 0 || slices.Contains(owners, ev.PubKey)
		people := []string{ev.PubKey} // who pays, and may be served
		for _, ref := range slices.Concat(refs, repostate.Cloned(pr, r.rules.Domain())) {
			if ref.Identifier == r.identifier {
				_, reached := r.lists[ref.PubKey]
				wanted, people = wanted || reached, append(people, ref.PubKey)
			}
		}
		if wanted {
			repos[ev.ID], starts = refs, append(starts, people)
		}
		return wanted, nil
	}
	hold := func(e *held.Entry, wanted bool) error {
		is, err := add(e.Event, wanted)
		if is {
			r.entries = append(r.entries, e)
		}
		return err
	}
	for _, e := range r.holdings.OfKinds(r.identifier, nostr.KindPR, nostr.KindPRUpdate) {
		if err := hold(e, slices.Contains(ids, e.Event.ID)); err != nil {
			return nil, err
		}
	}
	for _, id := range ids {
		if e := r.holdings.ByID(id); e != nil {
			if err := hold(e, true); err != nil {
				return nil, err
			}
		}
	}
	if len(ids) > 0 {
		err = r.CatchUp(ctx)
	}
	for some := range slices.Chunk(ids, valuesAtOnce) {
		var events []*nostr.Event
		if err == nil {
			events, err = r.accepted(ctx, nostr.Filter{IDs: some})
		}
		for _, ev := range events {
			if err == nil {
				_, err = add(ev, true)
				r.have = append(r.have, ev)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return repos, r.follow(ctx, starts)
}

// states reads the states of the people, and the newest of others.
func (r *chain) states(ctx context.Context) error {
	events, entries, err := r.by(ctx, nostr.KindState, r.people)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, ev := range events {
		seen[ev.ID] = true
	}
	for _, e := range entries {
		seen[e.Event.ID] = true
	}
	waiting := r.holdings.OfKinds(r.identifier, nostr.KindState)
	slices.SortFunc(waiting, func(a, b *held.Entry) int { return int(b.Event.CreatedAt - a.Event.CreatedAt) })
	for _, e := range waiting[:min(len(waiting), othersShown)] {
		if !seen[e.Event.ID] {
			entries = append(entries, e)
		}
	}
	others, err := r.accepted(ctx, nostr.Filter{
		Kinds: []int{nostr.KindState}, Tags: nostr.TagMap{"d": {r.identifier}}, Limit: othersShown,
	})
	if err != nil {
		return err
	}
	for _, ev := range others {
		if !seen[ev.ID] {
			events = append(events, ev)
		}
	}
	r.have, r.entries = append(r.have, events...), append(r.entries, entries...)
	return nil
}
