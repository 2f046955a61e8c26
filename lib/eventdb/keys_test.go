package eventdb

import (
	"bytes"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
)

// FuzzOddTags: with any tags an event is found by exactly its tags, by none of their
// neighbours, and leaves nothing behind.
func FuzzOddTags(f *testing.F) {
	f.Add("t", "", "x", "d")
	f.Add("T", "\x00", "\x00\x00", "\x00")
	f.Add("e", "\xff", "\xff\xff", "\xff")
	f.Add("a", strings.Repeat("long", 5000), strings.Repeat("long", 5000)+".", strings.Repeat("d", 70000))
	f.Add("tt", "x", "y", "é")
	f.Add("", "", "", "")
	f.Add("é", "x", "y", "z")
	f.Add("d", "x", "y", "z")
	f.Add("expiration", "1", "2", "3")
	f.Fuzz(func(t *testing.T, name, value, other, d string) {
		db, err := Open("", Options{Now: func() nostr.Timestamp { return 0 }})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		ev := &nostr.Event{ID: strings.Repeat("1", 64), PubKey: strings.Repeat("2", 64), Kind: 30617, CreatedAt: 5, Sig: strings.Repeat("0", 128),
			Tags: nostr.Tags{{"d", d}, {name, value}, {name}, {}}}
		if err := db.Apply([]Record{{Seq: 1, Event: ev}}); err != nil {
			t.Fatal(err)
		}
		v := db.View()
		stored, err := v.Event(ev.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []nostr.Filter{
			{Tags: nostr.TagMap{name: {stored.Tags[1][1]}}}, {Tags: nostr.TagMap{name: {other}}}, {Tags: nostr.TagMap{name: {value, other}}},
			{Tags: nostr.TagMap{"d": {stored.Tags.GetD()}, name: {stored.Tags[1][1]}}}, {Tags: nostr.TagMap{"d": {other}}},
		} {
			if n := count(t, v, f); (n == 1) != f.Matches(stored) {
				t.Fatalf("%s: %d; it matches: %v", f.String(), n, f.Matches(stored))
			}
		}
		if got, err := v.Replaceable(30617, ev.PubKey, stored.Tags.GetD()); err != nil || got.ID != ev.ID {
			t.Fatalf("holder: %v, %v", got, err)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		deletion := &nostr.Event{ID: strings.Repeat("3", 64), PubKey: ev.PubKey, Kind: 5, CreatedAt: 6, Tags: nostr.Tags{{"e", ev.ID}}}
		if err := db.Apply([]Record{{Seq: 2, Event: deletion}}); err != nil {
			t.Fatal(err)
		}
		if left := postingsOf(t, db, ev.ID); len(left) > 0 {
			t.Fatalf("the deleted event left %x behind", left)
		}
	})
}

// postingsOf lists the keys that name an event, but those of deletion requests.
func postingsOf(t *testing.T, db *DB, eventID string) (keys [][]byte) {
	t.Helper()
	it, err := db.pebble.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	eid, err := parseID(eventID)
	if err != nil {
		t.Fatal(err)
	}
	for valid := it.First(); valid; valid = it.Next() {
		if key := it.Key(); key[0] != tableDeletedID && bytes.HasSuffix(key, eid[:]) {
			keys = append(keys, bytes.Clone(key))
		}
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	return keys
}
