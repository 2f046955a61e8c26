package pages

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Bounds of what a page shows or looks at. Strangers write all of it.
const (
	maxListed = 100
	maxRefs   = 200 // of each kind
	maxLinks  = 10
	maxName   = 120
	maxText   = 2000
)

// Why there is nothing to show of a repository.
var (
	errNotHosted = errors.New("not announced")                          // by anything that is accepted
	errElsewhere = errors.New("announced, neither hosted nor archived") // by what is accepted
)

// repository is what a repository's page shows.
type repository struct {
	ref                           nostr.RepoRef
	group                         authority.Group
	Name, Description, Identifier string
	Owner                         person
	Path                          string // of the page and the git data
	Naddr                         string
	NostrURL                      string   // for ngit's git-remote-nostr
	Maintainers, Invited          []person // the owner is not among them; invited keys have no rights
	NoAuthority                   string   // why no one has authority
	Announced                     time.Time
	Issues, Pulls                 tally
	Web                           []string
	Head                          string
	Archive                       bool // it does not list us
	ReadOnly                      bool // it cannot be pushed to
	Branches, Tags                []reference
	More                          int // references that are not shown

	active  time.Time // when the announcement or the state was signed, whichever is newer
	refsSum string    // of what the state names, as [proto.SumOfRefs] makes it; "": there is no state
}

// reference is a branch or a tag.
type reference struct {
	Name, Commit, URL string
	Archive           string    // of a tag: URL of its files in one file
	At                time.Time // of its commit, or of a tag that was written; zero: not known
}

// repository gathers what is accepted about a repository. The error is errNotHosted if nothing is,
// and errElsewhere if it is kept elsewhere only.
func (p *Pages) repository(v *eventdb.View, pubkey, identifier string) (*repository, error) {
	ev, err := v.Replaceable(nostr.KindAnnouncement, pubkey, identifier)
	if errors.Is(err, eventdb.ErrNotFound) {
		return nil, errNotHosted
	}
	if err != nil {
		return nil, fmt.Errorf("look up announcement: %w", err)
	}
	a, err := nostr.ParseAnnouncement(ev)
	if err != nil {
		return nil, errNotHosted
	}
	all := announcementsOf(v, a)
	if kept := p.rules.Keeps(a, all); !kept && all.failed == nil {
		return nil, errElsewhere
	}
	owner, err := nip19.EncodePublicKey(pubkey)
	if err != nil {
		return nil, errNotHosted
	}
	names := people{view: v}
	r := &repository{
		ref: a.Ref, Announced: timeOf(ev, time.Now()), active: timeOf(ev, time.Now()),
		Name: nameOf(a), Description: clip(a.Description, maxText), Identifier: identifier,
		Owner: names.of(pubkey), Path: nostr.RepositoryURLPath(owner, identifier),
		NostrURL: nostrURL(owner, p.site.Relay, identifier),
		Archive:  p.rules.Archives(a), ReadOnly: p.rules.Archives(a) && p.rules.ReadOnly(),
	}
	var relays []string
	for _, u := range a.RelayURLs()[:min(len(a.RelayURLs()), 3)] {
		relays = append(relays, string(u))
	}
	if r.Naddr, err = nip19.EncodeEntity(pubkey, nostr.KindAnnouncement, identifier, relays); err != nil {
		return nil, fmt.Errorf("encode address: %w", err)
	}
	for _, link := range a.Web {
		if (strings.HasPrefix(link, "https://") || strings.HasPrefix(link, "http://")) && len(link) <= maxText &&
			len(r.Web) < maxLinks {
			r.Web = append(r.Web, link)
		}
	}
	r.group = authority.Of(all, pubkey)
	if all.failed != nil {
		return nil, fmt.Errorf("look up maintainers: %w", all.failed)
	}
	r.Maintainers, r.Invited = names.each(r.group.Confirmed, pubkey), names.each(r.group.Invited, pubkey)
	r.NoAuthority = r.group.NoAuthority.String()
	state, err := newestState(v, r.group, identifier)
	if err != nil {
		return nil, err
	}
	r.addState(state)
	return r, names.failed
}

// announcements are the accepted ones of an identifier. Each is read once.
type announcements struct {
	view       *eventdb.View
	identifier string
	read       map[string]*nostr.Announcement
	failed     error // what could not be read
}

