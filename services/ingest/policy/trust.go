package policy

import (
	"slices"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Package authority says who speaks for whom. Here is which announcements it is asked about: those
// that are accepted, those that are held, or both.

// inLog is the phase of announcements that are accepted and not held.
const inLog proto.Phase = ""

// announced are the announcements of an identifier that count, accepted and held.
func announced(k Knowledge, identifier string) held.Announcements {
	return held.Announcements{In: []held.Source{k.Announced(identifier), k.Held().Announced(identifier)}}
}

// isHosted reports whether the accepted announcement of an owner is of a repository that is hosted
// or archived here.
func (p *Policy) isHosted(k Knowledge, ref nostr.RepoRef) bool {
	return slices.ContainsFunc(k.Announced(ref.Identifier).By(ref.PubKey), func(e *held.Entry) bool {
		return p.hosting.Keeps(e.Announcement, announced(k, ref.Identifier))
	})
}

// isServed reports whether a key owns a repository of this identifier that is served here, hosted
// or archived, or is a confirmed maintainer of one.
func (p *Policy) isServed(k Knowledge, ref nostr.RepoRef) bool {
	return p.isHosted(k, ref) || p.speaksForHosted(k, ref)
}

// speaksForHosted reports whether a key is a confirmed maintainer of a repository of this identifier
// that is hosted or archived here.
func (p *Policy) speaksForHosted(k Knowledge, ref nostr.RepoRef) bool {
	return authority.Speaks(announced(k, ref.Identifier), ref.PubKey, func(c authority.Coordinate) bool {
		return p.isHosted(k, nostr.RepoRef{PubKey: c.Owner, Identifier: ref.Identifier})
	})
}

// maxOfServed bounds how many repositories, and other events, of an event are looked at.
const maxOfServed = 10

// OfServed reports whether an event is one of an owner or confirmed maintainer of a served
// repository, for that repository: its announcement or state, or an event that names the
// repository, or an accepted event of it.
func (p *Policy) OfServed(k Knowledge, ev *nostr.Event) bool {
	return slices.ContainsFunc(linkedRepos(k, ev), func(ref nostr.RepoRef) bool {
		return p.isServed(k, nostr.RepoRef{PubKey: ev.PubKey, Identifier: ref.Identifier})
	})
}

// linkedRepos are the repositories of an event, and of the accepted events that it names, the first
// of them.
func linkedRepos(k Knowledge, ev *nostr.Event) []nostr.RepoRef {
	refs, ids := reposOf(ev), nostr.ReferencesOf(ev).IDs
	for _, id := range ids[:min(len(ids), maxOfServed)] {
		if named := k.Accepted(id); named != nil {
			refs = append(refs, reposOf(named)...)
		}
	}
	return refs[:min(len(refs), maxOfServed)]
}

// maxRelaysOfOne bounds the relays that one announcement has among those of a chain.
const maxRelaysOfOne = 4

// RelaysOf are the relays where what this event heals may be found: those of the announcements of
// the repositories that it is linked to, and of the announcements by which it is decided who speaks
// for these. The nearest come first.
func (p *Policy) RelaysOf(k Knowledge, ev *nostr.Event) (relays []string) {
	seen, has := map[string]bool{}, map[string]bool{}
	for _, ref := range linkedRepos(k, ev) {
		all := announced(k, ref.Identifier)
		all.WithSilent = true
		for _, author := range authority.Deciding(all, ref.PubKey, maxOfServed) {
			name := nostr.RepoRef{PubKey: author, Identifier: ref.Identifier}.String()
			a := all.By(author)
			if a == nil || seen[name] {
				continue
			}
			seen[name] = true
			urls := slices.DeleteFunc(a.RelayURLs(), func(u nostr.RelayURL) bool { return u.OnDomain(p.hosting.Domain()) })
			for _, u := range urls[:min(len(urls), maxRelaysOfOne)] {
				if !has[u.Key()] && len(relays) < proto.MaxFetchRelays {
					has[u.Key()], relays = true, append(relays, string(u))
				}
			}
		}
	}
	return relays
}

// reposOf are the repositories that an event names, or that it is the announcement or state of.
func reposOf(ev *nostr.Event) (refs []nostr.RepoRef) {
	if ev.Kind == nostr.KindAnnouncement || ev.Kind == nostr.KindState {
		return []nostr.RepoRef{{PubKey: ev.PubKey, Identifier: ev.Tags.GetD()}}
	}
	for _, address := range nostr.ReferencesOf(ev).Addresses {
		if ref, is := address.Repo(); is {
			refs = append(refs, ref)
		}
	}
	return refs
}

// isAnnounced reports whether there is an announcement of the identifier, accepted or held, whose
// id is not in without.
func isAnnounced(k Knowledge, identifier string, without map[string]bool) bool {
	return k.Held().Announced(identifier).Any(without) || k.Announced(identifier).Any(without)
}

// maxRevived bounds how many held announcements one state event can restart.
const maxRevived = 64

// spokenFor returns the held announcements of repositories of an identifier that wait or are silent
// and for which a key is a confirmed maintainer.
func spokenFor(k Knowledge, identifier, key string) (entries []*held.Entry) {
	waiting := k.Held().Announced(identifier)
	if !waiting.Any(nil) {
		return nil
	}
	all := held.Announcements{In: []held.Source{waiting, k.Announced(identifier)}, WithSilent: true} // in this order
	for c := range authority.CoordinatesWithin(all, key, authority.MaxFollowing) {
		for _, e := range waiting.By(c.Owner) {
			if e.Announcement != nil && e.Phase != proto.PhaseVouched {
				entries = append(entries, e)
			}
		}
		if len(entries) >= maxRevived {
			break
		}
	}
	return entries
}

// speaksHere reports whether a key owns a repository of the identifier that is hosted or archived
// here, or waits, or is a confirmed maintainer of one.
func (p *Policy) speaksHere(k Knowledge, ref nostr.RepoRef) bool {
	isHere := func(c authority.Coordinate) bool {
		at := nostr.RepoRef{PubKey: c.Owner, Identifier: ref.Identifier}
		return p.isHosted(k, at) || slices.ContainsFunc(k.Held().At(at.Address()), func(e *held.Entry) bool {
			return e.Announcement != nil && e.Phase != proto.PhaseVouched
		})
	}
	return isHere(authority.Coordinate{Owner: ref.PubKey}) || authority.Speaks(announced(k, ref.Identifier), ref.PubKey,
		isHere)
}

// isListed reports whether an accepted announcement of the identifier by another author lists the
// author of this: one step, which is how an invitation is accepted.
func isListed(k Knowledge, a *nostr.Announcement) bool {
	return k.Announced(a.Ref.Identifier).Lists(a.Ref.PubKey)
}

// isVouchedFor reports whether a held announcement of another author lists the author of this: one
// step. What is held for others' sake vouches too; it goes with the last that does not, see
// dropWith.
func isVouchedFor(k Knowledge, a *nostr.Announcement) bool {
	return k.Held().Announced(a.Ref.Identifier).Lists(a.Ref.PubKey)
}
