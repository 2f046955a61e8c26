package policy

import (
	"cmp"
	"slices"

	"tendril.dev/lib/nip34"
	"tendril.dev/services/ingest/candidate"
	"tendril.dev/services/ingest/held"
)

// maxRevived bounds how many held announcements one state event can restart: whoever names a busy maintainer in thousands of
// announcements must not turn each of that maintainer's states into thousands of writes.
const maxRevived = 64

// state decides kind 30618: the author must speak for some announcement of the identifier, then it waits for its objects. The clocks
// of the held announcements that it speaks for start anew (spec/purgatory.md, What waits).
func (p *Policy) state(k Knowledge, c *candidate.Candidate) (Decision, error) {
	s, err := nip34.ParseState(c.Event)
	if err != nil {
		return invalid(err), nil
	}
	owners, refusal, err := authority(k, c.Event.PubKey, s.Identifier)
	if owners == nil || err != nil {
		return refusal, err
	}
	superseded, err := isSuperseded(k, c.Event)
	if err != nil {
		return Decision{}, err
	}
	if superseded {
		return rejected(ReasonSuperseded, "invalid: superseded by a state event of the same author that is newer, or as old and of lower id"), nil
	}
	if refusal, full := p.crowded(k, c.Event.PubKey); full {
		return refusal, nil
	}
	d, err := p.holdNew(c, s.Identifier)
	if err != nil {
		return Decision{}, err
	}
	for _, e := range waitingFor(k, owners, c.Event.PubKey, s.Identifier) {
		d.Hold = append(d.Hold, p.revived(e))
	}
	return d, nil
}

// authority gives the owners for whose repositories the author speaks; none: the refusal.
func authority(k Knowledge, author, identifier string) ([]string, Decision, error) {
	known, err := announcements(k, identifier)
	if err != nil {
		return nil, Decision{}, err
	}
	missing := []string{MissingAnnouncement(identifier)}
	if len(known) == 0 {
		return nil, healable(ReasonNoAnnouncement, "invalid: no announcement exists for this repository", missing), nil
	}
	owners := nip34.AuthorizedOwners(author, known)
	if len(owners) == 0 {
		return nil, healable(ReasonUnauthorized, "invalid: author not authorized for this repository", missing), nil
	}
	return owners, Decision{}, nil
}

// waitingFor gives the held announcements of these owners, the author's own first.
func waitingFor(k Knowledge, owners []string, author, identifier string) []*held.Entry {
	var entries []*held.Entry
	for _, e := range k.HeldOf(identifier) {
		if e.Announcement == nil {
			continue
		}
		if _, speaksFor := slices.BinarySearch(owners, e.Announcement.Ref.PubKey); speaksFor {
			entries = append(entries, e)
		}
	}
	slices.SortStableFunc(entries, func(a, b *held.Entry) int {
		return cmp.Compare(foreign(a, author), foreign(b, author))
	})
	return entries[:min(len(entries), maxRevived)]
}

func foreign(e *held.Entry, author string) int {
	if e.Event.PubKey == author {
		return 0
	}
	return 1
}

// releaseState decides a held state whose objects are all there. Older held states of the same author go with it: the log holds a
// newer one from now on.
func (p *Policy) releaseState(k Knowledge, entry *held.Entry) (Decision, error) {
	owners, refusal, err := authority(k, entry.Event.PubKey, entry.Identifier)
	if owners == nil || err != nil {
		refusal.Park = false
		return refusal, err
	}
	d := accepted()
	for _, e := range k.HeldOf(entry.Identifier) {
		if e.Event.Kind == nip34.KindState && e.Event.PubKey == entry.Event.PubKey && nip34.Replaces(entry.Event, e.Event) {
			d.drop(rememberSuperseded, e)
		}
	}
	return d, nil
}