// announcementsOf finds those of the identifier of one that is read already.
func announcementsOf(v *eventdb.View, a *nostr.Announcement) *announcements {
	return &announcements{view: v, identifier: a.Ref.Identifier, read: map[string]*nostr.Announcement{a.Ref.PubKey: a}}
}

// By implements [authority.Announcements].
func (all *announcements) By(author string) *nostr.Announcement {
	if a, read := all.read[author]; read {
		return a
	}
	ev, err := all.view.Replaceable(nostr.KindAnnouncement, author, all.identifier)
	if err != nil && !errors.Is(err, eventdb.ErrNotFound) {
		all.failed = err
	}
	var a *nostr.Announcement
	if err == nil {
		a, _ = nostr.ParseAnnouncement(ev) // ingest accepts none that cannot be read
	}
	all.read[author] = a
	return a
}

// LedBy is not asked for: a page is about one owner's repository.
func (all *announcements) LedBy(string) iter.Seq[*nostr.Announcement] {
	return func(func(*nostr.Announcement) bool) {}
}

// nostrURL is the address of a repository for git-remote-nostr:
// nostr://<npub>/<relay>/<identifier>. A relay without a scheme is reached by wss.
func nostrURL(npub, relay, identifier string) string {
	return "nostr://" + npub + "/" + url.QueryEscape(strings.TrimPrefix(relay, "wss://")) + "/" +
		nostr.EncodeIdentifier(identifier)
}

// newestState is the newest accepted state of a repository by any confirmed maintainer; nil where
// there is none. Each is looked up by itself: anybody may publish states of the identifier.
func newestState(v *eventdb.View, group authority.Group, identifier string) (newest *nostr.Event, err error) {
	for _, key := range group.Confirmed {
		state, err := v.Replaceable(nostr.KindState, key, identifier)
		switch {
		case errors.Is(err, eventdb.ErrNotFound):
		case err != nil:
			return nil, fmt.Errorf("look up state: %w", err)
		case nostr.Replaces(state, newest):
			newest = state
		}
	}
	return newest, nil
}

// addState adds the references of a state.
func (r *repository) addState(ev *nostr.Event) {
	if ev == nil {
		return
	}
	state, err := nostr.ParseState(ev)
	if err != nil {
		return // ingest accepts none that cannot be read
	}
	if at := timeOf(ev, time.Now()); at.After(r.active) {
		r.active = at
	}
	r.Head, r.refsSum = strings.TrimPrefix(state.Head, "refs/heads/"), proto.SumOfRefs(state.Refs)
	for name, commit := range state.Refs {
		if branch, ok := strings.CutPrefix(name, "refs/heads/"); ok {
			r.Branches = append(r.Branches, r.reference("branch", branch, commit))
		} else {
			r.Tags = append(r.Tags, r.reference("tag", strings.TrimPrefix(name, "refs/tags/"), commit))
		}
	}
}

// arrange puts the branches and the tags in order, the newest ones first, and leaves out those that
// are too many. times are by full name; a reference without a time comes behind the others.
func (r *repository) arrange(times map[string]time.Time) {
	order := func(list []reference, prefix string) []reference {
		for n := range list {
			list[n].At = times[prefix+list[n].Name]
		}
		slices.SortFunc(list, func(a, b reference) int {
			return cmp.Or(b.At.Compare(a.At), strings.Compare(a.Name, b.Name))
		})
		r.More += max(0, len(list)-maxRefs)
		return list[:min(len(list), maxRefs)]
	}
	r.Branches, r.Tags = order(r.Branches, "refs/heads/"), order(r.Tags, "refs/tags/")
}

// reference is a branch or tag with the page of its files.
func (r *repository) reference(kind, name, commit string) reference {
	one := reference{Name: name, Commit: commit, URL: r.Path + "?" + url.Values{kind: {name}}.Encode()}
	if kind == "tag" {
		one.Archive = r.Path + nostr.ArchivePath(name)
	}
	return one
}

func nameOf(a *nostr.Announcement) string {
	if name := clip(strings.TrimSpace(harmless(a.Name)), maxName); name != "" {
		return name
	}
	return a.Ref.Identifier
}

func clip(s string, most int) string {
	runes := 0
	for i := range s {
		if runes++; runes > most {
			return s[:i] + "…"
		}
	}
	return s
}
