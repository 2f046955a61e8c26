// Package repostate computes from the accepted and held events of one identifier which repositories
// are here, which state counts, what is missing, and which push is allowed. Who speaks for a
// repository it asks package authority. It does no I/O.
package repostate

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Rules say which repositories are here; hosting.Rules does.
type Rules interface {
	// Domain is ours.
	Domain() string
	// Keeps reports whether a repository is here: its announcement lists us and the whitelist allows
	// it, or it is archived. others are the announcements of the identifier that count.
	Keeps(a *nostr.Announcement, others authority.Announcements) bool
	// Archives reports whether a repository is here though its announcement does not list us.
	Archives(*nostr.Announcement) bool
	// ReadOnly reports whether pushes to archived repositories are refused.
	ReadOnly() bool
	// MayAsk reports whether a git server may learn of a repository.
	MayAsk(url string) bool
}

// Announcement is an announcement of the identifier.
type Announcement struct {
	*nostr.Announcement
	Held   bool
	Silent bool // held, its time over and its repository gone
	// Client is the key of the client that submitted it, of what is held (proto.HeaderClient).
	Client string
}

// State is a state event of the identifier.
type State struct {
	*nostr.State
	Held bool
}

// PullRequest is a pull request or update that waits, or one that is accepted and whose commit is
// still to be named in repositories of the identifier. Its Repos are those that it tags; of an
// update also those of its pull request.
type PullRequest struct {
	*nostr.PullRequest
	Held   bool
	Client string // that submitted it, as in Announcement
	// Offered are the identifiers for which its author offers it here (GRASP-06): its commit may be
	// in the author's repositories for them.
	Offered []string
}

// View is what is known of one identifier. It is used by one goroutine at a time.
type View struct {
	Identifier    string
	Domain        string // ours
	Announcements []Announcement
	States        []State // newest first
	PullRequests  []PullRequest
	// HeldAt is since when an event is held, by id.
	HeldAt map[string]time.Time
	// Hosted are the owners whose repository is here, in order of their keys: the announcement that
	// counts lists us or is archived, and is accepted or waits.
	Hosted []string

	// What follows from these is worked out once, and for single people when it is asked for: there
	// may be thousands of each.
	newest map[string]Announcement // of each owner
	hosts  map[string]bool         // hosted owner → whether the repository is archived
	rules  Rules
	ledBy  map[string][]*nostr.Announcement // by their only lead
	groups map[string]authority.Group       // owner → Group, as far as asked
	owners map[string][]string              // author → OwnersFor, as far as asked
	speaks map[string][]State               // owner → StatesFor, as far as asked
}

var _ authority.Announcements = (*View)(nil)

// New makes a view from accepted announcements and states, from accepted pull requests whose
// commit is still to be named, and from held events. What cannot be read, which ingest would not
// have let in, is left out.
func New(identifier string, rules Rules, accepted []*nostr.Event, held []proto.Held) View {
	v := View{Identifier: identifier, Domain: rules.Domain(), HeldAt: map[string]time.Time{}, rules: rules}
	seen := map[string]bool{}
	for _, ev := range accepted {
		// Held and accepted at once is what a release looks like between its two commits: then it
		// is accepted.
		seen[ev.ID] = true
		v.add(proto.Held{Event: ev}, false)
	}
	for _, h := range held {
		if !seen[h.Event.ID] {
			v.HeldAt[h.Event.ID] = h.HeldAt
			v.add(h, true)
		}
	}
	slices.SortFunc(v.States, func(a, b State) int { return newer(a.Event, b.Event) })
	slices.SortFunc(v.Announcements, func(a, b Announcement) int {
		return cmp.Or(cmp.Compare(a.Ref.PubKey, b.Ref.PubKey), newer(a.Event, b.Event))
	})
	v.conclude()
	return v
}

// conclude works out what follows from announcements, which are sorted.
func (v *View) conclude() {
	v.newest, v.Hosted, v.hosts = map[string]Announcement{}, nil, map[string]bool{}
	v.ledBy, v.groups = map[string][]*nostr.Announcement{}, map[string]authority.Group{}
	v.owners, v.speaks = map[string][]string{}, map[string][]State{}
	for _, a := range v.Announcements {
		owner := a.Ref.PubKey
		if v.announces(owner) {
			continue
		}
		v.newest[owner] = a
		if lead, is := authority.LeadOf(a.Announcement); is && !a.Silent {
			v.ledBy[lead] = append(v.ledBy[lead], a.Announcement)
		}
	}
	for _, a := range v.Announcements { // who speaks for whom takes all of them
		owner := a.Ref.PubKey
		if v.newest[owner].Event == a.Event && !a.Silent && v.rules.Keeps(a.Announcement, v) {
			v.Hosted = append(v.Hosted, owner)
			v.hosts[owner] = v.rules.Archives(a.Announcement)
		}
	}
}

