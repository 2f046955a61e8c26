package eventdb

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// What authors ask to be taken away: by deletion requests (NIP-09) and by requests to vanish
// (NIP-62). What a request asks for is kept in marks, which hold for events that come later too.
// Several requests may set the same mark. When a request leaves the log, the mark is what the others
// have set, as if that request had never been.

// isRequest reports whether events of a kind ask for others to be taken away. No deletion request
// does anything to them.
func isRequest(kind int) bool { return kind == nostr.KindDeletion || kind == nostr.KindVanish }

// carryOut does what a request asks, now and for events that come later: only to events of its own
// author.
func (c *change) carryOut(r Record, e Entry, author id) error {
	if !isRequest(r.Event.Kind) || c.db.opts.KeepDeleted {
		return nil
	}
	s := setting{change: c, by: e, author: author, at: r.Request.At}
	var err error
	switch {
	case r.Event.Kind == nostr.KindDeletion:
		err = errors.Join(s.delete(r.Event), s.setFloors(r.Floors))
	case r.Request.Vanishes:
		err = s.vanish()
	}
	if err == nil && len(s.keys) > 0 {
		err = c.put(keySet(e.ID), s.keys)
	}
	return err
}

// renew takes in that a request stays which had an end. Subscribers know it.
func (c *change) renew(r Record, before Entry, author id) error {
	if err := c.remove(before); err != nil {
		return err
	}
	e := before
	e.Expires = 0
	return errors.Join(c.store(r, e, author), c.carryOut(r, e, author))
}

// setting is one request that is carried out.
type setting struct {
	*change
	by     Entry // the request
	author id
	at     int64  // when it was accepted
	keys   []byte // of the marks that it has set, each behind its length
}

// set sets a mark, beside what other requests have set.
func (s *setting) set(key, value []byte) error {
	have, found, err := s.get(key)
	if err == nil && (!found || better(key[0], value, have)) {
		err = s.put(key, value)
	}
	s.keys = append(append(s.keys, byte(len(key))), key...)
	return errors.Join(err, s.put(keySetBy(key, s.by), value))
}

// better reports whether a mark that one request sets counts before that of another.
func better(table byte, a, b []byte) bool {
	if table == tableFloor {
		return bytes.Compare(a, b) < 0 // the newer place
	}
	return bytes.Compare(a, b) > 0 // the later time
}

// unset takes back what a request has set.
func (c *change) unset(by Entry) error {
	keys, found, err := c.get(keySet(by.ID))
	if err != nil || !found {
		return err
	}
	for len(keys) > 0 {
		n := int(keys[0])
		if len(keys) <= n {
			return fmt.Errorf("what request %x has set is cut off", by.ID)
		}
		key := keys[1 : 1+n]
		keys = keys[1+n:]
		if err := c.put(keySetBy(key, by), nil); err != nil {
			return err
		}
		var left []byte
		err := c.each(append([]byte{tableSetBy}, key...), func(_, value []byte) {
			if left == nil || better(key[0], value, left) {
				left = append([]byte{}, value...) // not nil
			}
		})
		if err = errors.Join(err, c.put(slices.Clone(key), left)); err != nil {
			return err
		}
	}
	return c.put(keySet(by.ID), nil)
}

// each gives every key that begins with a prefix, and what it holds. Both are valid during the call.
func (r reader) each(prefix []byte, fn func(key, value []byte)) error {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: successor(prefix)})
	if err != nil {
		return err
	}
	for valid := it.First(); valid; valid = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return errors.Join(err, it.Close())
		}
		fn(it.Key(), value)
	}
	return errors.Join(it.Error(), it.Close())
}

