package policy

import (
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// state decides kind 30618: the author must speak for some announcement of the identifier, then it
// waits for its objects. The clocks of the held announcements that it speaks for start anew.
func (p *Policy) state(k Knowledge, c *Candidate) (Decision, error) {
	s, err := nostr.ParseState(c.Event)
	if err != nil {
		return invalid(err), nil
	}
	if refusal, refused, err := unauthorised(k, c.Event.PubKey, s.Identifier); refused || err != nil {
		return refusal, err
	}
	superseded, err := isSuperseded(k, c.Event)
	if err != nil {
		return Decision{}, err
	}
	if superseded {
		return rejected(ReasonSuperseded, "invalid: superseded by a state event of the same author that is newer, or as old and of lower id"), nil
	}
	waiting, err := spokenFor(k, c.Event.PubKey, s.Identifier)
	if err != nil {
		return Decision{}, err
	}
	d, err := p.hold(k, c, s.Identifier, proto.PhaseWaiting)
	if d.Outcome != proto.HeldBack || err != nil {
		return d, err
	}
	for _, e := range waiting {
		d.Hold = append(d.Hold, p.revived(e))
	}
	return d, nil
}

// unauthorised refuses an author who speaks for no announcement of the identifier.
func unauthorised(k Knowledge, author, identifier string) (refusal Decision, refused bool, err error) {
	speaks, err := speaksForAny(k, author, identifier)
	if speaks || err != nil {
		return Decision{}, false, err
	}
	missing := []string{MissingAnnouncement(identifier)}
	announced, err := isAnnounced(k, identifier, nil)
	if announced {
		return healable(ReasonUnauthorized, "invalid: author not authorized for this repository", missing), true, err
	}
	return healable(ReasonNoAnnouncement, "invalid: no announcement exists for this repository", missing), true, err
}

// releaseState decides a held state whose objects are all there. Older held states of the same
// author go with it: the log holds a newer one from now on.
func (p *Policy) releaseState(k Knowledge, entry *held.Entry) (Decision, error) {
	if refusal, refused, err := unauthorised(k, entry.Event.PubKey, entry.Identifier); refused || err != nil {
		refusal.Park = false
		return refusal, err
	}
	d := accepted()
	address, _ := entry.Address()
	for _, e := range k.Held().At(address) {
		if nostr.Replaces(entry.Event, e.Event) {
			d.drop(rememberSuperseded, e)
		}
	}
	return d, nil
}
