package policy

import (
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// referenced decides everything that has no rule of its own: it must name, or be named by, what is
// accepted. Held announcements do not count.
func (p *Policy) referenced(k Knowledge, c *Candidate) (Decision, error) {
	refs := nostr.ReferencesOf(c.Event)
	for _, address := range refs.Addresses {
		have, err := k.AcceptedAt(address)
		if err != nil {
			return Decision{}, err
		}
		if have != nil && Vouches(have.Kind) {
			return accepted(), nil
		}
	}
	for _, id := range refs.IDs {
		kind, have, err := k.AcceptedKind(id)
		if err != nil {
			return Decision{}, err
		}
		if have && Vouches(kind) {
			return accepted(), nil
		}
	}
	vouched, err := k.Vouched(c.Event)
	if err != nil {
		return Decision{}, err
	}
	if vouched {
		return accepted(), nil
	}
	return orphan(c, missingOf(c.Event, refs)), nil
}

// Vouches reports whether accepted events of this kind make others acceptable. Deletion requests
// and user grasp lists do not: they are accepted from anyone, so that anyone could bring in
// anything by them.
func Vouches(kind int) bool {
	return kind != nostr.KindDeletion && kind != nostr.KindUserGraspList
}

const messageOrphan = "invalid: the event neither names nor is named by anything that is accepted here"

// orphan rejects an event for which nothing accepted speaks. What its author has just submitted is
// answered once and for all; what came by sync may have come before what it belongs to.
func orphan(c *Candidate, missing []string) Decision {
	d := healable(ReasonOrphan, messageOrphan, missing)
	d.Park = c.Source.Synced()
	return d
}

// Bounds of what is remembered as missing of one event, in entries and in bytes of each.
const (
	maxMissing      = 64
	maxMissingBytes = 512
)

// missingOf returns what would make an orphan acceptable: any event or address that it names, or to
// be named itself.
func missingOf(ev *nostr.Event, refs nostr.References) []string {
	missing := []string{namedKey + ev.ID}
	if address, ok := nostr.AddressOf(ev); ok {
		missing = append(missing, namedKey+address.String())
	}
	for _, address := range refs.Addresses {
		missing = append(missing, address.String())
	}
	missing = append(missing, refs.IDs...)
	short := missing[:0]
	for _, key := range missing {
		if len(key) <= maxMissingBytes && len(short) < maxMissing {
			short = append(short, key)
		}
	}
	return short
}

// Prefixes of missing keys. A key without prefix is an event id or an address that is not accepted.
const (
	announcementKey = "d:"     // an announcement of this identifier, accepted or held
	namedKey        = "named:" // an accepted event that names this id or address
)

// MissingAnnouncement is the missing key of an announcement of an identifier, whoever's.
func MissingAnnouncement(identifier string) string { return announcementKey + identifier }

// Arrivals returns the keys that arrive with an event that was accepted or held: what was rejected
// because it missed one of them deserves another decision.
func Arrivals(ev *nostr.Event, outcome proto.Outcome) []string {
	var keys []string
	if ev.Kind == nostr.KindAnnouncement && (outcome == proto.Accepted || outcome == proto.HeldBack) {
		keys = append(keys, MissingAnnouncement(ev.Tags.GetD()))
	}
	if outcome != proto.Accepted || !Vouches(ev.Kind) {
		return keys
	}
	keys = append(keys, ev.ID)
	if address, ok := nostr.AddressOf(ev); ok {
		keys = append(keys, address.String())
	}
	for _, name := range nostr.NamesOf(ev) {
		keys = append(keys, namedKey+name)
	}
	return keys
}
