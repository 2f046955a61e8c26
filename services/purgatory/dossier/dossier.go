// Package dossier is all that is known of one identifier: who announced it, what states its repositories should have, which pull requests wait,
// accepted and held alike. It answers what is hosted, what is missing, which state counts and which push is allowed (spec/purgatory.md). It is
// a value and does no I/O.
package dossier

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
)

// Announcement is an announcement of the identifier.
type Announcement struct {
	*nip34.Announcement
	Held   bool
	Silent bool // held, its time over and its repository gone (spec/purgatory.md, two phases)
}

// State is a state event of the identifier.
type State struct {
	*nip34.State
	Held bool
}

// PullRequest is a held pull request or update.
type PullRequest struct{ *nip34.PullRequest }

// Dossier is what is known of one identifier.
type Dossier struct {
	Identifier    string
	Domain        string // ours
	Announcements []Announcement
	States        []State // newest first
	PullRequests  []PullRequest
}

// New makes a dossier from accepted announcements and states and from held events. What cannot be read, which ingest would not have let in, is
// left out.
func New(identifier, domain string, accepted []*nostr.Event, held []proto.Held) Dossier {
	d := Dossier{Identifier: identifier, Domain: domain}
	seen := map[string]bool{}
	for _, ev := range accepted {
		// Held and accepted at once is what a release looks like between its two commits: then it is accepted.
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
	return d
}

// newer orders events newest first, by id at the same second.
func newer(a, b *nostr.Event) int {
	return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.ID, b.ID))
}

func (d *Dossier) add(ev *nostr.Event, h *proto.Held) {
	switch ev.Kind {
	case nip34.KindAnnouncement:
		if a, err := nip34.ParseAnnouncement(ev); err == nil && a.Ref.Identifier == d.Identifier {
			d.Announcements = append(d.Announcements, Announcement{a, h != nil, h != nil && h.Phase == proto.PhaseSilent})
		}
	case nip34.KindState:
		if s, err := nip34.ParseState(ev); err == nil && s.Identifier == d.Identifier {
			d.States = append(d.States, State{s, h != nil})
		}
	case nip34.KindPR, nip34.KindPRUpdate:
		if pr, err := nip34.ParsePullRequest(ev); err == nil && h != nil {
			d.PullRequests = append(d.PullRequests, PullRequest{pr})
		}
	}
}

// Without is the dossier without one event.
func (d Dossier) Without(id string) Dossier {
	d.Announcements = slices.DeleteFunc(slices.Clone(d.Announcements), func(a Announcement) bool { return a.Event.ID == id })
	d.States = slices.DeleteFunc(slices.Clone(d.States), func(s State) bool { return s.Event.ID == id })
	d.PullRequests = slices.DeleteFunc(slices.Clone(d.PullRequests), func(p PullRequest) bool { return p.Event.ID == id })
	return d
}

// Hosted are the owners whose repository is here: the announcement that counts lists us, and is accepted or waits.
func (d Dossier) Hosted() []string {
	var owners []string
	for _, a := range d.current() {
		if !a.Silent && a.ListsService(d.Domain) {
			owners = append(owners, a.Ref.PubKey)
		}
	}
	return owners
}

// Hosts reports whether an owner's repository is here.
func (d Dossier) Hosts(owner string) bool { return slices.Contains(d.Hosted(), owner) }

// current is the newest announcement of each owner, in order of their keys.
func (d Dossier) current() []Announcement {
	// Announcements are sorted by owner, newest first.
	return slices.CompactFunc(slices.Clone(d.Announcements), func(a, b Announcement) bool { return a.Ref.PubKey == b.Ref.PubKey })
}

func (d Dossier) announcements() []*nip34.Announcement {
	var all []*nip34.Announcement
	for _, a := range d.current() {
		all = append(all, a.Announcement)
	}
	return all
}

// OwnersFor are the owners of hosted repositories for which the author of a state speaks.
func (d Dossier) OwnersFor(author string) []string {
	hosted := d.Hosted()
	return slices.DeleteFunc(nip34.AuthorizedOwners(author, d.announcements()), func(owner string) bool { return !slices.Contains(hosted, owner) })
}

// Want is what one repository misses.
type Want struct {
	Owner   string
	Objects []string
}

// Wants are the objects that held states and pull requests name, by the repository that they should first come to: the author's own where there is
// one. Which of them are missing is for git to say.
func (d Dossier) Wants() []Want {
	wants := map[string]map[string]bool{}
	add := func(owners []string, author string, objects ...string) {
		if len(owners) == 0 {
			return
		}
		owner := owners[0]
		if slices.Contains(owners, author) {
			owner = author
		}
		if wants[owner] == nil {
			wants[owner] = map[string]bool{}
		}
		for _, id := range objects {
			wants[owner][id] = true
		}
	}
	for _, s := range d.States {
		if s.Held {
			add(d.OwnersFor(s.Event.PubKey), s.Event.PubKey, s.Objects()...)
		}
	}
	for _, pr := range d.PullRequests {
		add(d.Tagged(pr), "", pr.Commit)
	}
	var list []Want
	for _, owner := range slices.Sorted(maps.Keys(wants)) {
		list = append(list, Want{owner, slices.Sorted(maps.Keys(wants[owner]))})
	}
	return list
}

// Tagged are the owners of hosted repositories of this identifier that a pull request is for. An update that names none is for all of them.
func (d Dossier) Tagged(pr PullRequest) []string {
	hosted := d.Hosted()
	if len(pr.Repos) == 0 {
		return hosted
	}
	var owners []string
	for _, ref := range pr.Repos {
		if ref.Identifier == d.Identifier && slices.Contains(hosted, ref.PubKey) && !slices.Contains(owners, ref.PubKey) {
			owners = append(owners, ref.PubKey)
		}
	}
	return owners
}

// CloneURLs are where git data may be found: the clone URLs of all announcements and of the pull requests that wait, our own left out.
func (d Dossier) CloneURLs() []string {
	var urls []string
	add := func(more []string) {
		for _, u := range more {
			if !nip34.OnDomain(u, d.Domain) && !slices.Contains(urls, u) {
				urls = append(urls, u)
			}
		}
	}
	for _, a := range d.Announcements {
		add(a.CloneURLs())
	}
	for _, pr := range d.PullRequests {
		add(pr.CloneURLs())
	}
	return urls
}

// StateFor is the state that an owner's repository should have: the newest by an authorised author whose objects are all there.
func (d Dossier) StateFor(owner string, complete func(State) bool) (State, bool) {
	for _, s := range d.States {
		if slices.Contains(d.OwnersFor(s.Event.PubKey), owner) && complete(s) {
			return s, true
		}
	}
	return State{}, false
}

// Superseded are the held states that have lost: in every repository that their author speaks for, a newer one is applied.
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