// By implements [authority.Announcements], as LedBy does. A silent announcement does not count.
func (v View) By(author string) *nostr.Announcement {
	if a := v.newest[author]; !a.Silent {
		return a.Announcement
	}
	return nil
}

func (v View) LedBy(lead string) iter.Seq[*nostr.Announcement] { return slices.Values(v.ledBy[lead]) }

// Group is who speaks for an owner's repository.
func (v View) Group(owner string) authority.Group {
	g, asked := v.groups[owner]
	if !asked {
		g = authority.Of(v, owner)
		v.groups[owner] = g
	}
	return g
}

func (v View) announces(owner string) bool { return v.newest[owner].Announcement != nil }

// newer orders events newest first, by id at the same second.
func newer(a, b *nostr.Event) int {
	return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.ID, b.ID))
}

func (v *View) add(h proto.Held, held bool) {
	switch h.Event.Kind {
	case nostr.KindAnnouncement:
		if a, err := nostr.ParseAnnouncement(h.Event); err == nil && a.Ref.Identifier == v.Identifier {
			v.Announcements = append(v.Announcements, Announcement{a, held, h.Phase == proto.PhaseSilent, h.Client})
		}
	case nostr.KindState:
		if s, err := nostr.ParseState(h.Event); err == nil && s.Identifier == v.Identifier {
			v.States = append(v.States, State{s, held})
		}
	case nostr.KindPR, nostr.KindPRUpdate:
		if pr, err := nostr.ParsePullRequest(h.Event); err == nil {
			v.PullRequests = append(v.PullRequests, PullRequest{
				PullRequest: pr, Held: held, Client: h.Client, Offered: pr.PRServiceIdentifiers(v.Domain),
			})
		}
	}
}

// Without is the view without some events.
func (v View) Without(ids ...string) View {
	gone := func(ev *nostr.Event) bool { return slices.Contains(ids, ev.ID) }
	v.Announcements = slices.DeleteFunc(slices.Clone(v.Announcements), func(a Announcement) bool { return gone(a.Event) })
	v.States = slices.DeleteFunc(slices.Clone(v.States), func(s State) bool { return gone(s.Event) })
	v.PullRequests = slices.DeleteFunc(slices.Clone(v.PullRequests), func(pr PullRequest) bool { return gone(pr.Event) })
	v.conclude()
	return v
}

// Hosts reports whether an owner's repository is here.
func (v View) Hosts(owner string) bool {
	_, is := v.hosts[owner]
	return is
}

// Holds reports whether the announcement of an owner's repository waits.
func (v View) Holds(owner string) bool { return v.newest[owner].Held }

// Serves reports whether a repository is served that someone owns, or is a confirmed maintainer of:
// its announcement is accepted.
func (v View) Serves(key string) bool {
	owners := v.OwnersFor(key)
	return slices.ContainsFunc(v.Announcements, func(a Announcement) bool {
		_, speaks := slices.BinarySearch(owners, a.Ref.PubKey)
		return !a.Held && (speaks || a.Ref.PubKey == key)
	})
}

// IsArchived reports whether an owner's repository is here though its announcement does not list us
// (GRASP-05).
func (v View) IsArchived(owner string) bool { return v.hosts[owner] }

// OwnersFor are the owners of hosted repositories of which a key is a confirmed maintainer, in
// order of their keys.
func (v View) OwnersFor(key string) []string {
	owners, asked := v.owners[key]
	if asked {
		return owners
	}
	for c := range authority.Coordinates(v, key) {
		if v.Hosts(c.Owner) {
			owners = append(owners, c.Owner)
		}
	}
	slices.Sort(owners)
	v.owners[key] = owners
	return owners
}

// Sharing are the owners of hosted repositories that share objects with that of an owner.
func (v View) Sharing(owner string) []string {
	return slices.DeleteFunc(authority.Sharing(v, owner), func(other string) bool { return !v.Hosts(other) })
}

