package eventdb

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// What leaves the log: the writer takes it out, and every index sees that in the log. What has
// expired goes at once, what was taken away when its time is over.

func keyExpiring(e Entry) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{tableExpiring}, uint64(e.Expires)), e.ID[:]...)
}

func keyTaken(subject string) []byte { return append([]byte{tableTaken}, subject...) }

// keyGone is of the coordinate of an announcement.
func keyGone(at coordinate) []byte { return append([]byte{tableGone}, at[2:]...) }

func keyVanished(author id) []byte { return append([]byte{tableVanished}, author[:]...) }

func keyRest(author id) []byte { return append([]byte{tableRest}, author[:]...) }

func keySet(request id) []byte { return append([]byte{tableSet}, request[:]...) }

// keySetBy is of a mark and of the request that has set it.
func keySetBy(mark []byte, by Entry) []byte {
	return by.appendPlace(append([]byte{tableSetBy}, mark...))
}

// forgetTaken forgets that something was taken away that lay at a subject of the log: something else
// lies there now.
func (c *change) forgetTaken(subject string) error {
	if subject == "" {
		return nil
	}
	_, found, err := c.get(keyTaken(subject))
	if err != nil || !found {
		return err
	}
	at, err := proto.ParseEventSubject(subject)
	if err == nil && at.Kind == nostr.KindAnnouncement {
		// The slot of an addressable event is the same hash of its identifier as here.
		var gone [idLen + hashLen]byte
		if !nostr.ReadHex(gone[:], at.PubKey+at.Slot) {
			return fmt.Errorf("subject %q is of no announcement", subject)
		}
		err = c.put(append([]byte{tableGone}, gone[:]...), nil)
	}
	return errors.Join(err, c.put(keyTaken(subject), nil))
}

// Expired returns the events whose time is over, and the requests that have changed nothing and
// whose time is over, the first of them. They are in the index, and not served.
func (v *View) Expired(most int) (events []*nostr.Event, err error) {
	if v.reads.Reader == nil {
		return nil, ErrClosed
	}
	end := binary.BigEndian.AppendUint64([]byte{tableExpiring}, uint64(v.now)) // its second is still alive
	it, err := v.reads.NewIter(&pebble.IterOptions{LowerBound: []byte{tableExpiring}, UpperBound: end})
	if err != nil {
		return nil, fmt.Errorf("look for what has expired: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for valid := it.First(); valid && len(events) < most; valid = it.Next() {
		eid := id(it.Key()[1+timeLen:])
		e, found, err := v.reads.lookUp(eid)
		if err == nil && !found {
			err = errLost
		}
		var ev *nostr.Event
		if err == nil {
			ev, err = v.reads.load(e)
		}
		if err != nil {
			return nil, fmt.Errorf("look for what has expired: %w", err)
		}
		events = append(events, ev)
	}
	return events, it.Error()
}

// Taken is an event that its author has asked to be taken away, and that lies in the log.
type Taken struct{ Subject, ID string }

// TakenBefore returns what was taken away up to a time, some of it.
func (v *View) TakenBefore(until nostr.Timestamp, most int) (taken []Taken, err error) {
	if v.reads.Reader == nil {
		return nil, ErrClosed
	}
	err = v.reads.each([]byte{tableTaken}, func(key, value []byte) {
		if len(value) == timeLen+idLen && int64(binary.BigEndian.Uint64(value)) <= int64(until) && len(taken) < most {
			taken = append(taken, Taken{string(key[1:]), hex.EncodeToString(value[timeLen:])})
		}
	})
	return taken, err
}
