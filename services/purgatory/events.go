package purgatory

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

const (
	// lookTime bounds the look-up of an accepted event: while no answer comes, the caller is told so.
	lookTime = 10 * time.Second
	// maxFollowed bounds the repositories that are looked at for one pull request.
	maxFollowed = 256
	// valuesAtOnce bounds the values of a query of the index.
	valuesAtOnce = 200
	// maxOwed bounds the accepted pull requests of one identifier whose commits are named at once.
	maxOwed = 256
)

// changed hears of every change among the held events. It must be quick.
func (w *follower) changed(c held.Change) {
	identifier := c.Identifier()
	for _, entry := range []*held.Entry{c.Before, c.Entry} {
		if entry != nil {
			w.awaited(entry.Event.ID)
		}
	}
	if !w.shards.Holds(identifier) {
		return
	}
	waited := c.Before != nil && c.Before.Phase == proto.PhaseWaiting
	// An entry that is written again, with another clock, is no new event.
	if c.Entry != nil && c.Entry.Phase == proto.PhaseWaiting && (!waited || c.Before.Event.ID != c.Entry.Event.ID) {
		delay := w.constants.SyncDelay // for more of what a relay sends
		if c.Entry.Source == proto.SourceUser {
			delay = w.constants.UserDelay // for a push
		}
		w.schedule.hunter.Add(identifier, delay)
	}
	for _, entry := range []*held.Entry{c.Before, c.Entry} {
		if entry == nil {
			continue
		}
		w.schedule.enqueueFor(entry)
	}
	if e := cmp.Or(c.Entry, c.Before); e != nil && e.Announcement != nil {
		listed := e.Announcement.Listed
		if c.Entry == nil || c.Entry.Phase == proto.PhaseSilent {
			listed = nil
		}
		w.schedule.enqueueConcerned(e.Event.PubKey, identifier, listed)
	}
	w.schedule.awaitEnd(c)
}

// awaitEnd has it looked at when the time of a held event may be over. Where a state comes or goes,
// another one may have been the newest that stays.
func (w *schedule) awaitEnd(c held.Change) {
	if c.Entry != nil {
		at, will := expiresAt(c.Entry.Event, time.Now())
		if !will || c.Entry.ExpiresAt.Before(at) {
			at = c.Entry.ExpiresAt
		}
		w.queue.addIdentifier(c.Identifier(), at)
	}
	for _, e := range []*held.Entry{c.Before, c.Entry} {
		if e != nil && e.Event.Kind == nostr.KindState {
			w.queue.addIdentifier(c.Identifier(), time.Now())
		}
	}
}

// enqueueFor has the repositories looked at that a held event is for.
func (w *schedule) enqueueFor(e *held.Entry) {
	switch e.Event.Kind {
	case nostr.KindAnnouncement:
		w.enqueue(placeOf(e.Event.PubKey, e.Identifier), groupAndAcceptedPRs)
	case nostr.KindState:
		w.enqueue(placeOf(e.Event.PubKey, e.Identifier), maintainerGroup)
	default:
		w.queue.addIdentifier(e.Identifier, time.Now(), e.Event.ID)
	}
}

// heard hears of newly accepted events: an announcement may let others' states and pull requests
// count, and may end the hosting of a repository or begin it again; a pull request may be for
// repositories of several identifiers; a deletion request may name any of these.
func (w *follower) heard(recs []eventdb.Record) {
	for _, r := range recs {
		w.awaited(r.Event.ID)
		switch r.Event.Kind {
		case nostr.KindAnnouncement:
			w.schedule.enqueue(placeOf(r.Event.PubKey, r.Event.Tags.GetD()), groupAndAcceptedPRs)
			if a, err := nostr.ParseAnnouncement(r.Event); err == nil {
				w.schedule.enqueueConcerned(a.Ref.PubKey, a.Ref.Identifier, a.Listed)
			}
		case nostr.KindPR, nostr.KindPRUpdate:
			w.heardPull(r.Event)
		case nostr.KindDeletion:
			w.heardDeletion(r)
		case nostr.KindVanish:
			w.heardVanish(r.Event)
		}
	}
}

// heardPull hears of an accepted pull request or update: its commit must be named in repositories
// of every identifier that it tags.
func (w *follower) heardPull(ev *nostr.Event) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	pr, err := nostr.ParsePullRequest(ev)
	if err != nil {
		return // ingest would not accept it
	}
	refs, err := w.knowledge.Repos(ctx, pr)
	if err != nil {
		w.log.Error("an accepted pull request could not be applied", "event", ev.ID, "error", err)
	}
	refs = append(slices.Clone(refs), repostate.Cloned(pr, w.knowledge.rules.Domain())...)
	for _, ref := range refs[:min(len(refs), maxFollowed)] {
		if w.shards.Holds(ref.Identifier) {
			w.schedule.queue.addIdentifier(ref.Identifier, time.Now(), ev.ID)
		}
	}
}

