package policy

import (
	"slices"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Who speaks for whom is asked backwards: from a key to those who name it as a maintainer, to those
// who name these, and so on. Anybody may announce an identifier and name anybody, so that nothing
// here walks all announcements of one, and every walk has an end.

// maxSteps bounds one walk, in announcements that are looked at. Who cannot be reached within it is
// not reached.
const maxSteps = 4096

// inLog is the phase of announcements that are accepted and not held.
const inLog proto.Phase = ""

// where says which announcements a walk looks at.
type where int

const (
	accepts where = 1 << iota
	holds
	andOwn // also those of the key that it begins with
)

// answer is what a walk came to.
type answer int

const (
	no answer = iota
	yes
	unsure // the walk was too long to tell
)

// reaches answers whether a key is in the recursive maintainer set of an announcement that counts.
// It looks at the nearest first.
func reaches(k Knowledge, from nostr.RepoRef, in where, counts func(*held.Entry) bool) answer {
	var places []*held.Directory
	if in&accepts != 0 {
		places = append(places, k.Announced(from.Identifier))
	}
	if in&holds != 0 {
		places = append(places, k.Held())
	}
	for _, place := range places {
		if in&andOwn != 0 && slices.ContainsFunc(place.At(from.Address()), counts) {
			return yes
		}
	}
	seen, queue, steps := map[string]bool{from.PubKey: true}, []string{from.PubKey}, 0
	for ; len(queue) > 0; queue = queue[1:] {
		for _, place := range places {
			for _, e := range place.Naming(from.Identifier, queue[0]) {
				owner := e.Event.PubKey
				if steps++; steps > maxSteps {
					return unsure
				}
				if owner != from.PubKey && counts(e) {
					return yes
				}
				if !seen[owner] {
					seen[owner], queue = true, append(queue, owner)
				}
			}
		}
	}
	return no
}

// isServed reports whether a key owns or maintains a repository of this identifier that is served
// here, hosted or archived.
func (p *Policy) isServed(k Knowledge, ref nostr.RepoRef) bool {
	return reaches(k, ref, accepts|andOwn, func(e *held.Entry) bool { return p.hosting.Keeps(e.Announcement) }) == yes
}

// maxOfServed bounds how many repositories, and other events, of an event are looked at.
const maxOfServed = 10

// OfServed reports whether an event is one of an owner or maintainer of a served repository, for
// that repository: its announcement or state, or an event that names the repository, or an accepted
// event of it.
func (p *Policy) OfServed(k Knowledge, ev *nostr.Event) bool {
	refs, ids := reposOf(ev), nostr.ReferencesOf(ev).IDs
	for _, id := range ids[:min(len(ids), maxOfServed)] {
		if named := k.Accepted(id); named != nil {
			refs = append(refs, reposOf(named)...)
		}
	}
	return slices.ContainsFunc(refs[:min(len(refs), maxOfServed)], func(ref nostr.RepoRef) bool {
		return p.isServed(k, nostr.RepoRef{PubKey: ev.PubKey, Identifier: ref.Identifier})
	})
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
	stays := func(e *held.Entry) bool { return !without[e.Event.ID] }
	return slices.ContainsFunc(k.Held().Announcements(identifier), stays) ||
		slices.ContainsFunc(k.Announced(identifier).Announcements(identifier), stays)
}

// maxRevived bounds how many held announcements one state event can restart: thousands of them may
// name a busy maintainer, whose states must not become thousands of writes.
const maxRevived = 64

// spokenFor returns the held announcements that list us or are archived and for which a key speaks,
// its own first.
func spokenFor(k Knowledge, ref nostr.RepoRef) (entries []*held.Entry) {
	reaches(k, ref, accepts|holds|andOwn, func(e *held.Entry) bool {
		if e.Phase != inLog && e.Phase != proto.PhaseVouched {
			entries = append(entries, e)
		}
		return len(entries) == maxRevived
	})
	return entries
}

// speaksHere reports whether a key owns a repository of the identifier that is hosted or archived
// here, or waits, or is in the recursive maintainer set of one. Where a walk is too long to tell,
// it does.
func (p *Policy) speaksHere(k Knowledge, ref nostr.RepoRef) bool {
	return reaches(k, ref, accepts|holds|andOwn, func(e *held.Entry) bool {
		return e.Phase != proto.PhaseVouched && (e.Phase != inLog || p.hosting.Keeps(e.Announcement))
	}) != no
}
