package policy

import (
	"slices"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// concerns reports whether other held events may follow a decision: it brings an announcement, or
// some go. Of nearly all events that is not so.
func concerns(c *Candidate, d *Decision) bool {
	return brings(c, d) || len(d.Drop)+len(d.leaves) > 0
}

// brings reports whether an announcement is accepted.
func brings(c *Candidate, d *Decision) bool {
	return d.Outcome == proto.Accepted && c.Event.Kind == nostr.KindAnnouncement
}

// conclude adds to a decision what follows from it for other held events. With an announcement that
// goes, whatever took it from purgatory, go the held announcements for which nobody vouches any
// more, and the held states of an identifier that nobody announces any more. With one that is
// accepted, those that it vouches for are released.
func (p *Policy) conclude(k Knowledge, c *Candidate, d Decision) (Decision, error) {
	x := conclusion{k: k, c: c, d: &d, gone: map[string]bool{}, checked: map[string]bool{}, steps: 4 * maxSteps}
	if brings(c, &d) {
		if a, err := nostr.ParseAnnouncement(c.Event); err == nil {
			x.brings = a
		}
	}
	for id := range d.leaves {
		x.gone[id] = true
	}
	for _, dropped := range d.Drop {
		if e := dropped.Entry; e.Event.ID != c.Event.ID || d.Outcome != proto.Accepted {
			x.gone[e.Event.ID] = true
		}
	}
	for i := 0; i < len(d.Drop); i++ { // it grows
		e := d.Drop[i].Entry
		if e.Announcement == nil || !x.gone[e.Event.ID] {
			continue
		}
		remember := ""
		if d.Drop[i].Remember == rememberExpired {
			remember = rememberExpired
		}
		x.dropVouched(e)
		if err := x.dropStates(e.Identifier, remember); err != nil {
			return d, err
		}
	}
	for _, identifier := range d.leaves {
		if err := x.dropStates(identifier, ""); err != nil {
			return d, err
		}
	}
	x.keepOutOfHold()
	x.releaseNamed(p.hosting.Archives)
	return d, nil
}

type conclusion struct {
	k       Knowledge
	c       *Candidate
	d       *Decision
	gone    map[string]bool     // ids of announcements that stand for nothing any more
	checked map[string]bool     // identifiers whose states were looked after
	steps   int                 // that are left for all walks together
	brings  *nostr.Announcement // that is accepted; nil: none
}

func (x *conclusion) drop(remember string, e *held.Entry) {
	x.gone[e.Event.ID] = true
	x.d.drop(remember, e)
}

// dropVouched drops the announcements of maintainers that were held because of one that goes, and
// for which no other vouches. Those for which that is not certain stay until their own time is
// over, and those whom an accepted announcement names now are released.
func (x *conclusion) dropVouched(e *held.Entry) {
	for _, maintainer := range e.Announcement.Maintainers {
		if x.brings != nil && x.brings.Ref.Identifier == e.Identifier && slices.Contains(x.brings.Maintainers, maintainer) {
			continue
		}
		ref := nostr.RepoRef{PubKey: maintainer, Identifier: e.Identifier}
		for _, other := range x.k.Held().At(ref.Address()) {
			if other.Phase != proto.PhaseVouched || x.gone[other.Event.ID] || x.steps <= 0 {
				continue
			}
			w := from(maintainer, e.Identifier)
			w.steps = min(w.steps, x.steps)
			before := w.steps
			vouched, certain := w.isVouchedFor(x.k, x.gone, x.d.Hold...)
			x.steps -= before - w.steps
			if !vouched && certain {
				x.drop("", other)
			}
		}
	}
}

// dropStates drops the held states of an identifier if no announcement of it remains.
func (x *conclusion) dropStates(identifier, remember string) error {
	if x.checked[identifier] || x.announces(identifier) {
		return nil
	}
	announced, err := isAnnounced(x.k, identifier, x.gone)
	if announced || err != nil {
		return err
	}
	x.checked[identifier] = true
	for _, e := range x.k.Held().OfIdentifier(identifier) {
		if e.Event.Kind == nostr.KindState {
			x.d.drop(remember, e)
		}
	}
	return nil
}

// announces reports whether the decision itself brings an announcement of the identifier. One by
// which its author moves away is none.
func (x *conclusion) announces(identifier string) bool {
	ev := x.c.Event
	if ev.Kind != nostr.KindAnnouncement || ev.Tags.GetD() != identifier || len(x.d.leaves) > 0 {
		return false
	}
	return x.d.Outcome == proto.Accepted || x.d.Outcome == proto.HeldBack
}

// keepOutOfHold keeps what is dropped from being written.
func (x *conclusion) keepOutOfHold() {
	kept := x.d.Hold[:0]
	for _, e := range x.d.Hold {
		if !x.d.dropped[e.Key] {
			kept = append(kept, e)
		}
	}
	x.d.Hold = kept
}

// releaseNamed asks for another decision on the announcements of maintainers that waited for the
// announcement that is accepted now, and on those that are archived: they are accepted as
// maintainers' now.
func (x *conclusion) releaseNamed(archived func(*nostr.Announcement) bool) {
	if x.brings == nil {
		return
	}
	for _, maintainer := range x.brings.Maintainers {
		ref := nostr.RepoRef{PubKey: maintainer, Identifier: x.brings.Ref.Identifier}
		for _, e := range x.k.Held().At(ref.Address()) {
			if x.d.dropped[e.Key] || e.Phase != proto.PhaseVouched && !archived(e.Announcement) {
				continue
			}
			x.d.Next = append(x.d.Next, OfHeld(e.Event, proto.ActionRelease))
		}
	}
}
