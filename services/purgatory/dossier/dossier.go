// Package dossier is all that is known of one identifier: who announced it, what states its
// repositories should have, which pull requests wait, accepted and held alike. It answers what is
// hosted, what is missing, which state counts and which push is allowed. It is a value and does no
// I/O.
package dossier

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Rules say which repositories are here; hosting.Rules does.
type Rules interface {
	// Domain is ours.
	Domain() string
	// Keeps reports whether a repository is here: its announcement lists us, or it is archived.
	Keeps(*nostr.Announcement) bool
	// Archives reports whether a repository is here though its announcement does not list us.
	Archives(*nostr.Announcement) bool
	// ReadOnly reports whether pushes to archived repositories are refused.
	ReadOnly() bool
}

// Announcement is an announcement of the identifier.
type Announcement struct {
	*nostr.Announcement
	Held   bool
	Silent bool // held, its time over and its repository gone
	// Client is the client key of whoever submitted it, of what is held (proto.HeaderClient).
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
	Client string // of whoever submitted it, as in Announcement
	// Elsewhere are repositories of other identifiers that it is for too: its commit may be there.
	Elsewhere []nostr.RepoRef
	// Offered are the identifiers for which its author offers it here (GRASP-06): its commit may be
	// in the author's repositories for them.
	Offered []string
}

// Dossier is what is known of one identifier. It is used by one goroutine at a time.
type Dossier struct {
	Identifier    string
	Domain        string // ours
	Announcements []Announcement
	States        []State // newest first
	PullRequests  []PullRequest
	// Withdrawn are ids of pull requests and updates that were accepted and that their authors have
	// deleted.
	Withdrawn map[string]bool
	// Contributors are those whose repository for pull requests of the identifier (GRASP-06) is to
	// be looked at. Those who have signed a held one that is offered there are among them.
	Contributors []string

	// What follows from these is worked out once, for there may be thousands of each.
	current []Announcement // the newest of each owner, in order of their keys
	hosted  []string       // owners
	hosts   map[string]bool
	archive map[string]bool // owners of those whose announcement does not list us
	rules   Rules
	trust   *trust
	speaks  map[string][]int // owner → places of the states that count for the owner's repository
}

// New makes a dossier from accepted announcements and states, from accepted pull requests whose
// commit is still to be named, and from held events. What cannot be read, which ingest would not
// have let in, is left out.
func New(identifier string, rules Rules, accepted []*nostr.Event, held []proto.Held) Dossier {
	d := Dossier{Identifier: identifier, Domain: rules.Domain(), rules: rules}
	seen := map[string]bool{}
	for _, ev := range accepted {
		// Held and accepted at once is what a release looks like between its two commits: then it
		// is accepted.
		seen[ev.ID] = true
		d.add(ev, nil)
	}
	for _, h := range held {
		if !seen[h.Event.ID] {
			d.add(h.Event, &h)
		}
	}
	slices.SortFunc(d.States, func(a, b State) int { return newer(a.Event, b.Event) })
	slices.SortFunc(d.Announcements, func(a, b Announcement) int {
		return cmp.Or(cmp.Compare(a.Ref.PubKey, b.Ref.PubKey), newer(a.Event, b.Event))
	})
	d.conclude()
	return d
}

// conclude works out what follows from announcements and states, which are sorted.
func (d *Dossier) conclude() {
	d.current = slices.CompactFunc(slices.Clone(d.Announcements), func(a, b Announcement) bool { return a.Ref.PubKey == b.Ref.PubKey })
	d.hosted, d.hosts, d.archive = nil, map[string]bool{}, map[string]bool{}
	for _, a := range d.current {
		if !a.Silent && d.rules.Keeps(a.Announcement) {
			d.hosted = append(d.hosted, a.Ref.PubKey)
			d.hosts[a.Ref.PubKey] = true
			d.archive[a.Ref.PubKey] = d.rules.Archives(a.Announcement)
		}
	}
	d.trust = newTrust(d.current)
	d.speaks = map[string][]int{}
	for i, s := range d.States {
		if !s.Satisfiable() {
			continue // it waits and expires; no repository can ever be made to match it
		}
		for _, owner := range d.OwnersFor(s.Event.PubKey) {
			d.speaks[owner] = append(d.speaks[owner], i)
		}
	}
}

// newer orders events newest first, by id at the same second.
func newer(a, b *nostr.Event) int {
	return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.ID, b.ID))
}

func (d *Dossier) add(ev *nostr.Event, h *proto.Held) {
	silent, client := false, ""
	if h != nil {
		silent, client = h.Phase == proto.PhaseSilent, h.Client
	}
	switch ev.Kind {
	case nostr.KindAnnouncement:
		if a, err := nostr.ParseAnnouncement(ev); err == nil && a.Ref.Identifier == d.Identifier {
			d.Announcements = append(d.Announcements, Announcement{a, h != nil, silent, client})
		}
	case nostr.KindState:
		if s, err := nostr.ParseState(ev); err == nil && s.Identifier == d.Identifier {
			d.States = append(d.States, State{s, h != nil})
		}
	case nostr.KindPR, nostr.KindPRUpdate:
		if pr, err := nostr.ParsePullRequest(ev); err == nil {
			d.PullRequests = append(d.PullRequests, PullRequest{
				PullRequest: pr, Held: h != nil, Client: client, Offered: pr.PRServiceIdentifiers(d.Domain),
			})
		}
	}
}

