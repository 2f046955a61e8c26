package purgatory

import (
	"context"
	"fmt"
	"slices"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repostate"
)

// maxAround bounds the keys whose announcements are looked for, as authority.MaxLooks does for one
// question.
const maxAround = 4096

// othersShown is how many of the newest states by others are read, so that a push can be told whose
// they are.
const othersShown = 16

// around gathers what is known at this moment of an owner's repository: the announcements that its
// chain reaches, the states of these people, and the pull requests for them. Of the identifier it
// reads nothing else: anybody may announce it, and a push must not cost what all of them say. Who
// names a lead in the chain, without being listed in it, is not found here.
func (w *knowledge) around(ctx context.Context, ref nostr.RepoRef) (v repostate.View, err error) {
	if err := w.holdings.CatchUp(ctx); err != nil {
		return v, fmt.Errorf("read what is held: %w", err)
	}
	r := chain{knowledge: w, identifier: ref.Identifier, read: map[string]bool{}}
	if err := r.follow(ctx, []string{ref.PubKey}); err != nil {
		return v, err
	}
	repos, err := r.pulls(ctx, ref.PubKey)
	if err != nil {
		return v, err
	}
	if err := r.states(ctx); err != nil {
		return v, err
	}
	v = w.view(ref.Identifier, r.have, r.entries)
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
	read       map[string]bool // keys whose announcements were looked for
	people     []string        // the same, the nearest first
	have       []*nostr.Event
	entries    []*held.Entry
}

// follow reads the announcements of some keys, of whom these list, and so on.
func (r *chain) follow(ctx context.Context, keys []string) error {
	for {
		var next []string
		for _, key := range keys {
			if !r.read[key] && len(r.read) < maxAround {
				r.read[key], next = true, append(next, key)
			}
		}
		if len(next) == 0 {
			return nil
		}
		r.people = append(r.people, next...)
		events, entries, err := r.by(ctx, nostr.KindAnnouncement, next)
		if err != nil {
			return err
		}
		r.have, r.entries, keys = append(r.have, events...), append(r.entries, entries...), nil
		for _, e := range entries {
			events = append(events, e.Event)
		}
		for _, ev := range events {
			if a, err := nostr.ParseAnnouncement(ev); err == nil {
				keys = append(append(keys, a.Listed...), a.Leads...)
			}
		}
	}
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
	for some := range slices.Chunk(authors, valuesAtOnce) {
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

// pulls reads the held pull requests and updates that are for one of the people or by the owner,
// who may offer them here (GRASP-06), with whom else they are for. It returns what each is for, by
// id.
func (r *chain) pulls(ctx context.Context, owner string) (repos map[string][]nostr.RepoRef, err error) {
	repos = map[string][]nostr.RepoRef{}
	var others []string
	for _, e := range r.holdings.OfKinds(r.identifier, nostr.KindPR, nostr.KindPRUpdate) {
		pr, err := nostr.ParsePullRequest(e.Event)
		if err != nil {
			continue
		}
		refs, err := r.Repos(ctx, pr)
		if err != nil {
			return nil, err
		}
		isFor := func(ref nostr.RepoRef) bool { return ref.Identifier == r.identifier && r.read[ref.PubKey] }
		if len(refs) > 0 && e.Event.PubKey != owner && !slices.ContainsFunc(refs, isFor) {
			continue
		}
		r.entries, repos[pr.Event.ID] = append(r.entries, e), refs
		others = append(others, e.Event.PubKey) // who pays, and may be served
		for _, ref := range refs {
			if ref.Identifier == r.identifier {
				others = append(others, ref.PubKey)
			}
		}
	}
	return repos, r.follow(ctx, others)
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
