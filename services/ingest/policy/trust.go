package policy

import (
	"slices"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Who speaks for whom is asked backwards: from somebody to those who name him or her as a
// maintainer, to those who name these, and so on. Anybody may announce an identifier and name
// anybody, so that nothing here walks all announcements of one, and every walk has an end.

// maxSteps bounds one walk, in announcements that are looked at. Who cannot be reached within it is
// not reached.
const maxSteps = 4096

// walk looks for somebody among those who name others, at most so many steps.
type walk struct {
	identifier string
	seen       map[string]bool
	queue      []string
	steps      int
}

func from(pubkey, identifier string) *walk {
	return &walk{identifier: identifier, seen: map[string]bool{pubkey: true}, queue: []string{pubkey}, steps: maxSteps}
}

// next is the next key whose namers should be looked at; false: there is none, or the walk has
// become too long.
func (w *walk) next() (pubkey string, ok bool) {
	if len(w.queue) == 0 || w.steps <= 0 {
		return "", false
	}
	pubkey, w.queue = w.queue[0], w.queue[1:]
	return pubkey, true
}

// visit notes that an announcement was looked at, and goes on to its author.
func (w *walk) visit(author string) (more bool) {
	w.steps--
	if !w.seen[author] {
		w.seen[author] = true
		w.queue = append(w.queue, author)
	}
	return w.steps > 0
}

// isNamedByAccepted reports whether somebody is in the recursive maintainer set of another author's
// accepted announcement. Whoever names somebody has announced the identifier, so that those who do
// so themselves are all that matters.
func isNamedByAccepted(k Knowledge, pubkey, identifier string) (bool, error) {
	naming, err := k.AcceptedNaming(identifier, pubkey)
	return len(naming) > 0, err
}

// isKept reports whether the repository of an announcement is here: it is accepted, and lists us or
// is archived.
func (p *Policy) isKept(k Knowledge, ref nostr.RepoRef) (bool, error) {
	ev, err := k.AcceptedAt(ref.Address())
	if err != nil || ev == nil {
		return false, err
	}
	return p.keeps(ev), nil
}

// keeps reports whether an accepted announcement is of a repository that lists us or is archived.
func (p *Policy) keeps(ev *nostr.Event) bool {
	a, err := nostr.ParseAnnouncement(ev)
	return err == nil && p.hosting.Keeps(a)
}

func (p *Policy) listsUs(ev *nostr.Event) bool {
	a, err := nostr.ParseAnnouncement(ev)
	return err == nil && p.hosting.Lists(a)
}

// mayVouch are the announcements that make a repository of somebody else's count here.
type mayVouch struct {
	kept    func(*nostr.Announcement) bool
	waiting bool // those count too that wait for their git data
}

// speaksFor reports whether somebody is in the recursive maintainer set of another author's
// announcement that counts.
func (p *Policy) speaksFor(k Knowledge, pubkey, identifier string, by mayVouch) (bool, error) {
	w := from(pubkey, identifier)
	for at, ok := w.next(); ok; at, ok = w.next() {
		naming, err := k.AcceptedNaming(identifier, at)
		if err != nil {
			return false, err
		}
		for _, a := range naming {
			if a.Ref.PubKey != pubkey && by.kept(a) {
				return true, nil
			}
			if !w.visit(a.Ref.PubKey) {
				return false, nil
			}
		}
		if !by.waiting {
			continue
		}
		for _, e := range k.Held().Naming(identifier, at) {
			if e.Event.PubKey != pubkey && e.Phase == proto.PhaseWaiting && by.kept(e.Announcement) {
				return true, nil
			}
			if !w.visit(e.Event.PubKey) {
				return false, nil
			}
		}
	}
	return false, nil
}

// isServed reports whether somebody owns or maintains a repository of this identifier that is
// served here, hosted or archived.
func (p *Policy) isServed(k Knowledge, pubkey, identifier string) (bool, error) {
	kept, err := p.isKept(k, nostr.RepoRef{PubKey: pubkey, Identifier: identifier})
	if kept || err != nil {
		return kept, err
	}
	return p.speaksFor(k, pubkey, identifier, mayVouch{kept: p.hosting.Keeps})
}

// maxOfServed bounds how many repositories of an event are looked at.
const maxOfServed = 10

// OfServed reports whether an event is one of an owner or maintainer of a served repository, for
// that repository: its announcement or state, or an event that names the repository.
func (p *Policy) OfServed(k Knowledge, ev *nostr.Event) (bool, error) {
	switch ev.Kind {
	case nostr.KindAnnouncement, nostr.KindState:
		return p.isServed(k, ev.PubKey, ev.Tags.GetD())
	}
	looks := 0
	for _, tag := range ev.Tags {
		if len(tag) < 2 || tag[0] != "a" && tag[0] != "A" || looks == maxOfServed {
			continue
		}
		ref, err := nostr.ParseRepoRef(tag[1])
		if err != nil {
			continue
		}
		looks++
		if served, err := p.isServed(k, ev.PubKey, ref.Identifier); served || err != nil {
			return served, err
		}
	}
	return false, nil
}

// isVouchedFor reports whether held announcements of others say that somebody is a maintainer:
// there is one that waits for git data of its own, because it lists us or is archived, in whose
// recursive maintainer set he or she is. What is in without, by ids, does not count, and what is in
// with does. certain is false where the walk was too long to tell.
func (w *walk) isVouchedFor(k Knowledge, without map[string]bool, with ...*held.Entry) (vouched, certain bool) {
	pubkey := w.queue[0]
	for at, ok := w.next(); ok; at, ok = w.next() {
		for _, e := range slices.Concat(k.Held().Naming(w.identifier, at), naming(with, w.identifier, at)) {
			if without[e.Event.ID] || e.Event.PubKey == pubkey {
				continue
			}
			if e.Phase != proto.PhaseVouched {
				return true, true
			}
			if !w.visit(e.Event.PubKey) {
				return false, false
			}
		}
	}
	return false, w.steps > 0
}

// naming returns those of some entries that are announcements and name somebody as a maintainer.
func naming(entries []*held.Entry, identifier, pubkey string) (some []*held.Entry) {
	for _, e := range entries {
		if e.Announcement != nil && e.Identifier == identifier && slices.Contains(e.Announcement.Maintainers, pubkey) {
			some = append(some, e)
		}
	}
	return some
}

// speaksForAny reports whether somebody is in the recursive maintainer set of any announcement of
// the identifier, accepted or held: both count. Those who have announced it, or are named by
// somebody who has, are; and nobody else is.
func speaksForAny(k Knowledge, pubkey, identifier string) (bool, error) {
	own := nostr.RepoRef{PubKey: pubkey, Identifier: identifier}.Address()
	if len(k.Held().At(own))+len(k.Held().Naming(identifier, pubkey)) > 0 {
		return true, nil
	}
	have, err := k.AcceptedAt(own)
	if have != nil || err != nil {
		return have != nil, err
	}
	return isNamedByAccepted(k, pubkey, identifier)
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

// maxRevived bounds how many held announcements one state event can restart: whoever names a busy
// maintainer in thousands of announcements must not turn each of that maintainer's states into
// thousands of writes.
const maxRevived = 64

// spokenFor returns the held announcements that list us and for which somebody speaks, the own
// first.
func spokenFor(k Knowledge, pubkey, identifier string) ([]*held.Entry, error) {
	var entries []*held.Entry
	take := func(e *held.Entry) {
		if e.Announcement != nil && e.Phase != proto.PhaseVouched && len(entries) < maxRevived {
			entries = append(entries, e)
		}
	}
	for _, e := range k.Held().At(nostr.RepoRef{PubKey: pubkey, Identifier: identifier}.Address()) {
		take(e)
	}
	w := from(pubkey, identifier)
	for at, ok := w.next(); ok && len(entries) < maxRevived; at, ok = w.next() {
		for _, e := range k.Held().Naming(identifier, at) {
			if e.Event.PubKey != pubkey {
				take(e)
			}
			if !w.visit(e.Event.PubKey) {
				break
			}
		}
		accepted, err := k.AcceptedNaming(identifier, at)
		if err != nil {
			return nil, err
		}
		for _, a := range accepted {
			if !w.visit(a.Ref.PubKey) {
				break
			}
		}
	}
	return entries, nil
}