// Without is the dossier without some events.
func (d Dossier) Without(ids ...string) Dossier {
	if len(ids) == 0 {
		return d
	}
	gone := map[string]bool{}
	for _, id := range ids {
		gone[id] = true
	}
	d.Announcements = slices.DeleteFunc(slices.Clone(d.Announcements), func(a Announcement) bool { return gone[a.Event.ID] })
	d.States = slices.DeleteFunc(slices.Clone(d.States), func(s State) bool { return gone[s.Event.ID] })
	d.PullRequests = slices.DeleteFunc(slices.Clone(d.PullRequests), func(p PullRequest) bool { return gone[p.Event.ID] })
	d.conclude()
	return d
}

// Accepting is the dossier after some held events were accepted: announcements and states still say
// what they said, pull requests wait no more.
func (d Dossier) Accepting(ids ...string) Dossier {
	if len(ids) == 0 {
		return d
	}
	accepted := map[string]bool{}
	for _, id := range ids {
		accepted[id] = true
	}
	d.Announcements, d.States = slices.Clone(d.Announcements), slices.Clone(d.States)
	for i, a := range d.Announcements {
		d.Announcements[i].Held = a.Held && !accepted[a.Event.ID]
	}
	for i, s := range d.States {
		d.States[i].Held = s.Held && !accepted[s.Event.ID]
	}
	d.PullRequests = slices.DeleteFunc(slices.Clone(d.PullRequests), func(p PullRequest) bool { return accepted[p.Event.ID] })
	d.conclude()
	return d
}

// Hosted are the owners whose repository is here, in order of their keys: the announcement that
// counts lists us or is archived, and is accepted or waits.
func (d Dossier) Hosted() []string { return d.hosted }

// Hosts reports whether an owner's repository is here.
func (d Dossier) Hosts(owner string) bool { return d.hosts[owner] }

// Serves reports whether an owner's announcement is accepted: some that counts or counted.
func (d Dossier) Serves(owner string) bool {
	return slices.ContainsFunc(d.Announcements, func(a Announcement) bool { return a.Ref.PubKey == owner && !a.Held })
}

// IsArchived reports whether an owner's repository is here though its announcement does not list us
// (GRASP-05).
func (d Dossier) IsArchived(owner string) bool { return d.archive[owner] }

// OwnersFor are the owners of hosted repositories for which the author of a state speaks, in order
// of their keys.
func (d Dossier) OwnersFor(author string) []string { return d.trust.ownersFor(author, d.hosts) }

// StatesFor are the states by authors who speak for an owner's hosted repository, newest first.
// Those that no repository can ever match (nostr.State.Satisfiable) are not among them.
func (d Dossier) StatesFor(owner string) []State {
	states := make([]State, len(d.speaks[owner]))
	for i, place := range d.speaks[owner] {
		states[i] = d.States[place]
	}
	return states
}

// Want is what one repository misses.
type Want struct {
	Owner string
	// Payer is whom the data counts for: the owner for what states name, the author of a pull
	// request for its commit.
	Payer   string
	Served  bool     // the payer owns a repository of the identifier that is served
	Objects []string // in order
	// Near are those of the sources that the owner's people name: where it is most likely found,
	// whatever strangers announce.
	Near []Source
}

// Source is where git data may be found: a clone URL, and who named it first, author and client.
// Client is empty where that did not come through the front door, or is accepted.
type Source struct{ URL, Author, Client string }

// Wants are the objects that held states and pull requests name, by the repository that they should
// first come to, the author's own where there is one, and by whom they count for. Which of them are
// missing is for git to say.
func (d Dossier) Wants() []Want {
	type key struct{ owner, payer string }
	wants := map[key]map[string]bool{}
	near := map[key]*sources{}
	add := func(at key, objects []string, clone ...Source) {
		if wants[at] == nil {
			wants[at], near[at] = map[string]bool{}, d.near(at.owner)
		}
		near[at].add(clone...)
		for _, id := range objects {
			wants[at][id] = true
		}
	}
	for _, s := range d.States {
		owners := d.OwnersFor(s.Event.PubKey)
		if !s.Held || !s.Satisfiable() || len(owners) == 0 {
			continue
		}
		owner := owners[0]
		if slices.Contains(owners, s.Event.PubKey) {
			owner = s.Event.PubKey
		}
		add(key{owner, owner}, s.Objects())
	}
	for _, pr := range d.PullRequests {
		if owners := d.Tagged(pr); len(owners) > 0 {
			add(key{owners[0], pr.Event.PubKey}, []string{pr.Commit}, pr.sources()...)
		}
	}
	var list []Want
	for at, objects := range wants {
		list = append(list, Want{at.owner, at.payer, d.Serves(at.payer), slices.Sorted(maps.Keys(objects)), near[at].list})
	}
	slices.SortFunc(list, func(a, b Want) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), strings.Compare(a.Payer, b.Payer))
	})
	return list
}

