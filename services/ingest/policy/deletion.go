package policy

import (
	"slices"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
)

// deletion decides kind 5: stored, from anyone. It removes the held events of its author that it
// names by `e`, or by `a` up to its time; the accepted ones are removed by every projection of the
// log (NIP-09).
func (p *Policy) deletion(k Knowledge, c *Candidate) (Decision, error) {
	d := accepted()
	d.leaves = map[string]string{}
	named := map[[2]string]bool{} // each once: anybody may write a tag ten thousand times
	for _, tag := range c.Event.Tags {
		if len(tag) < 2 || named[[2]string{tag[0], tag[1]}] {
			continue
		}
		named[[2]string{tag[0], tag[1]}] = true
		switch tag[0] {
		case "e":
			if e := k.Held().ByID(tag[1]); e != nil && e.Event.PubKey == c.Event.PubKey {
				d.drop(rememberDeleted, e)
			}
			have, err := k.Accepted(tag[1])
			if err != nil {
				return Decision{}, err
			}
			if have != nil && have.Kind == nostr.KindAnnouncement && have.PubKey == c.Event.PubKey {
				d.leaves[have.ID] = have.Tags.GetD()
			}
		case "a":
			address, err := nostr.ParseAddress(tag[1])
			if err != nil || address.PubKey != c.Event.PubKey {
				continue
			}
			if address.Kind != nostr.KindAnnouncement && address.Kind != nostr.KindState {
				continue // no other address is ever held
			}
			d.drop(rememberDeleted, heldAt(k, address, c)...)
			if _, repo := address.Repo(); !repo {
				continue
			}
			have, err := k.AcceptedAt(address)
			if err != nil {
				return Decision{}, err
			}
			if have != nil && have.CreatedAt <= c.Event.CreatedAt {
				d.leaves[have.ID] = address.Identifier
			}
		}
	}
	if p.keepDeleted {
		d.leaves = nil // accepted announcements stay, whatever their authors ask for
	}
	return d, nil
}

// heldAt returns the held events at an address that are not younger than the deletion request.
func heldAt(k Knowledge, address nostr.Address, c *Candidate) []*held.Entry {
	return slices.DeleteFunc(slices.Clone(k.Held().At(address)), func(e *held.Entry) bool {
		return e.Event.CreatedAt > c.Event.CreatedAt
	})
}