// heardDeletion hears of an accepted deletion request. References that are named for what it
// deletes go. What follows from announcements and states is looked at wherever their author spoke,
// whether or not a repository of the author's is here.
func (w *follower) heardDeletion(r eventdb.Record) {
	ev := r.Event
	for tag := range ev.Tags.FindAll("e") {
		w.awaited(tag[1])
	}
	ended := func(kind int, identifier string) {
		if kind == nostr.KindAnnouncement || kind == nostr.KindState {
			w.schedule.enqueue(placeOf(ev.PubKey, identifier), maintainerGroup)
		}
	}
	for _, f := range r.Floors {
		ended(f.Kind, f.Identifier)
	}
	for tag := range ev.Tags.FindAll("a") {
		if address, err := nostr.ParseAddress(tag[1]); err == nil && address.PubKey == ev.PubKey {
			ended(address.Kind, address.Identifier)
		}
	}
	w.schedule.enqueueAll(nostr.RepoRef{PubKey: ev.PubKey})
	w.schedule.enqueueConcerned(ev.PubKey, "", nil)
}

// heardVanish hears of an accepted request to vanish: it may take all away that its author wrote, in
// whichever repository that counts, and references that are named for it.
func (w *follower) heardVanish(request *nostr.Event) {
	if w.node.Settings.IgnoreDeletions || !w.knowledge.rules.Vanishes(request) {
		return
	}
	w.schedule.enqueueAll(nostr.RepoRef{PubKey: request.PubKey})
	w.schedule.enqueueConcerned(request.PubKey, "", nil)
	go w.lookForHiddenPulls(request.PubKey) // it asks for accepted events, which may take long
}

// enqueueAll has the repositories looked at of an owner, or an identifier.
func (w *schedule) enqueueAll(which nostr.RepoRef) {
	for at, err := range w.store.Places(context.Background(), which) {
		if err != nil {
			w.log.Error("the repositories of a deletion or a ban could not be looked through", "which", which, "error", err)
			return
		}
		w.enqueue(at, maintainerGroup)
	}
}

// banSettles is after which times ingest, which answers for accepted events, knows of a ban too, or
// of its end: mostly the first, but on a busy machine nothing says when.
var banSettles = []time.Duration{500 * time.Millisecond, 2 * time.Second, 10 * time.Second}

// heardBan hears what is banned, or not any more: the repositories that it may concern are looked
// at. Requests for them are refused at once.
func (w *follower) heardBan(what bans.Subject) {
	if !what.Hides() {
		return
	}
	dependent := w.schedule.depends.Of(what.Event) // before the event is hidden
	for _, after := range banSettles {
		time.AfterFunc(after, func() { w.lookForBan(what, dependent) })
	}
}

// lookForBan has the repositories looked at that a ban may concern, or its end. What is held comes
// first: nothing else remembers what waits while it is hidden.
func (w *follower) lookForBan(what bans.Subject, dependent []repository.Place) {
	for _, entry := range w.heldUnder(what) {
		if w.shards.Holds(entry.Identifier) {
			w.schedule.enqueueFor(entry)
		}
	}
	for _, at := range dependent {
		w.schedule.enqueue(at, maintainerGroup)
	}
	if what.Outside != (bans.Outside{}) { // a kind of events, which any repository may have
		w.schedule.enqueueAll(nostr.RepoRef{})
		return
	}
	if what.Event != "" {
		w.awaited(what.Event)
		w.heardEndOfBan(what.Event)
		return
	}
	w.schedule.enqueueAll(nostr.RepoRef{PubKey: what.PubKey, Identifier: what.Identifier})
	w.schedule.enqueueDependent(what.PubKey, what.Identifier)
	w.lookForHiddenPulls(what.PubKey)
}

// heldUnder are the held events of the identifiers of which a ban hides some.
func (w *follower) heldUnder(what bans.Subject) (entries []*held.Entry) {
	identifiers := map[string]bool{what.Identifier: true}
	if entry := w.knowledge.holdings.ByID(what.Event); entry != nil {
		identifiers[entry.Identifier] = true
	}
	if what.PubKey != "" && what.Identifier == "" {
		for _, entry := range w.knowledge.holdings.All() {
			if entry.Event.PubKey == what.PubKey {
				identifiers[entry.Identifier] = true
			}
		}
	}
	for identifier := range identifiers {
		entries = append(entries, w.knowledge.holdings.OfIdentifier(identifier)...)
	}
	return entries
}