// Tagged are the owners of hosted repositories of this identifier that a pull request is for: those
// that it tags, and those whose recursive maintainer set contains an author whom it tags for this
// identifier. An update that names none is for all.
func (d Dossier) Tagged(pr PullRequest) []string {
	if len(pr.Repos) == 0 {
		return d.hosted
	}
	var owners, others []string
	in := map[string]bool{}
	for _, ref := range pr.Repos {
		if ref.Identifier != d.Identifier {
			continue
		}
		if d.hosts[ref.PubKey] && !in[ref.PubKey] {
			in[ref.PubKey] = true
			owners = append(owners, ref.PubKey)
		}
		others = append(others, d.OwnersFor(ref.PubKey)...)
	}
	for _, owner := range others {
		if !in[owner] {
			in[owner] = true
			owners = append(owners, owner)
		}
	}
	return owners
}

// People are those who speak for a hosted repository, in order of their keys: a pull request that
// tags one of them is for that repository.
func (d Dossier) People() []string {
	all := map[string]bool{}
	for _, a := range d.current {
		all[a.Ref.PubKey] = true
		for _, maintainer := range a.Maintainers {
			all[maintainer] = true
		}
	}
	maps.DeleteFunc(all, func(pubkey string, _ bool) bool { return len(d.OwnersFor(pubkey)) == 0 })
	return slices.Sorted(maps.Keys(all))
}

// Sources are where git data may be found: the clone URLs of all announcements and of the pull
// requests that wait, our own left out.
func (d Dossier) Sources() []Source {
	all := newSources(d.Domain)
	for _, a := range d.Announcements {
		all.add(a.sources()...)
	}
	for _, pr := range d.PullRequests {
		all.add(pr.sources()...)
	}
	return all.list
}

func (a Announcement) sources() []Source { return named(a.CloneURLs(), a.Ref.PubKey, a.Client) }

func (pr PullRequest) sources() []Source {
	return named(pr.CloneURLs(), pr.Event.PubKey, pr.Client)
}

func named(urls []string, author, client string) []Source {
	list := make([]Source, len(urls))
	for i, url := range urls {
		list[i] = Source{url, author, client}
	}
	return list
}

// Commit says which commit an event of this dossier is pushed with: that of a pull request or
// update; none for an announcement or a state, which are known and name no commit of their own.
// known is false for every other event.
func (d Dossier) Commit(id string) (commit string, known bool) {
	for _, pr := range d.PullRequests {
		if pr.Event.ID == id {
			return pr.Commit, true
		}
	}
	known = slices.ContainsFunc(d.Announcements, func(a Announcement) bool { return a.Event.ID == id }) ||
		slices.ContainsFunc(d.States, func(s State) bool { return s.Event.ID == id })
	return "", known
}

// maxNear bounds how many people's URLs count as near.
const maxNear = 32

// near are the clone URLs of an owner's announcement and of those by the maintainers whom it names.
func (d Dossier) near(owner string) *sources {
	u := newSources(d.Domain)
	people := []string{owner}
	if at, announced := d.find(owner); announced {
		people = append(people, d.current[at].Maintainers...)
	}
	for _, pubkey := range people[:min(len(people), maxNear)] {
		if at, announced := d.find(pubkey); announced {
			u.add(d.current[at].sources()...)
		}
	}
	return u
}

func (d Dossier) find(owner string) (int, bool) {
	return slices.BinarySearchFunc(d.current, owner, func(a Announcement, owner string) int { return cmp.Compare(a.Ref.PubKey, owner) })
}

// sources are clone URLs, each once and none of ours.
type sources struct {
	domain string
	list   []Source
	in     map[string]bool
}

func newSources(domain string) *sources { return &sources{domain: domain, in: map[string]bool{}} }

func (u *sources) add(more ...Source) {
	for _, s := range more {
		if !u.in[s.URL] && !nostr.OnDomain(s.URL, u.domain) {
			u.in[s.URL] = true
			u.list = append(u.list, s)
		}
	}
}

// Superseded are the held states that have lost: in every repository that their author speaks for,
// a newer one is applied.
func (d Dossier) Superseded(applied map[string]State) []State {
	var out []State
	for _, s := range d.States {
		owners := d.OwnersFor(s.Event.PubKey)
		if !s.Held || len(owners) == 0 {
			continue
		}
		lost := !slices.ContainsFunc(owners, func(owner string) bool {
			by, is := applied[owner]
			return !is || newer(by.Event, s.Event) >= 0
		})
		if lost {
			out = append(out, s)
		}
	}
	return out
}
