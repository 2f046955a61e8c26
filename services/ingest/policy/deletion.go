package policy

import (
	"slices"

	"tendril.dev/lib/nip34"
	"tendril.dev/services/ingest/candidate"
	"tendril.dev/services/ingest/held"
)

// deletion decides kind 5: stored, from anyone. It removes the held events of its author that it names by `e`, or by `a` up to its
// time; the accepted ones are removed by every projection of the log (NIP-09).
func (p *Policy) deletion(k Knowledge, c *candidate.Candidate) (Decision, error) {
	d := accepted()
	gone := map[string]map[string]bool{} // identifier -> ids of announcements that go
	goes := func(identifier, id string) {
		if gone[identifier] == nil {
			gone[identifier] = map[string]bool{}
		}
		gone[identifier][id] = true
	}
	drop := func(entries ...*held.Entry) {
		d.drop(rememberDeleted, entries...)
		for _, e := range entries {
			if e.Announcement != nil {
				goes(e.Identifier, e.Event.ID)
			}
		}
	}
	named := map[[2]string]bool{} // each once: anybody may write a tag ten thousand times
	for _, tag := range c.Event.Tags {
		if len(tag) < 2 || named[[2]string{tag[0], tag[1]}] {
			continue
		}
		named[[2]string{tag[0], tag[1]}] = true
		switch tag[0] {
		case "e":
			if e := k.Held(tag[1]); e != nil && e.Event.PubKey == c.Event.PubKey {
				drop(e)
			}
			have, err := k.Accepted(tag[1])
			if err != nil {
				return Decision{}, err
			}
			if have != nil && have.Kind == nip34.KindAnnouncement && have.PubKey == c.Event.PubKey {
				goes(have.Tags.GetD(), have.ID)
			}
		case "a":
			address, err := nip34.ParseAddress(tag[1])
			if err != nil || address.PubKey != c.Event.PubKey {
				continue
			}
			if address.Kind != nip34.KindAnnouncement && address.Kind != nip34.KindState {
				continue // no other address is ever held
			}
			drop(heldAt(k, address, c)...)
			if _, repo := address.Repo(); !repo {
				continue
			}
			have, err := k.AcceptedAt(address)
			if err != nil {
				return Decision{}, err
			}
			if have != nil && have.CreatedAt <= c.Event.CreatedAt {
				goes(address.Identifier, have.ID)
			}
		}
	}
	return d, p.dropStates(k, &d, gone)
}

// heldAt gives the held events at an address that are not younger than the deletion request.
func heldAt(k Knowledge, address nip34.Address, c *candidate.Candidate) []*held.Entry {
	return slices.DeleteFunc(k.HeldOf(address.Identifier), func(e *held.Entry) bool {
		at, ok := e.Address()
		return !ok || at != address || e.Event.CreatedAt > c.Event.CreatedAt
	})
}

// dropStates takes the held states along whose last announcement goes.
func (p *Policy) dropStates(k Knowledge, d *Decision, gone map[string]map[string]bool) error {
	for identifier, ids := range gone {
		known, err := announcements(k, identifier)
		if err != nil {
			return err
		}
		if p.keepDeleted {
			// Accepted announcements stay, whatever their authors ask for: only held ones are gone.
			for id := range ids {
				if k.Held(id) == nil {
					delete(ids, id)
				}
			}
		}
		if len(ids) > 0 {
			d.drop("", statesWithout(k, known, identifier, ids)...)
		}
	}
	return nil
}
