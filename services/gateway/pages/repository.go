package pages

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// Bounds of what a page shows or looks at. Strangers write all of it.
const (
	maxListed   = 100
	maxLookedAt = 1000
	maxRefs     = 200
	maxLinks    = 10
	maxName     = 120
	maxText     = 2000
)

// Why there is nothing to show of a repository.
var (
	errNotHosted = errors.New("not announced")                          // by anything that is accepted
	errElsewhere = errors.New("announced, neither hosted nor archived") // by what is accepted
)

// listed is a repository on the front page.
type listed struct {
	Name, Description, Path, Owner string
	Archive                        bool
}

// repository is what a repository's page shows.
type repository struct {
	Name, Description, Identifier string
	Owner                         string // npub
	Path                          string // of the page and the git data
	Naddr                         string
	NostrURL                      string   // for ngit's git-remote-nostr
	Maintainers, Invited          []string // npubs, the owner's not among them; invited keys have no rights
	Nobody                        string   // why nobody has authority
	Web                           []string
	Head                          string
	Archive                       bool // it does not list us
	ReadOnly                      bool // it cannot be pushed to
	Branches, Tags                []reference
	More                          int // references that are not shown
}

type reference struct{ Name, Commit, URL string }

// hosted lists the repositories that were announced last, of an author or "" for all.
func (p *Pages) hosted(ctx context.Context, v *eventdb.View, author string) ([]listed, error) {
	var list []listed
	f := nostr.Filter{Kinds: []int{nostr.KindAnnouncement}, Limit: maxLookedAt}
	if author != "" {
		f.Authors = []string{author}
	}
	for ev, err := range v.Query(ctx, f) {
		if err != nil {
			return nil, fmt.Errorf("list repositories: %w", err)
		}
		a, err := nostr.ParseAnnouncement(ev)
		if err != nil {
			continue
		}
		all := announcementsOf(v, a)
		kept := p.rules.Keeps(a, all)
		if all.failed != nil {
			return nil, fmt.Errorf("list repositories: %w", all.failed)
		}
		if !kept {
			continue
		}
		owner, err := nip19.EncodePublicKey(a.Ref.PubKey)
		if err != nil {
			continue
		}
		list = append(list, listed{
			Name: nameOf(a), Description: clip(a.Description, maxName), Owner: owner,
			Path: nostr.RepositoryURLPath(owner, a.Ref.Identifier), Archive: p.rules.Archives(a),
		})
		if len(list) == maxListed {
			break
		}
	}
	return list, nil
}

// repository gathers what is accepted about a repository. The error is errNotHosted if nothing is,
// and errElsewhere if it is kept elsewhere only.
func (p *Pages) repository(ctx context.Context, v *eventdb.View, pubkey, identifier string) (*repository, error) {
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
	r := &repository{
		Name: nameOf(a), Description: clip(a.Description, maxText), Identifier: identifier,
		Owner: owner, Path: nostr.RepositoryURLPath(owner, identifier),
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
	group := authority.Of(all, pubkey)
	if all.failed != nil {
		return nil, fmt.Errorf("look up maintainers: %w", all.failed)
	}
	r.Maintainers, r.Invited = npubs(group.Confirmed, pubkey), npubs(group.Invited, pubkey)
	r.Nobody = group.Nobody.String()
	return r, r.addState(ctx, v, group.Confirmed)
}

// npubs are public keys as people read them, the owner's not among them.
func npubs(keys []string, owner string) (list []string) {
	for _, key := range keys {
		if key != owner && len(list) < maxListed {
			list = append(list, nostr.Npub(key))
		}
	}
	return list
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

// addState adds the references of the newest accepted state of any confirmed maintainer.
func (r *repository) addState(ctx context.Context, v *eventdb.View, maintainers []string) error {
	if len(maintainers) == 0 {
		return nil
	}
	filter := nostr.Filter{Kinds: []int{nostr.KindState}, Authors: maintainers, Tags: nostr.TagMap{"d": {r.Identifier}},
		Limit: 1}
	for ev, err := range v.Query(ctx, filter) {
		if err != nil {
			return fmt.Errorf("look up state: %w", err)
		}
		state, err := nostr.ParseState(ev)
		if err != nil {
			return nil // ingest accepts none that cannot be read
		}
		r.Head = strings.TrimPrefix(state.Head, "refs/heads/")
		names := make([]string, 0, len(state.Refs))
		for name := range state.Refs {
			names = append(names, name)
		}
		slices.Sort(names)
		if len(names) > maxRefs {
			r.More = len(names) - maxRefs
			names = names[:maxRefs]
		}
		for _, name := range names {
			if branch, ok := strings.CutPrefix(name, "refs/heads/"); ok {
				r.Branches = append(r.Branches, r.reference("branch", branch, state.Refs[name]))
			} else {
				r.Tags = append(r.Tags, r.reference("tag", strings.TrimPrefix(name, "refs/tags/"), state.Refs[name]))
			}
		}
	}
	return nil
}

// reference is a branch or tag with the page of its files.
func (r *repository) reference(kind, name, commit string) reference {
	return reference{name, commit, r.Path + "?" + url.Values{kind: {name}}.Encode()}
}

func nameOf(a *nostr.Announcement) string {
	if name := clip(strings.TrimSpace(a.Name), maxName); name != "" {
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