// StatesFor are the states by confirmed maintainers of an owner's hosted repository, newest first.
// Those that no repository can ever match (nostr.State.Satisfiable) are not among them: they wait
// and expire.
func (v View) StatesFor(owner string) []State {
	states, asked := v.speaks[owner]
	if asked || !v.Hosts(owner) {
		return states
	}
	confirmed := map[string]bool{}
	for _, key := range v.Group(owner).Confirmed {
		confirmed[key] = true
	}
	for _, s := range v.States {
		if confirmed[s.Event.PubKey] && s.Satisfiable() {
			states = append(states, s)
		}
	}
	v.speaks[owner] = states
	return states
}

// Want is what one repository misses.
type Want struct {
	Owner string
	// Payer is whom the data counts for: the owner for what states name, those of maintainers too,
	// who did not ask to be named; the author of a pull request for its commit.
	Payer   string
	Served  bool     // the payer owns a repository of the identifier that is served
	Waits   bool     // a held event waits for it, not only an accepted pull request
	Objects []string // in order
	Commits []string // those of pull requests among the objects
	// Near are those of the sources that the owner's people name: where it is most likely found,
	// though strangers announce other places.
	Near []Source
}

// Source is where git data may be found: a clone URL, and who named it first, author and client.
// Client is empty where that did not come through the front door, or is accepted.
type Source struct {
	URL, Author, Client string
	// Here is the repository of ours that the URL names, of any identifier: a fork. It is not asked
	// over the front door. Else it is zero.
	Here nostr.RepoRef
}

// Wants are the objects that held states and pull requests name, by the repository that they should
// first come to, the author's own where there is one, and by whom they count for. Which of them are
// missing is for git to say.
func (v View) Wants() (list []Want) {
	add := func(owner, payer string, waits bool, objects []string) *Want {
		i := slices.IndexFunc(list, func(w Want) bool { return w.Owner == owner && w.Payer == payer })
		if i < 0 {
			i = len(list)
			list = append(list, Want{Owner: owner, Payer: payer, Served: v.Serves(payer), Near: v.near(owner)})
		}
		w := &list[i]
		w.Waits = w.Waits || waits
		w.Objects = append(w.Objects, objects...)
		return w
	}
	for _, s := range v.States {
		owners := v.OwnersFor(s.Event.PubKey)
		if !s.Held || !s.Satisfiable() || len(owners) == 0 {
			continue
		}
		owner := v.home(s.Event.PubKey, owners)
		add(owner, owner, true, s.Objects())
	}
	for _, pr := range v.PullRequests {
		if owners := v.tagged(pr); len(owners) > 0 {
			if named := v.Named(pr); len(named) > 0 {
				owners = named
			}
			w := add(v.first(owners), pr.Event.PubKey, pr.Held, []string{pr.Commit})
			w.Commits, w.Near = append(w.Commits, pr.Commit), append(w.Near, pr.sources()...)
		}
	}
	for i := range list {
		w := &list[i]
		slices.Sort(w.Objects)
		w.Objects, w.Near = slices.Compact(w.Objects), v.distinct(w.Near)
	}
	slices.SortFunc(list, func(a, b Want) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Payer, b.Payer))
	})
	return list
}

// home is the owner to whose repository the data of an author's state comes first, and who pays for
// it: the author, or a key that is confirmed with the author. Who only points to their lead,
// without being listed by anybody, gets copies afterwards.
func (v View) home(author string, owners []string) string {
	if slices.Contains(owners, author) {
		return author
	}
	together := slices.DeleteFunc(slices.Clone(owners), func(owner string) bool { return !v.Group(owner).Has(owner) })
	if len(together) > 0 {
		owners = together
	}
	return v.first(owners)
}

// first is the first of some owners who is served, or the first of all: strangers may announce
// others' people as theirs.
func (v View) first(owners []string) string {
	return owners[max(0, slices.IndexFunc(owners, func(owner string) bool { return !v.Holds(owner) }))]
}

// Named are the owners of hosted repositories of this identifier that a pull request names itself.
func (v View) Named(pr PullRequest) (owners []string) {
	for _, ref := range pr.Repos {
		if ref.Identifier == v.Identifier && v.Hosts(ref.PubKey) && !slices.Contains(owners, ref.PubKey) {
			owners = append(owners, ref.PubKey)
		}
	}
	return owners
}

// Tagged are the owners of hosted repositories of this identifier that a pull request is for: those
// that it tags, those of which an author whom it tags for this identifier is a confirmed maintainer,
// and those whose exact address is a clone URL of it. An update that names none is for all.
func (v View) Tagged(pr PullRequest) []string {
	var cloned []string
	for _, ref := range Cloned(pr.PullRequest, v.Domain) {
		if ref.Identifier == v.Identifier && v.Hosts(ref.PubKey) {
			cloned = append(cloned, ref.PubKey)
		}
	}
	tagged := v.tagged(pr)
	return slices.Concat(tagged, slices.DeleteFunc(cloned, func(owner string) bool { return slices.Contains(tagged, owner) }))
}