// heardEndOfBan has the repositories looked at that depend on an event that is served again.
func (w *follower) heardEndOfBan(id string) {
	ev, err := w.knowledge.Accepted(context.Background(), id)
	if err != nil {
		w.log.Error("an event whose ban has ended could not be read", "event", id, "error", err)
	}
	switch {
	case ev == nil:
	case ev.Kind == nostr.KindAnnouncement || ev.Kind == nostr.KindState:
		w.schedule.enqueue(placeOf(ev.PubKey, ev.Tags.GetD()), maintainerGroup)
		w.schedule.enqueueDependent(ev.PubKey, ev.Tags.GetD())
	case ev.Kind == nostr.KindPR || ev.Kind == nostr.KindPRUpdate:
		w.heardPull(ev)
	}
}

// lookForHiddenPulls has the repositories looked at in which references are named for events that
// are not served now, and those that the pull requests are for that an author has here: the
// author's ban reaches every repository that they name, and so does its end. What an author who
// vanishes wrote is gone from there too.
func (w *follower) lookForHiddenPulls(author string) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	unknown, err := w.knowledge.Unknown(ctx, w.releaser.Tips.Names())
	for _, id := range unknown {
		w.awaited(id)
	}
	if author != "" {
		pulls := nostr.Filter{Kinds: []int{nostr.KindPR, nostr.KindPRUpdate}, Authors: []string{author}}
		for ev, failed := range w.knowledge.events.Query(ctx, pulls) {
			if err = errors.Join(err, failed); failed == nil {
				w.heardPull(ev)
			}
		}
	}
	if err != nil {
		w.log.Error("the pull requests that a ban or a request to vanish concerns could not be looked through", "author",
			author, "error", err)
	}
}

// awaited hears that an event is known now, or not any more: references may be named for it, in
// any repository.
func (w *follower) awaited(id string) {
	for _, at := range w.releaser.Tips.Of(id) {
		w.schedule.enqueue(at, maintainerGroup, id)
	}
}

// CatchUp waits until everything is read that is accepted now.
func (w *knowledge) CatchUp(ctx context.Context) error {
	if err := w.events.CatchUp(ctx); err != nil {
		return fmt.Errorf("read what is accepted: %w", err)
	}
	return nil
}

// view is what is known of an identifier, without what is banned.
func (w *knowledge) view(identifier string, have []*nostr.Event, entries []*held.Entry) repostate.View {
	isBanned := func(ev *nostr.Event) bool { return w.node.Bans.Event(ev) != nil }
	var waiting []proto.Held
	for _, e := range entries {
		if !isBanned(e.Event) {
			waiting = append(waiting, e.Held)
		}
	}
	return repostate.New(identifier, w.rules, slices.DeleteFunc(have, isBanned), waiting)
}

// sources are where git data of an identifier may be found by the announcements of it, all of them,
// and by what is held.
func (w *knowledge) sources(ctx context.Context, identifier string) ([]repostate.Source, error) {
	filter := nostr.Filter{Kinds: []int{nostr.KindAnnouncement}, Tags: nostr.TagMap{"d": {identifier}}}
	var have []*nostr.Event
	for ev, err := range w.events.Query(ctx, filter) {
		if err != nil {
			return nil, fmt.Errorf("read who announces %q: %w", identifier, err)
		}
		have = append(have, ev)
	}
	return w.view(identifier, have, w.holdings.OfIdentifier(identifier)).Sources(), nil
}

// Accepted returns an accepted event, or nil.
func (w *knowledge) Accepted(ctx context.Context, id string) (*nostr.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	ev, err := query.First(ctx, w.events, nostr.Filter{IDs: []string{id}})
	if errors.Is(err, query.ErrNotFound) {
		return nil, nil
	}
	return ev, err
}

// Held returns an event that is held for any identifier, or nil.
func (w *knowledge) Held(id string) *nostr.Event {
	if entry := w.holdings.ByID(id); entry != nil {
		return entry.Event
	}
	return nil
}

// Unknown returns the ids of events that are neither held nor accepted, or are hidden by a ban. An
// event that leaves purgatory while we look is accepted when all is read.
func (w *knowledge) Unknown(ctx context.Context, ids []string) ([]string, error) {
	unknown := map[string]bool{}
	for _, id := range ids {
		if w.Held(id) == nil {
			unknown[id] = true
		}
	}
	if len(unknown) == 0 {
		return nil, nil
	}
	if err := w.CatchUp(ctx); err != nil {
		return nil, err
	}
	for some := range slices.Chunk(slices.Collect(maps.Keys(unknown)), valuesAtOnce) {
		for id, err := range w.shownIDs(ctx, some) {
			if err != nil {
				return nil, fmt.Errorf("look for events: %w", err)
			}
			delete(unknown, id)
		}
	}
	return slices.Collect(maps.Keys(unknown)), nil
}

