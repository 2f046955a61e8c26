package session

import (
	"encoding/hex"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// mostByID bounds the events that are being asked for by id on a connection and of which no other
	// batch knows: ingest says them again, and the daily start brings the rest.
	mostByID = 5000
	// mostReminders bounds what is kept in mind of one relay, and longestReminder for how long: by
	// then the daily start has come.
	mostReminders, longestReminder = 10_000, 25 * time.Hour
	// mostLost is how many events of a batch are asked for by id whose verdicts were lost. With more
	// the batch begins afresh.
	mostLost = 1000
	// mostTriesByID is how often events are asked for by id that the relay refuses to be asked for.
	mostTriesByID = 5
)

// Reminders are the ids of events that are asked for by id at a time: ingest takes them only then.
// They go from one session to the next. The zero value has none.
type Reminders struct {
	at    map[[32]byte]time.Time
	first time.Time // none is due before; zero: there is none
}

// Add has an event asked for at a time, and reports whether there is room for one more. What would be
// due after the daily start comes with that.
func (r *Reminders) Add(id string, at, now time.Time) (added bool) {
	var bin [32]byte
	return !nostr.ReadHex(bin[:], id) || at.Sub(now) > longestReminder || r.add(bin, at)
}

func (r *Reminders) add(id [32]byte, at time.Time) (added bool) {
	if len(r.at) >= mostReminders {
		return false
	}
	if r.at == nil {
		r.at = map[[32]byte]time.Time{}
	}
	r.at[id] = at
	r.first = earlier(r.first, at)
	return true
}

// take takes what is due, as much of it as there is room for. The rest stays due.
func (r *Reminders) take(now time.Time, room int) (ids [][32]byte) {
	if r.first.IsZero() || now.Before(r.first) || room < mostByID/2 { // not one by one
		return nil
	}
	r.first = time.Time{}
	for id, at := range r.at {
		if now.Before(at) || len(ids) == room {
			r.first = earlier(r.first, at)
			continue
		}
		delete(r.at, id)
		ids = append(ids, id)
	}
	return ids
}

// roomByID is how many more events may be asked for by id now.
func (h *history) roomByID() int {
	room := mostByID
	for _, b := range h.batches {
		if b.byID {
			room -= len(b.named)
		}
	}
	return room
}

// fetchByID asks for events by their ids, before all else of the past. That the relay has none of
// them is no failure.
func (h *history) fetchByID(ids [][32]byte) {
	if len(ids) == 0 || len(ids) > h.roomByID() {
		return
	}
	b := &batch{work: work{byID: true, cause: cause{source: proto.SourceReconnect}}}
	b.name(ids)
	h.batches = append([]*batch{b}, h.batches...)
}

// keepByID keeps in mind what was to be asked for by id and was not. What the relay was asked for is
// not kept: it may have ended the connection for that.
func (h *history) keepByID(now time.Time) {
	for _, b := range h.batches {
		for _, id := range b.toFetch {
			if b.byID {
				h.Reminders.add(id, now)
			}
		}
	}
}

// hearByID takes in ids of which ingest says that they should be asked for now.
func (h *history) hearByID(names []string) {
	var ids [][32]byte
	for _, name := range names {
		if id := ([32]byte{}); nostr.ReadHex(id[:], name) {
			ids = append(ids, id)
		}
	}
	h.fetchByID(ids)
}

// lost notes that an event of a batch has no verdict: it is asked for by id, whenever it was made.
func (h *history) lost(b *batch, name string) {
	h.warn("lost", "historic sync is incomplete; it is tried again", "reason", "events without a verdict")
	id := [32]byte{}
	if nostr.ReadHex(id[:], name); b.byID {
		b.name([][32]byte{id})
		b.needs(afresh)
		return
	}
	if b.lost = append(b.lost, id); len(b.lost) > mostLost {
		b.lost = nil
		b.needs(afresh)
	}
}

// endedByID decides about a batch of ids that is over.
func (h *history) endedByID(b *batch, now time.Time) (done bool) {
	if b.next == goOn || b.failures >= mostTriesByID {
		return true
	}
	b.fail(now)
	return false
}

// beginByID asks once more for what the relay refused to be asked for, and for what has no verdict.
func (b *batch) beginByID() {
	b.state, b.next, b.at, b.toFetch = underWay, goOn, time.Time{}, nil
	for id := range b.named {
		b.toFetch = append(b.toFetch, id)
	}
}

// cameByID notes that an event of a batch of ids has come.
func (b *batch) cameByID(name string) {
	if id, err := hex.DecodeString(name); err == nil && len(id) == 32 {
		delete(b.named, [32]byte(id))
	}
}