// tagged is Tagged without what only a clone URL names.
func (v View) tagged(pr PullRequest) []string {
	if len(pr.Repos) == 0 {
		return v.Hosted
	}
	var owners, others []string
	for _, ref := range pr.Repos {
		if ref.Identifier == v.Identifier {
			owners = append(owners, ref.PubKey)
			others = append(others, v.OwnersFor(ref.PubKey)...)
		}
	}
	in := map[string]bool{}
	return slices.DeleteFunc(append(owners, others...), func(owner string) bool {
		again := in[owner]
		in[owner] = true
		return again || !v.Hosts(owner)
	})
}

// Releases reports whether a pull request may be released when its commit is named in an owner's
// repository: one that it tags itself, or, where none of these is hosted, one of their maintainers'.
// Others follow: who only lists an owner whom it tags can neither delay it nor let it go.
func (v View) Releases(pr PullRequest, owner string) bool {
	among := v.Named(pr)
	if len(among) == 0 {
		among = v.tagged(pr)
	}
	return slices.Contains(among, owner)
}

// Cloned are the repositories of ours whose addresses are clone URLs of a pull request.
func Cloned(pr *nostr.PullRequest, domain string) (refs []nostr.RepoRef) {
	for _, url := range pr.CloneURLs() {
		if ref := hereOf(url, domain); ref.Identifier != "" && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	return refs
}

// hereOf is the repository of ours that a URL names; zero: none.
func hereOf(url, domain string) (ref nostr.RepoRef) {
	below, is := nostr.PathBelow(url, domain)
	if path, err := nostr.ParseRepositoryPath(below); is && err == nil && !path.PRs {
		ref = nostr.RepoRef{PubKey: path.PubKey, Identifier: path.Identifier}
	}
	return ref
}

// People are some owners and the confirmed maintainers of their hosted repositories: a pull request
// that tags one of them is for that repository. They are in order of their keys.
func (v View) People(owners []string) []string {
	people := map[string]bool{}
	for _, owner := range owners {
		if !v.Hosts(owner) {
			continue
		}
		people[owner] = true
		for _, key := range v.Group(owner).Confirmed {
			people[key] = true
		}
	}
	return slices.Sorted(maps.Keys(people))
}

// Sources are where git data may be found: the clone URLs of all announcements and of the pull
// requests that wait. Their own repositories here are left out.
func (v View) Sources() []Source {
	var all []Source
	for _, a := range v.Announcements {
		all = append(all, v.sources(a)...)
	}
	for _, pr := range v.PullRequests {
		all = append(all, pr.sources()...)
	}
	return v.distinct(all)
}

// distinct are those sources where something may be, each URL once. An URL of ours counts if it
// names a repository.
func (v View) distinct(sources []Source) (list []Source) {
	in := map[string]bool{}
	for _, s := range sources {
		if nostr.OnDomain(s.URL, v.Domain) {
			if s.Here = hereOf(s.URL, v.Domain); s.Here.Identifier == "" {
				continue
			}
		}
		if s.Here.Identifier == "" && !v.rules.MayAsk(s.URL) {
			continue
		}
		if !in[s.URL] {
			in[s.URL] = true
			list = append(list, s)
		}
	}
	return list
}

// sources are the places that an announcement names. Its own repository here is none.
func (v View) sources(a Announcement) []Source {
	return slices.DeleteFunc(v.distinct(named(a.CloneURLs(), a.Ref.PubKey, a.Client)),
		func(s Source) bool { return s.Here == a.Ref })
}

func (pr PullRequest) sources() []Source {
	return named(pr.CloneURLs(), pr.Event.PubKey, pr.Client)
}

func named(urls []string, author, client string) (list []Source) {
	for _, url := range urls {
		list = append(list, Source{URL: url, Author: author, Client: client})
	}
	return list
}

// maxNear bounds how many people's URLs count as near.
const maxNear = 32

// near are the clone URLs of an owner's announcement and of those by its confirmed maintainers.
func (v View) near(owner string) (list []Source) {
	people := append([]string{owner}, v.Group(owner).Confirmed...)
	for _, key := range people[:min(len(people), maxNear)] {
		if v.announces(key) {
			list = append(list, v.sources(v.newest[key])...)
		}
	}
	return list
}