// shownIDs are those of some ids whose events are accepted and not hidden. Asked for ids alone, the
// index tells of hidden events too; so where anything is banned, the events are read.
func (w *knowledge) shownIDs(ctx context.Context, ids []string) iter.Seq2[string, error] {
	filter := nostr.Filter{IDs: ids}
	return func(yield func(string, error) bool) {
		for range w.node.Bans.Reach() {
			for ev, err := range w.events.Query(ctx, filter) {
				id := ""
				if err == nil {
					id = ev.ID
				}
				if !yield(id, err) {
					return
				}
			}
			return
		}
		for id, err := range w.events.IDs(ctx, filter) {
			if !yield(hex.EncodeToString(id[:]), err) {
				return
			}
		}
	}
}

// PullsBy implements release.Events.
func (w *knowledge) PullsBy(ctx context.Context, author string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		filter := nostr.Filter{Kinds: []int{nostr.KindPR, nostr.KindPRUpdate}, Authors: []string{author}}
		for id, err := range w.events.IDs(ctx, filter) {
			if !yield(hex.EncodeToString(id[:]), err) {
				return
			}
		}
	}
}

// Repos are the repositories that a pull request or update is for; an update also those of its
// pull request.
func (w *knowledge) Repos(ctx context.Context, pr *nostr.PullRequest) ([]nostr.RepoRef, error) {
	if pr.Root == "" {
		return pr.Repos, nil
	}
	root, err := release.Find(ctx, w, pr.Root)
	if root == nil || err != nil {
		return pr.Repos, err
	}
	refs := pr.Repos
	for _, ref := range nostr.RootRefs(root) {
		if !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	return refs, nil
}

// owedPulls looks through the accepted pull requests and updates that are for repositories of some
// owners, and returns the ids of those that are not named in all of them. So it is found what
// happened while no worker held the shard, and what is for a repository that is new.
func (w *reconciler) owedPulls(ctx context.Context, v repostate.View, of func(owner string) bool) (owed []string,
	err error) {
	var addresses, roots []string
	owners := slices.DeleteFunc(slices.Clone(v.Hosted), func(owner string) bool { return !of(owner) })
	for _, pubkey := range v.People(owners) {
		addresses = append(addresses, nostr.RepoRef{PubKey: pubkey, Identifier: v.Identifier}.String())
	}
	seen, crowd := map[string]bool{}, w.releaser.Crowd()
	find := func(values []string, filter func(some []string) nostr.Filter) error {
		for some := range slices.Chunk(values, valuesAtOnce) {
			for ev, err := range w.knowledge.events.Query(ctx, filter(some)) {
				if err != nil {
					return fmt.Errorf("look for pull requests of %q: %w", v.Identifier, err)
				}
				if ev.Kind == nostr.KindPR {
					roots = append(roots, ev.ID)
				}
				if seen[ev.ID] || len(owed) == maxOwed {
					continue
				}
				seen[ev.ID] = true
				is, err := w.isOwed(ctx, v, of, ev, crowd)
				if err != nil {
					return err
				}
				if is {
					owed = append(owed, ev.ID)
				}
			}
		}
		return nil
	}
	tagged := func(tag string, kinds ...int) func([]string) nostr.Filter {
		return func(some []string) nostr.Filter { return nostr.Filter{Kinds: kinds, Tags: nostr.TagMap{tag: some}} }
	}
	err = find(addresses, tagged("a", nostr.KindPR, nostr.KindPRUpdate))
	for _, tag := range []string{"E", "e"} {
		if err == nil {
			err = find(roots, tagged(tag, nostr.KindPRUpdate))
		}
	}
	if err == nil { // who offers a pull request from a fork mostly owns that: no index has clone URLs
		err = find(owners, func(some []string) nostr.Filter {
			return nostr.Filter{Kinds: []int{nostr.KindPR}, Authors: some}
		})
	}
	return owed, err
}

// isOwed reports whether a pull request is not named in some owner's repository that it is for and
// that has room for it, or lets a held announcement go.
func (w *reconciler) isOwed(ctx context.Context, v repostate.View, of func(owner string) bool, ev *nostr.Event,
	crowd *release.Crowd) (bool, error) {
	pr, err := nostr.ParsePullRequest(ev)
	if err != nil {
		return false, nil
	}
	if pr.Repos, err = w.knowledge.Repos(ctx, pr); err != nil {
		return false, err
	}
	w.schedule.awaitExpiration(v, repostate.PullRequest{PullRequest: pr})
	for _, owner := range v.Tagged(repostate.PullRequest{PullRequest: pr}) {
		repo, err := w.store.At(placeOf(owner, v.Identifier))
		if err != nil || !of(owner) || !v.Holds(owner) && repo.IsNamed(repostate.PrefixNostr+ev.ID, pr.Commit) {
			continue
		}
		if v.Serves(ev.PubKey) {
			return true, nil
		}
		if full, err := crowd.Full(ctx, repo, ev.PubKey); err != nil || !full {
			return err == nil, err
		}
	}
	return false, nil
}
