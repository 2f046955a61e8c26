package config

import (
	"cmp"
	"errors"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/nostr"
)

// Rules say by the announcements of its identifier whether a repository is kept here: it lists this
// service (GRASP-01) and the whitelist allows it, or the operator archives it (GRASP-05). Whether
// an announcement is accepted at all is for ingest to decide. The zero value keeps nothing; with a
// domain alone everything that lists it is hosted, and nothing is archived.
type Rules struct {
	Home     string // address of this service, normalised
	hosted   List   // the whitelist; empty: everything
	readOnly bool
	all      bool
	archived List
	services []string // domains
	private  bool     // it asks its peers alone for what concerns repositories
	peers    Peers
}

// Hosting reads the rules from settings. An error is one sentence for the operator.
func (s Settings) Hosting() (r Rules, err error) {
	service, noDomain := nostr.NormalizeService(s.Domain + "/" + s.BasePath)
	archived, err := ParseList("NGIT_ARCHIVE_WHITELIST", s.ArchiveWhitelist)
	hosted, badHosted := ParseList("NGIT_REPOSITORY_WHITELIST", s.RepositoryWhitelist)
	if err = cmp.Or(s.Service.check(), noDomain, err, badHosted); err != nil {
		return Rules{}, err
	}
	r = Rules{Home: service, hosted: hosted, readOnly: s.IsArchiveReadOnly(), all: s.ArchiveAll, archived: archived}
	r.private = s.PrivateMode
	if r.peers, err = s.Peers(); err != nil {
		return Rules{}, err
	}
	for _, given := range s.ArchiveServices {
		service, err := nostr.NormalizeDomain(given)
		if err != nil {
			return Rules{}, s.archive()
		}
		r.services = append(r.services, service)
	}
	return r, nil
}

// Domain is the address of this service, normalised.
func (r Rules) Domain() string { return r.Home }

// MayAsk reports whether a relay or git server may be asked for what concerns a repository, and so
// learn of it: a private service asks its peers alone.
func (r Rules) MayAsk(address string) bool { return !r.private || r.peers.Have(address) }

// IsPeer reports whether an address leads to a peer of a private service, which wants a proof.
func (r Rules) IsPeer(address string) bool { return r.private && r.peers.Have(address) }

// Peers are the relays of the peers of a private service.
func (r Rules) Peers() (urls []nostr.RelayURL) {
	for _, peer := range r.peers {
		urls = append(urls, peer.Relay)
	}
	return urls
}

// ReadOnly reports whether pushes to archived repositories are refused.
func (r Rules) ReadOnly() bool { return r.readOnly }

// Lists reports whether the announcement lists this service. Where the whitelist allows it the
// repository is hosted here and can be pushed to.
func (r Rules) Lists(a *nostr.Announcement) bool { return a.ListsService(r.Home) }

// Vanishes reports whether a request to vanish (NIP-62) is meant for this service.
func (r Rules) Vanishes(request *nostr.Event) bool { return nostr.VanishesFrom(request, r.Home) }

// Archives reports whether the repository is kept though its announcement does not list this
// service: everything is archived, or the repository is on the list, or its announcement has a
// clone URL at one of the services that are archived.
func (r Rules) Archives(a *nostr.Announcement) bool { return r.archives(a) && !r.Lists(a) }

func (r Rules) archives(a *nostr.Announcement) bool {
	if r.all || r.archived.Has(a.Ref) {
		return true
	}
	for _, service := range r.services {
		if a.HasCloneOn(service) {
			return true
		}
	}
	return false
}

// Keeps reports whether the repository is here, hosted or archived. others are the announcements of
// its identifier that count, this one among them: they are asked only where there is a whitelist.
func (r Rules) Keeps(a *nostr.Announcement, others authority.Announcements) bool {
	return r.archives(a) || r.Lists(a) && r.MayHost(a.Ref, others, func(owner string) bool {
		by := others.By(owner)
		return by != nil && r.Lists(by)
	})
}

// maxHosting bounds the repositories that are looked at for whether they are hosted here.
const maxHosting = 64

// MayHost reports whether the whitelist allows a repository that lists this service: there is none,
// or the repository is on it, or its owner is a confirmed maintainer of one that is hosted here.
// lists says whose announcements list this service. To be archived makes no maintainer welcome.
func (r Rules) MayHost(ref nostr.RepoRef, all authority.Announcements, lists func(owner string) bool) bool {
	if r.hosted.Empty() || r.hosted.Has(ref) {
		return true
	}
	seen := map[string]bool{ref.PubKey: true}
	for queue := []string{ref.PubKey}; len(queue) > 0; queue = queue[1:] {
		for c := range authority.CoordinatesWithin(all, queue[0], authority.MaxFollowing) {
			if seen[c.Owner] || len(seen) > maxHosting || !lists(c.Owner) {
				continue
			}
			if r.hosted.Has(nostr.RepoRef{PubKey: c.Owner, Identifier: ref.Identifier}) {
				return true
			}
			seen[c.Owner], queue = true, append(queue, c.Owner)
		}
	}
	return false
}

// Whitelists reports whether there is a list of those repositories that are hosted.
func (r Rules) Whitelists() bool { return !r.hosted.Empty() }

// List is a list of repositories as operators write it: npub, npub/identifier or identifier. The
// zero value is empty.
type List struct{ entries map[nostr.RepoRef]bool } // half of a reference may be empty

// ParseList reads the entries of a setting.
func ParseList(setting string, entries []string) (l List, err error) {
	for _, entry := range entries {
		if err := l.add(entry); err != nil {
			return l, &Error{setting, entry, err.Error() + "; want npub, npub/identifier or identifier, comma-separated"}
		}
	}
	return l, nil
}

func (l *List) add(entry string) (err error) {
	ref := nostr.RepoRef{Identifier: entry}
	named := true
	if strings.HasPrefix(entry, "npub1") {
		var npub string
		npub, ref.Identifier, named = strings.Cut(entry, "/")
		if ref.PubKey, err = ParseNpub(npub); err != nil {
			return err
		}
	}
	if named {
		if err := nostr.CheckIdentifier(ref.Identifier); err != nil {
			return err
		}
	}
	if l.entries == nil {
		l.entries = map[nostr.RepoRef]bool{}
	}
	l.entries[ref] = true
	return nil
}

// Empty says that nothing is on the list.
func (l List) Empty() bool { return len(l.entries) == 0 }

// Has reports whether the repository is on the list, by owner, by identifier or by both.
func (l List) Has(r nostr.RepoRef) bool {
	return l.entries[r] || l.entries[nostr.RepoRef{PubKey: r.PubKey}] || l.entries[nostr.RepoRef{Identifier: r.Identifier}]
}

// ParseNpub reads a public key as operators write it, and returns its 64 hex digits.
func ParseNpub(s string) (string, error) {
	prefix, key, err := nip19.Decode(strings.TrimSpace(s))
	if err != nil || prefix != "npub" {
		return "", errors.New("not a legal npub")
	}
	return key.(string), nil
}
