package eventdb

import (
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// TestAnAuthorOfManyEventsVanishes: what decides about others' data goes at once, and the rest in
// pieces, between which the index takes what comes. In the end it is as an index that is made again,
// also if the process ended in between.
func TestAnAuthorOfManyEventsVanishes(t *testing.T) {
	t.Parallel()
	const many = 5*takenAtOnce + 7
	dir := t.TempDir()
	db := open(t, dir)
	state := made(1_000_000, nostr.KindState, 1, Tag{"d", "x"}) // the oldest
	apply(t, db, append(notes(10, 10+many), state)...)
	request := made(2_000_000, nostr.KindVanish, 1<<30)
	vanish := func(db *DB) {
		must(t, db.Apply([]Record{{Seq: db.Seq() + 1, Event: request, Request: proto.Request{Vanishes: true, At: 5}}}))
	}
	db.mu.Lock()
	db.takes = true // the pieces wait
	db.mu.Unlock()
	vanish(db)
	late := made(2_000_001, 1, 1000)
	apply(t, db, late, made(2_000_002, 1, 1<<30+1))
	v := db.View()
	if n := count(t, v, Filter{}); n != many-takenAtOnce+2 {
		t.Errorf("%d events are left behind the first piece", n)
	}
	for _, ev := range []*Event{state, late} {
		if is, err := has(v, ev.ID); is || err != nil {
			t.Errorf("kind %d at %d is there: %v", ev.Kind, ev.CreatedAt, err)
		}
	}
	must(t, v.Close())
	must(t, db.Close())

	db = open(t, dir)
	whole := memory(t, Options{}, append(notes(10, 10+many), state)...)
	vanish(whole)
	apply(t, whole, late, made(2_000_002, 1, 1<<30+1))
	differs, err := db.Compare(t.Context(), whole)
	if must(t, err); differs != 0 {
		t.Errorf("%d entries differ", differs)
	}
	holds(t, db, request, made(2_000_002, 1, 1<<30+1))
	must(t, db.Close())
}