// delete carries a deletion request out.
func (s *setting) delete(request *nostr.Event) error {
	for _, tag := range request.Tags {
		if len(tag) < 2 {
			continue
		}
		var err error
		switch tag[0] {
		case "e":
			err = s.deleteByID(tag[1])
		case "a":
			err = s.deleteByAddress(tag[1], request.CreatedAt)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *setting) deleteByID(target string) error {
	eid, err := parseID(target)
	if err != nil {
		return nil // a tag that names nothing
	}
	if err := s.set(keyDeletedID(s.author, eid), []byte{}); err != nil {
		return err
	}
	e, found, err := s.lookUp(eid)
	if err != nil || !found || isRequest(e.Kind) {
		return err
	}
	ev, err := s.load(e)
	if err != nil {
		return err
	}
	if owner, err := parseID(ev.PubKey); err != nil || owner != s.author {
		return err
	}
	return s.take(e, ev)
}

func (s *setting) deleteByAddress(address string, until nostr.Timestamp) error {
	at := coordinateAt(address, s.author)
	if at == nil {
		return nil // a tag that names nothing, or what is another's
	}
	if err := s.set(at.key(tableDeletedTo), binary.BigEndian.AppendUint64(nil, uint64(until))); err != nil {
		return err
	}
	held, found, err := s.holder(at)
	if err != nil || !found || held.CreatedAt > until {
		return err
	}
	ev, err := s.load(held)
	if err != nil {
		return err
	}
	return s.take(held, ev)
}

// setFloors notes where versions stood that their author has deleted by their ids.
func (s *setting) setFloors(floors []proto.Floor) error {
	for _, f := range floors {
		at := coordinateOf(f.Kind, s.author, f.Identifier)
		eid, err := parseID(f.ID)
		if at == nil || err != nil {
			continue // a header that names nothing
		}
		e := Entry{CreatedAt: nostr.Timestamp(f.CreatedAt), ID: eid}
		if err := s.set(at.key(tableFloor), e.appendPlace(nil)); err != nil {
			return err
		}
	}
	return nil
}

// vanish takes all events of the author away up to the time of the request, but for requests like
// it.
func (s *setting) vanish() error {
	until := s.by.CreatedAt
	if err := s.set(keyVanished(s.author), binary.BigEndian.AppendUint64(nil, uint64(until))); err != nil {
		return err
	}
	all, err := s.upTo(s.author, until, math.MaxInt)
	if err != nil {
		return err
	}
	taken := 0
	for _, e := range all {
		if taken++; taken > takenAtOnce && !nostr.KindOf(e.Kind).Decides {
			continue
		}
		if err := s.takeEntry(e); err != nil {
			return err
		}
	}
	if taken <= takenAtOnce {
		return nil
	}
	s.rest = true
	return s.put(keyRest(s.author), appendTimes(nil, int64(until), s.at))
}

// takenAtOnce is how much of an author who vanishes is taken away at once, beside all that decides
// about other people's data. The rest follows in pieces of that size, and others have their turn
// in between: a hundred thousand events take seconds.
const takenAtOnce = 256

// takeRest takes away the next piece of what authors who have vanished wrote. rest: there is more.
func (c *change) takeRest() (err error) {
	c.rest = false
	room := takenAtOnce
	authors := map[id][]byte{}
	err = c.each([]byte{tableRest}, func(key, value []byte) { authors[id(key[1:])] = slices.Clone(value) })
	for author, value := range authors {
		if len(value) != 2*timeLen || err != nil {
			return errors.Join(err, fmt.Errorf("what is left of an author has %d bytes", len(value)))
		}
		s := setting{change: c, author: author, at: int64(binary.BigEndian.Uint64(value[timeLen:]))}
		until := nostr.Timestamp(binary.BigEndian.Uint64(value))
		some, failed := c.upTo(author, until, room)
		for _, e := range some {
			failed = errors.Join(failed, s.takeEntry(e))
			until = e.CreatedAt
		}
		left := appendTimes(nil, int64(until), s.at)
		if room -= len(some); room > 0 {
			left = nil
		}
		if err = errors.Join(failed, c.put(keyRest(author), left)); err != nil {
			return err
		}
		if c.rest = room == 0; c.rest {
			break
		}
	}
	return err
}

// takeEntry takes an event away that the index has.
func (s *setting) takeEntry(e Entry) error {
	ev, err := s.load(e)
	if err != nil {
		return err
	}
	return s.take(e, ev)
}

func appendTimes(b []byte, times ...int64) []byte {
	for _, at := range times {
		b = binary.BigEndian.AppendUint64(b, uint64(at))
	}
	return b
}

// take removes what its author has asked to be taken away. Where it lies in the log is noted, for
// the time when it must be gone from there too; of an announcement it is noted besides, because
// others' events may hang on it.
func (s *setting) take(e Entry, ev *nostr.Event) error {
	at := binary.BigEndian.AppendUint64(nil, uint64(s.at))
	err := errors.Join(s.remove(e), s.put(keyTaken(proto.EventSubjectOf(ev).String()), append(slices.Clone(at), e.ID[:]...)))
	if ev.Kind == nostr.KindAnnouncement {
		address, _ := nostr.AddressOf(ev)
		s.left = append(s.left, gone{address.String(), s.at})
		s.db.lacks.Store(true)
		err = errors.Join(err, s.put(keyGone(coordinateOf(ev.Kind, s.author, address.Identifier)),
			append(at, address.String()...)))
	}
	return err
}

// coordinateAt reads an address if it is one of author's. What is an address is for package nostr
// to say: ingest asks it too when it decides what may follow a deletion request, and the two must
// agree.
func coordinateAt(s string, author id) coordinate {
	address, err := nostr.ParseAddress(s)
	if err != nil {
		return nil
	}
	if owner, err := parseID(address.PubKey); err != nil || owner != author {
		return nil
	}
	return coordinateOf(address.Kind, author, address.Identifier)
}

// isDeleted reports whether a stored request of its author covers the event, or a deletion request a
// newer version by its id: what its author has deleted keeps its place against older versions.
func (r reader) isDeleted(ev *nostr.Event, e Entry, author id) (bool, error) {
	mark, err := r.markOver(ev, e, author)
	return mark != nil, err
}

// markOver is the key of the mark by which an event is taken away; nil: it is not.
func (r reader) markOver(ev *nostr.Event, e Entry, author id) (key []byte, err error) {
	if ev.Kind == nostr.KindVanish {
		return nil, nil
	}
	until, known, err := r.time(keyVanished(author))
	switch {
	case err != nil:
		return nil, err
	case known && ev.CreatedAt <= until:
		return keyVanished(author), nil
	case ev.Kind == nostr.KindDeletion:
		return nil, nil
	}
	if _, deleted, err := r.get(keyDeletedID(author, e.ID)); err != nil || deleted {
		return keyDeletedID(author, e.ID), err
	}
	at := coordinateOf(ev.Kind, author, ev.Tags.GetD())
	if at == nil {
		return nil, nil
	}
	until, known, err = r.time(at.key(tableDeletedTo))
	if err != nil || known && ev.CreatedAt <= until {
		return at.key(tableDeletedTo), err
	}
	if below, err := r.belowFloor(at, e); err != nil || !below {
		return nil, err
	}
	return at.key(tableFloor), nil
}

// time is what a mark holds that is a time.
func (r reader) time(key []byte) (until nostr.Timestamp, known bool, err error) {
	created, known, err := readUint(r, key)
	return nostr.Timestamp(created), known, err
}

// belowFloor reports whether an event is a version that was deleted by its id, or is older.
func (r reader) belowFloor(at coordinate, e Entry) (bool, error) {
	value, found, err := r.get(at.key(tableFloor))
	if err != nil || !found {
		return false, err
	}
	if len(value) != placeLen {
		return false, fmt.Errorf("floor of %d bytes", len(value))
	}
	return e.Compare(placeOf(value)) >= 0, nil
}

// mostReached is how many events [View.Reached] gives that a request to vanish takes away: more than
// one batch of the log has, so there is one at least that the batch has not changed.
const mostReached = 1000

// Reached gives events that are here, served or not, and that a request of their author takes away
// where it counts: all that a deletion request names, and some of what a request to vanish takes.
func (v *View) Reached(request *nostr.Event) iter.Seq2[*nostr.Event, error] {
	return func(yield func(*nostr.Event, error) bool) {
		entries, err := v.reached(request)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, e := range entries {
			ev, err := v.reads.load(e)
			if err == nil && ev.PubKey != request.PubKey {
				continue
			}
			if !yield(ev, err) || err != nil {
				return
			}
		}
	}
}

// reached finds what may be reached; by its id it may be another author's.
func (v *View) reached(request *nostr.Event) (entries []Entry, err error) {
	_, author, err := namesOf(request)
	if err == nil && v.reads.Reader == nil {
		err = ErrClosed
	}
	if err != nil {
		return nil, err
	}
	if request.Kind == nostr.KindVanish {
		return v.reads.upTo(author, request.CreatedAt, mostReached)
	}
	add := func(e Entry, known bool, failed error) {
		if err = errors.Join(err, failed); known && !isRequest(e.Kind) {
			entries = append(entries, e)
		}
	}
	for _, tag := range request.Tags {
		if len(tag) < 2 {
			continue
		}
		switch tag[0] {
		case "e":
			if eid, wrong := parseID(tag[1]); wrong == nil {
				add(v.reads.lookUp(eid))
			}
		case "a":
			if at := coordinateAt(tag[1], author); at != nil {
				e, known, failed := v.reads.holder(at)
				add(e, known && e.CreatedAt <= request.CreatedAt, failed)
			}
		}
	}
	return entries, err
}

// upTo are the newest events of an author up to a time, so many at most, without requests to vanish.
func (r reader) upTo(author id, until nostr.Timestamp, most int) (entries []Entry, err error) {
	prefix := appendAuthor(nil, author)
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: Entry{CreatedAt: until}.appendPlace(slices.Clone(prefix)),
		UpperBound: successor(prefix)})
	if err != nil {
		return nil, fmt.Errorf("read what an author wrote: %w", err)
	}
	for valid := it.First(); valid && len(entries) < most && err == nil; valid = it.Next() {
		var value []byte
		e := placeOf(it.Key())
		if value, err = it.ValueAndErr(); err == nil {
			_, err = e.readPosting(value)
		}
		if e.Kind != nostr.KindVanish {
			entries = append(entries, e)
		}
	}
	return entries, errors.Join(err, it.Error(), it.Close())
}

