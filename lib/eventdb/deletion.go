package eventdb

import (
	"encoding/binary"
	"errors"
	"fmt"

	"tendril.dev/lib/nostr"
)

// carryOut does what a deletion request asks, now and for events that come later (NIP-09): only
// events of its own author, and no deletion requests.
func (c *change) carryOut(request *nostr.Event, author id) error {
	for _, tag := range request.Tags {
		if len(tag) < 2 {
			continue
		}
		var err error
		switch tag[0] {
		case "e":
			err = c.deleteByID(tag[1], author)
		case "a":
			err = c.deleteByAddress(tag[1], author, request.CreatedAt)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *change) deleteByID(target string, author id) error {
	eid, err := parseID(target)
	if err != nil {
		return nil // a tag that names nothing
	}
	c.set(keyDeletedID(author, eid), []byte{})
	at, ev, err := load(c, eid)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if owner, err := parseID(ev.PubKey); err != nil || owner != author || ev.Kind == nostr.KindDeletion {
		return err
	}
	return c.remove(at, ev)
}

func (c *change) deleteByAddress(address string, author id, until nostr.Timestamp) error {
	at, ok := coordinateAt(address, author)
	if !ok {
		return nil // a tag that names nothing, or what is another's
	}
	earlier, known, err := deletedTo(c, at)
	if err != nil {
		return err
	}
	if !known || until > earlier {
		c.set(at.key(tableDeletedTo), binary.BigEndian.AppendUint64(nil, uint64(until)))
	}
	held, found, err := holderOf(c, at)
	if err != nil || !found || held.created > until {
		return err
	}
	c.set(at.key(tableHolder), nil)
	if held.gone {
		return nil
	}
	return c.removeStored(held.created, held.id)
}

// coordinateAt reads an address if it is one of author's. What is an address is for nip34 to say:
// ingest asks it too when it decides what may follow a deletion request, and the two must agree.
func coordinateAt(s string, author id) (coordinate, bool) {
	address, err := nostr.ParseAddress(s)
	if err != nil {
		return coordinate{}, false
	}
	if owner, err := parseID(address.PubKey); err != nil || owner != author {
		return coordinate{}, false
	}
	return coordinateOf(address.Kind, author, address.Identifier)
}

// isDeleted reports whether a stored deletion request covers the event.
func isDeleted(r getter, disrespected bool, ev *nostr.Event, eid, author id) (bool, error) {
	if disrespected || ev.Kind == nostr.KindDeletion {
		return false, nil
	}
	if _, deleted, err := r.get(keyDeletedID(author, eid)); err != nil || deleted {
		return deleted, err
	}
	at, ok := coordinateOf(ev.Kind, author, ev.Tags.GetD())
	if !ok {
		return false, nil
	}
	until, known, err := deletedTo(r, at)
	return known && ev.CreatedAt <= until, err
}

// deletedTo is the latest time up to which a deletion request covers a coordinate, if one does.
func deletedTo(r getter, at coordinate) (until nostr.Timestamp, known bool, err error) {
	value, found, err := r.get(at.key(tableDeletedTo))
	if err != nil || !found {
		return 0, false, err
	}
	if len(value) != timeLen {
		return 0, false, fmt.Errorf("deletion of %d bytes", len(value))
	}
	return nostr.Timestamp(binary.BigEndian.Uint64(value)), true, nil
}
