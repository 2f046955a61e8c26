// Package repos knows which repositories we keep, what each needs, and which relays its owner
// lists. It is a value that events fold into; it does no I/O.
//
// What an event costs is in proportion to what it changes: the repositories of its identifier, and
// the relays that these list.
package repos

import (
	"slices"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/hosting"
	"tendril.dev/lib/nip34"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/wanted"
)

// Bounds of what one event of a stranger may ask for. More is passed over.
const (
	// maxServedRelays and maxHeldRelays are how many relays of one announcement are taken, the
	// first ones.
	maxServedRelays = 50
	maxHeldRelays   = 20
	// maxRefs is how many repositories one root event counts for, the first ones in the order of
	// their references: so it is the same ones whether it was heard of or read later.
	maxRefs = 100
)

// Limits bound the relays that are targets. Bootstrap relays do not count.
type Limits struct {
	Served int // relays that announcements list which are served
	Held   int // further relays that only held announcements list
}

// Book is what is known of all repositories. It is not safe for concurrent use.
type Book struct {
	rules     hosting.Rules // its domain is our own: never a target
	groups    map[string]*group
	heldIn    map[string]string           // identifier, by key of grasp-held; only of announcements whose wait is not over
	announced map[target.ID]nip34.RepoRef // accepted announcements by their ids
	roots     *places                     // root events of accepted repositories
	heard     []target.ID                 // whole ids of root events that came or went, until they are taken
	numbered  []*repository               // accepted ones by their numbers; nil: the number is unused
	unused    []uint32
	unread    map[nip34.RepoRef]bool // repositories whose earlier root events must be read
	dirty     map[string]bool        // identifiers that changed since Targets
	accepted  int
	rootCount int
	inverted
}

// group is what is known of one identifier.
type group struct {
	accepted map[string]*repository   // by owner
	held     map[string]*announcement // by key of grasp-held
	wants    map[string]*want         // what came of it last, by reference
}

// repository is an accepted announcement with its root events.
type repository struct {
	*announcement
	rootSet
	number uint32 // in Book.numbered
}

// announcement is what of an announcement matters here.
type announcement struct {
	ref         nip34.RepoRef
	event       *nostr.Event // its id and time only
	relays      []nip34.RelayURL
	maintainers []string
	// hosted: it lists our service or is archived. One that is neither may be a maintainer's, which
	// counts, or tell where a repository went, which does not.
	hosted bool
	// Of held ones: when it came, and from whom.
	heldAt time.Time
	origin string
}

// NewBook makes an empty book of a service that keeps what its rules say. Its bootstrap relays are
// targets from the start.
func NewBook(rules hosting.Rules, bootstrap []nip34.RelayURL, limits Limits) *Book {
	b := &Book{rules: rules, heldIn: map[string]string{}, groups: map[string]*group{}, dirty: map[string]bool{}}
	b.inverted = newInverted(rules.Domain(), bootstrap, limits)
	b.ForgetAccepted()
	return b
}

// ForgetAccepted drops what came from the log, to be read anew. What is held stays.
func (b *Book) ForgetAccepted() {
	for identifier, g := range b.groups {
		if len(g.accepted) > 0 {
			clear(g.accepted)
			b.dirty[identifier] = true
		}
	}
	b.announced = map[target.ID]nip34.RepoRef{}
	b.roots = newPlaces()
	b.unread = map[nip34.RepoRef]bool{}
	b.numbered, b.unused = nil, nil
	b.accepted, b.rootCount = 0, 0
}

func (b *Book) group(identifier string) *group {
	g := b.groups[identifier]
	if g == nil {
		g = &group{accepted: map[string]*repository{}, held: map[string]*announcement{}}
		b.groups[identifier] = g
	}
	b.dirty[identifier] = true
	return g
}

func (b *Book) repository(ref nip34.RepoRef) *repository {
	if g := b.groups[ref.Identifier]; g != nil {
		return g.accepted[ref.PubKey]
	}
	return nil
}

// Accept folds an event of the log in and reports whether it may change a target. Kinds other than
// announcements and root events never do. Root events count where their repository is known; of one
// that becomes known, see TakeUnread.
func (b *Book) Accept(ev *nostr.Event) (changed bool) {
	switch {
	case ev.Kind == nip34.KindAnnouncement:
		return b.announce(ev)
	case nip34.IsRootKind(ev.Kind):
		return b.addRoot(ev)
	}
	return false
}

func (b *Book) announce(ev *nostr.Event) (changed bool) {
	parsed, err := nip34.ParseAnnouncement(ev)
	if err != nil {
		return false // ingest refuses those
	}
	a := b.read(parsed, maxServedRelays)
	old := b.repository(a.ref)
	if old != nil && !nip34.Replaces(ev, old.event) {
		return false
	}
	if old != nil {
		b.forgetID(old.event.ID)
		old.announcement = a
		b.dirty[a.ref.Identifier] = true
	} else {
		repo := &repository{announcement: a}
		if !b.number(repo) {
			return false
		}
		b.group(a.ref.Identifier).accepted[a.ref.PubKey] = repo
		b.unread[a.ref] = true
		b.accepted++
	}
	if id, ok := target.ParseID(ev.ID); ok {
		b.announced[id] = a.ref
	}
	return true
}

// read takes from an announcement what matters, and no more relays than most.
func (b *Book) read(parsed *nip34.Announcement, most int) *announcement {
	a := &announcement{
		ref: parsed.Ref, event: &nostr.Event{ID: parsed.Event.ID, CreatedAt: parsed.Event.CreatedAt}, hosted: b.rules.Keeps(parsed),
	}
	for _, url := range parsed.RelayURLs() {
		if len(a.relays) < most && !url.OnDomain(b.rules.Domain()) {
			a.relays = append(a.relays, url)
		}
	}
	for _, m := range parsed.Maintainers {
		a.maintainers = append(a.maintainers, strings.Clone(m)) // the event is not kept
	}
	return a
}

