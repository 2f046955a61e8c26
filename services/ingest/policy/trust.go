package policy

import (
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

// voice is an announcement that is met on a walk.
type voice struct {
	*nostr.Announcement
	entry *held.Entry // nil: it is accepted
}

type where int

const (
	inLog where = 1 << iota
	inHold
	andOwn
)

// walk goes from a key to the announcements by which others are its maintainers, nearest first, with
// its own before if they are wanted, until visit returns false. complete is false where there may be
// more that were not visited.
func walk(k Knowledge, from nostr.RepoRef, in where, visit func(voice) bool) (complete bool, err error) {
	if in&andOwn != 0 {
		own, err := ownVoices(k, from, in)
		for _, v := range own {
			if !visit(v) {
				return true, nil
			}
		}
		if err != nil {
			return false, err
		}
	}
	seen, queue, steps := map[string]bool{from.PubKey: true}, []string{from.PubKey}, 0
	step := func(v voice) (goOn bool) {
		if !seen[v.Ref.PubKey] {
			seen[v.Ref.PubKey], queue = true, append(queue, v.Ref.PubKey)
		}
		steps++
		return steps <= maxSteps && (v.Ref.PubKey == from.PubKey || visit(v))
	}
	for ; len(queue) > 0; queue = queue[1:] {
		if in&inLog != 0 {
			accepted, err := k.AcceptedNaming(from.Identifier, queue[0])
			if err != nil {
				return false, err
			}
			for _, a := range accepted {
				if !step(voice{a, nil}) {
					return steps <= maxSteps, nil
				}
			}
		}
		if in&inHold != 0 {
			for _, e := range k.Held().Naming(from.Identifier, queue[0]) {
				if !step(voice{e.Announcement, e}) {
					return steps <= maxSteps, nil
				}
			}
		}
	}
	return true, nil
}

func ownVoices(k Knowledge, from nostr.RepoRef, in where) (own []voice, err error) {
	if in&inHold != 0 {
		for _, e := range k.Held().At(from.Address()) {
			own = append(own, voice{e.Announcement, e})
		}
	}
	ev, err := k.AcceptedAt(from.Address())
	if ev == nil || err != nil {
		return own, err
	}
	if a, err := nostr.ParseAnnouncement(ev); err == nil { // by other rules than today's it may be none
		own = append(own, voice{a, nil})
	}
	return own, nil
}

// reaches reports whether a key is in the recursive maintainer set of an announcement that counts.
// certain is false where the walk was too long to tell.
func reaches(k Knowledge, from nostr.RepoRef, in where, counts func(voice) bool) (found, certain bool, err error) {
	certain, err = walk(k, from, in, func(v voice) bool {
		found = counts(v)
		return !found
	})
	return found, certain, err
}

// keeps reports whether an accepted announcement says what rule asks for.
func (p *Policy) keeps(ev *nostr.Event, rule func(*nostr.Announcement) bool) bool {
	a, err := nostr.ParseAnnouncement(ev)
	return err == nil && rule(a)
}

// isServed reports whether a key owns or maintains a repository of this identifier that is served
// here, hosted or archived.
func (p *Policy) isServed(k Knowledge, ref nostr.RepoRef) (bool, error) {
	found, _, err := reaches(k, ref, inLog|andOwn, func(v voice) bool { return p.hosting.Keeps(v.Announcement) })
	return found, err
}

// maxOfServed bounds how many repositories of an event are looked at.
const maxOfServed = 10

// OfServed reports whether an event is one of an owner or maintainer of a served repository, for
// that repository: its announcement or state, or an event that names the repository.
func (p *Policy) OfServed(k Knowledge, ev *nostr.Event) (bool, error) {
	identifiers := []string{ev.Tags.GetD()}
	if ev.Kind != nostr.KindAnnouncement && ev.Kind != nostr.KindState {
		identifiers = nil
		for _, address := range nostr.ReferencesOf(ev).Addresses {
			if ref, is := address.Repo(); is && len(identifiers) < maxOfServed {
				identifiers = append(identifiers, ref.Identifier)
			}
		}
	}
	for _, identifier := range identifiers {
		if served, err := p.isServed(k, nostr.RepoRef{PubKey: ev.PubKey, Identifier: identifier}); served || err != nil {
			return served, err
		}
	}
	return false, nil
}

// speaksForAny reports whether a key is in the recursive maintainer set of any announcement of the
// identifier, accepted or held. Who has announced it, or is named by one who has, is.
func speaksForAny(k Knowledge, ref nostr.RepoRef) (bool, error) {
	found, _, err := reaches(k, ref, inLog|inHold|andOwn, func(voice) bool { return true })
	return found, err
}

// isAnnounced reports whether there is an announcement of the identifier, accepted or held, whose
// id is not in without.
func isAnnounced(k Knowledge, identifier string, without map[string]bool) (bool, error) {
	for _, e := range k.Held().Announcements(identifier) {
		if !without[e.Event.ID] {
			return true, nil
		}
	}
	return k.Announces(identifier, without)
}

// maxRevived bounds how many held announcements one state event can restart: thousands of them may
// name a busy maintainer, whose states must not become thousands of writes.
const maxRevived = 64

// spokenFor returns the held announcements that list us or are archived and for which a key speaks,
// its own first.
func spokenFor(k Knowledge, ref nostr.RepoRef) (entries []*held.Entry, err error) {
	_, err = walk(k, ref, inLog|inHold|andOwn, func(v voice) bool {
		if v.entry != nil && v.entry.Phase != proto.PhaseVouched {
			entries = append(entries, v.entry)
		}
		return len(entries) < maxRevived
	})
	return entries, err
}

// speaksHere reports whether a key owns a repository of the identifier that is hosted or archived
// here, or waits, or is in the recursive maintainer set of one. Where a walk is too long to tell,
// it does.
func (p *Policy) speaksHere(k Knowledge, ref nostr.RepoRef) (bool, error) {
	found, certain, err := reaches(k, ref, inLog|inHold|andOwn, func(v voice) bool {
		return v.entry == nil && p.hosting.Keeps(v.Announcement) || v.entry != nil && v.entry.Phase != proto.PhaseVouched
	})
	return found || !certain, err
}