// Vanished reports whether a stored request to vanish of its author takes an event away.
func (v *View) Vanished(ev *nostr.Event) (bool, error) {
	author, err := parseID(ev.PubKey)
	if err != nil || ev.Kind == nostr.KindVanish {
		return false, err
	}
	until, known, err := v.reads.time(keyVanished(author))
	return known && ev.CreatedAt <= until, err
}

// Entry returns what the index has of an event, served or not. [ErrNotFound]: it has none.
func (v *View) Entry(eventID string) (Entry, error) {
	eid, err := parseID(eventID)
	if err != nil {
		return Entry{}, ErrNotFound
	}
	e, found, err := v.reads.lookUp(eid)
	if err == nil && !found {
		err = ErrNotFound
	}
	return e, err
}

// Requests returns the stored requests by which the author of an event has asked for it to be taken
// away, in the way that counts first. The event itself need not be known.
func (v *View) Requests(ctx context.Context, ev *nostr.Event) (requests []Entry, err error) {
	e, author, err := namesOf(ev)
	if err != nil {
		return nil, err
	}
	key, err := v.reads.markOver(ev, e, author)
	if err != nil || key == nil {
		return nil, err
	}
	var places []Entry
	err = v.reads.each(append([]byte{tableSetBy}, key...), func(key, _ []byte) { places = append(places, placeOf(key)) })
	for _, at := range places {
		request, known, failed := v.reads.lookUp(at.ID)
		if err = errors.Join(err, failed, ctx.Err()); known {
			requests = append(requests, request)
		}
	}
	return requests, err
}