func (b *Book) forgetID(s string) {
	if id, ok := target.ParseID(s); ok {
		delete(b.announced, id)
	}
}

// Hold notes an entry of purgatory under its key; nil or an event of another kind, or one whose
// wait is over, forgets the key.
func (b *Book) Hold(key string, h *proto.Held) (changed bool) {
	if identifier, had := b.heldIn[key]; had {
		delete(b.heldIn, key)
		delete(b.group(identifier).held, key)
		changed = true
	}
	if h == nil || h.Event == nil || h.Event.Kind != nip34.KindAnnouncement || h.Phase != proto.PhaseWaiting {
		return changed
	}
	parsed, err := nip34.ParseAnnouncement(h.Event)
	if err != nil {
		return changed
	}
	a := b.read(parsed, maxHeldRelays)
	a.heldAt, a.origin = h.HeldAt, originOf(h)
	b.group(a.ref.Identifier).held[key] = a
	b.heldIn[key] = a.ref.Identifier
	return true
}

// originOf is who brought what is held: keys cost nothing, addresses and relays do.
func originOf(h *proto.Held) string {
	switch {
	case h.Client != "":
		return "client " + h.Client
	case h.Relay != "":
		return "relay " + h.Relay
	}
	return "author " + h.Event.PubKey
}

// Forget drops a repository whose announcement is deleted.
func (b *Book) Forget(ref nip34.RepoRef) (changed bool) {
	repo := b.repository(ref)
	if repo == nil {
		return false
	}
	for _, id := range repo.list() {
		b.loseRoot(id, repo)
	}
	b.unnumber(repo)
	b.forgetID(repo.event.ID)
	delete(b.group(ref.Identifier).accepted, ref.PubKey)
	delete(b.unread, ref)
	b.accepted--
	return true
}

// TakeUnread returns the repositories that have become known since the last call: root events that
// name them may have been accepted before, and must be given to AddRoots.
func (b *Book) TakeUnread() []nip34.RepoRef {
	refs := make([]nip34.RepoRef, 0, len(b.unread))
	for ref := range b.unread {
		refs = append(refs, ref)
	}
	clear(b.unread)
	slices.SortFunc(refs, compareRefs)
	return refs
}

// Counts is how many repositories are served and held, and how many times root events name one.
func (b *Book) Counts() (accepted, held, roots int) { return b.accepted, len(b.heldIn), b.rootCount }

// Named is what of the book a deletion request names that its author may delete, as far as that is
// known. Whether it is deleted is for others to say.
type Named struct {
	Repos []nip34.RepoRef // by address, or by their announcements' ids
	Roots []target.ID
}

// Empty reports whether the request changes nothing here.
func (n Named) Empty() bool { return len(n.Repos)+len(n.Roots) == 0 }

// NamedBy looks up what a deletion request names (NIP-09).
func (b *Book) NamedBy(request *nostr.Event) (n Named) {
	for _, tag := range request.Tags {
		if len(tag) < 2 {
			continue
		}
		switch tag[0] {
		case "a":
			ref, err := nip34.ParseRepoRef(tag[1])
			if err == nil && ref.PubKey == request.PubKey && b.repository(ref) != nil {
				n.Repos = append(n.Repos, ref)
			}
		case "e":
			id, ok := target.ParseID(tag[1])
			if !ok {
				continue
			}
			if ref, known := b.announced[id]; known && ref.PubKey == request.PubKey {
				n.Repos = append(n.Repos, ref)
			}
			if b.mayDelete(request.PubKey, wanted.ShortOf(id)) {
				n.Roots = append(n.Roots, id)
			}
		}
	}
	return n
}

// known are the announcements of the group, the newest of each owner.
func (g *group) known() map[string]*announcement {
	latest := make(map[string]*announcement, len(g.accepted)+len(g.held))
	for owner, repo := range g.accepted {
		latest[owner] = repo.announcement
	}
	for _, a := range g.held {
		if have := latest[a.ref.PubKey]; have == nil || nip34.Replaces(a.event, have.event) {
			latest[a.ref.PubKey] = a
		}
	}
	return latest
}

// waiting are the held announcements of those owners who have none that is served, the newest of
// each.
func (g *group) waiting() map[string]*announcement {
	newest := map[string]*announcement{}
	for _, a := range g.held {
		if g.accepted[a.ref.PubKey] != nil {
			continue
		}
		if have := newest[a.ref.PubKey]; have == nil || nip34.Replaces(a.event, have.event) {
			newest[a.ref.PubKey] = a
		}
	}
	return newest
}

// maintainers walks from the sources to whom their announcements name, and on, nearest first.
// It gives up after so many names, and after so many looks at one: anybody
// may make that a long way.
func maintainers(sources []string, known map[string]*announcement, most, looks int) (list []string, all map[string]bool) {
	all = map[string]bool{}
	add := func(key string) {
		if !all[key] && len(list) < most {
			all[key] = true
			list = append(list, key)
		}
	}
	for _, s := range sources {
		add(s)
	}
	for next := 0; next < len(list); next++ {
		a := known[list[next]]
		if a == nil {
			continue
		}
		for _, m := range a.maintainers {
			if looks--; looks < 0 || len(list) >= most {
				return list, all
			}
			add(m)
		}
	}
	return list, all
}
