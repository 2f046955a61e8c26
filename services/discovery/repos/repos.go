// Package repos knows which repositories we keep, what each needs, and which relays its owner lists (spec/sync.md, What we want). It is a
// value that events fold into; it does no I/O.
package repos

import (
	"maps"
	"slices"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nip34"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
)

// Book is what is known of all repositories. It is not safe for concurrent use.
type Book struct {
	domain    string // our own: never a target
	bootstrap []nip34.RelayURL
	accepted  map[nip34.RepoRef]accepted
	held      map[string]*nip34.Announcement // by key of grasp-held; only those whose wait is not over
	roots     map[nip34.RepoRef]*rootSet
	rootCount int
}

// accepted is an announcement of the log, and whether it lists our service. One that does not may be a maintainer's, which counts, or tell
// where a repository went, which does not.
type accepted struct {
	*nip34.Announcement
	hosted bool
}

// rootSet collects the root events of a repository. Its sorted list is made when it is asked for and then shared by every target, until an
// id comes along.
type rootSet struct {
	sorted []target.ID
	fresh  []target.ID
}

// NewBook makes an empty book of the service at domain, whose bootstrap relays are targets from the start.
func NewBook(domain string, bootstrap []nip34.RelayURL) *Book {
	b := &Book{domain: domain, bootstrap: bootstrap, held: map[string]*nip34.Announcement{}}
	b.ForgetAccepted()
	return b
}

// ForgetAccepted drops what came from the log, to be read anew. What is held stays.
func (b *Book) ForgetAccepted() {
	b.accepted = map[nip34.RepoRef]accepted{}
	b.roots = map[nip34.RepoRef]*rootSet{}
	b.rootCount = 0
}

// Accept folds an event of the log in and reports whether it may change a target. Kinds other than announcements and root events never do.
func (b *Book) Accept(ev *nostr.Event) (changed bool) {
	switch {
	case ev.Kind == nip34.KindAnnouncement:
		a, err := nip34.ParseAnnouncement(ev)
		if err != nil {
			return false // ingest refuses those
		}
		if old, known := b.accepted[a.Ref]; known && !nip34.Replaces(ev, old.Event) {
			return false
		}
		b.accepted[a.Ref] = accepted{a, a.ListsService(b.domain)}
		return true
	case nip34.IsRootKind(ev.Kind):
		id, ok := target.ParseID(ev.ID)
		if !ok {
			return false
		}
		for _, ref := range nip34.RootRefs(ev) {
			set := b.roots[ref]
			if set == nil {
				set = &rootSet{}
				b.roots[ref] = set
			}
			set.fresh = append(set.fresh, id)
			b.rootCount++
			changed = true
		}
	}
	return changed
}

// Hold notes an entry of purgatory under its key; nil or an event of another kind, or one whose wait is over, forgets the key.
func (b *Book) Hold(key string, h *proto.Held) (changed bool) {
	_, had := b.held[key]
	delete(b.held, key)
	if h == nil || h.Event == nil || h.Event.Kind != nip34.KindAnnouncement || h.Phase != proto.PhaseWaiting {
		return had
	}
	a, err := nip34.ParseAnnouncement(h.Event)
	if err != nil {
		return had
	}
	b.held[key] = a
	return true
}

// Counts is how many repositories are served and held, and how many times root events name one.
func (b *Book) Counts() (accepted, held, roots int) { return len(b.accepted), len(b.held), b.rootCount }

func (s *rootSet) list() []target.ID {
	if s == nil {
		return nil
	}
	if len(s.fresh) > 0 {
		s.sorted = target.SortIDs(append(s.fresh, s.sorted...))
		s.fresh = nil
	}
	return s.sorted
}

// Targets inverts repository → relays into relay → what is wanted of it, by the relay's identity (nip34.RelayURL.Key).
func (b *Book) Targets() map[string]target.Target {
	out := map[string]target.Target{}
	for _, url := range b.bootstrap {
		if !url.OnDomain(b.domain) {
			out[url.Key()] = target.Target{URL: string(url), Bootstrap: true, Repos: map[string]target.Repo{}}
		}
	}
	byIdentifier := b.byIdentifier()
	for ref, a := range b.accepted {
		if a.hosted || b.isMaintainers(a.Announcement, byIdentifier[ref.Identifier]) {
			b.want(out, a.Announcement, target.Repo{Level: proto.LevelFull, Roots: b.roots[ref].list()})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b.held)) {
		a := b.held[key]
		if _, served := b.accepted[a.Ref]; served {
			continue
		}
		authors := slices.Sorted(maps.Keys(nip34.MaintainerSet(a.Ref.PubKey, byIdentifier[a.Ref.Identifier])))
		b.want(out, a, target.Repo{Level: proto.LevelStateOnly, Authors: authors})
	}
	return out
}

// isMaintainers says whether the announcement is of a maintainer of a repository that we keep, one that lists our service. group holds the
// announcements of its identifier.
func (b *Book) isMaintainers(a *nip34.Announcement, group []*nip34.Announcement) bool {
	return slices.ContainsFunc(group, func(other *nip34.Announcement) bool {
		return other.Ref != a.Ref && other.ListsService(b.domain) && nip34.MaintainerSet(other.Ref.PubKey, group)[a.Ref.PubKey]
	})
}

// byIdentifier groups the announcements of those identifiers whose maintainers matter: something is held for them, or one of
// their announcements does not list us.
func (b *Book) byIdentifier() map[string][]*nip34.Announcement {
	out := map[string][]*nip34.Announcement{}
	for _, a := range b.held {
		out[a.Ref.Identifier] = append(out[a.Ref.Identifier], a)
	}
	for ref, a := range b.accepted {
		if !a.hosted && out[ref.Identifier] == nil {
			out[ref.Identifier] = []*nip34.Announcement{}
		}
	}
	for ref, a := range b.accepted {
		if group, wanted := out[ref.Identifier]; wanted {
			out[ref.Identifier] = append(group, a.Announcement)
		}
	}
	return out
}

func (b *Book) want(out map[string]target.Target, a *nip34.Announcement, r target.Repo) {
	for _, url := range a.RelayURLs() {
		if url.OnDomain(b.domain) {
			continue
		}
		t, ok := out[url.Key()]
		if !ok {
			t = target.Target{URL: string(url), Repos: map[string]target.Repo{}}
		} else if !t.Bootstrap && url.Secure() {
			t.URL = string(url) // rather than ws, whichever repository came first; the operator's word stands
		}
		t.Repos[a.Ref.String()] = r
		out[url.Key()] = t
	}
}
