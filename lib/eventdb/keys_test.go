package eventdb

import (
	"bytes"
	"encoding/hex"
	"math"
	"strconv"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
)

func FuzzPlace(f *testing.F) {
	for _, t := range []int64{0, 1, -1, 1 << 40, math.MaxInt64, math.MinInt64} {
		f.Add(t, t/2, bytes.Repeat([]byte{0xff}, 32), []byte{})
	}
	f.Fuzz(func(t *testing.T, a, b int64, idA, idB []byte) {
		var x, y id
		copy(x[:], idA)
		copy(y[:], idB)
		ka, kb := appendPlace([]byte("prefix"), nostr.Timestamp(a), x), appendPlace([]byte("prefix"), nostr.Timestamp(b), y)
		if e := placeOf(ka); e.CreatedAt != nostr.Timestamp(a) || e.ID != x {
			t.Fatalf("%d %x comes back as %d %x", a, x, e.CreatedAt, e.ID)
		}
		want := bytes.Compare(x[:], y[:])
		if a != b {
			want = 1
			if a > b {
				want = -1 // newer first
			}
		}
		if got := bytes.Compare(ka, kb); got != want {
			t.Fatalf("%d %x against %d %x: %d, want %d", a, x, b, y, got, want)
		}
	})
}

func FuzzPosting(f *testing.F) {
	f.Add([]byte{}, uint16(1), int64(0))
	f.Add([]byte("\x020123456789"), uint16(0xffff), int64(math.MaxInt64))
	f.Add([]byte("\x0a01234567890"), uint16(0), int64(-1))
	f.Fuzz(func(t *testing.T, given []byte, kind uint16, expiry int64) {
		p := posting{kind: kind, expiry: nostr.Timestamp(expiry)}
		if back, rest, err := parsePosting(append(p.append(nil), given...)); err != nil || back != p || !bytes.Equal(rest, given) {
			t.Fatalf("%+v comes back as %+v and %x, %v", p, back, rest, err)
		}
		if p, rest, err := parsePosting(given); err == nil {
			if again, _, err := parsePosting(append(p.append(nil), rest...)); err != nil || again != p {
				t.Fatalf("%x is read as %+v, and written and read again as %+v, %v", given, p, again, err)
			}
		}
	})
}

func FuzzSuccessor(f *testing.F) {
	f.Add([]byte{tableEvent}, []byte{0xff})
	f.Add([]byte{0xff, 0xff}, []byte{0xff})
	f.Add([]byte{'a', 0xff}, []byte{})
	f.Fuzz(func(t *testing.T, prefix, rest []byte) {
		end := successor(prefix)
		key := append(bytes.Clone(prefix), rest...)
		if end == nil {
			if len(bytes.Trim(prefix, "\xff")) > 0 {
				t.Fatalf("%x has no successor", prefix)
			}
			return
		}
		if bytes.Compare(key, end) >= 0 || bytes.HasPrefix(end, prefix) {
			t.Fatalf("%x is not before %x, the successor of %x", key, end, prefix)
		}
	})
}

func FuzzParseID(f *testing.F) {
	f.Add(strings.Repeat("a", 64))
	f.Add(strings.Repeat("A", 64))
	f.Add(strings.Repeat("a", 63))
	f.Add(strings.Repeat("é", 32))
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parseID(s)
		if err == nil && hex.EncodeToString(v[:]) != s {
			t.Fatalf("%q is read as %x", s, v)
		}
		if strict := validIDs([]string{s, s}); (len(strict) == 1) != (err == nil) {
			t.Fatalf("%q gives the ids %x", s, strict)
		}
	})
}

func FuzzCoordinateAt(f *testing.F) {
	author := strings.Repeat("ab", 32)
	for _, s := range []string{"30617:" + author + ":x:y", "0:" + author + ":", "0:" + author, "0:" + author + ":d", "1:" + author + ":", "-1:" + author + ":",
		"+30617:" + author + ":", "030617:" + author + ":", "99999:" + author + ":", "::", ""} {
		f.Add(s)
	}
	me, err := parseID(author)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		at, ok := coordinateAt(s, me)
		if !ok {
			return
		}
		if at.author != me || !nostr.IsReplaceableKind(int(at.kind)) && !nostr.IsAddressableKind(int(at.kind)) {
			t.Fatalf("%q is read as %+v", s, at)
		}
		_, d, _ := strings.Cut(s, ":")
		_, d, _ = strings.Cut(d, ":")
		if want, _ := coordinateOf(int(at.kind), me, d); at != want {
			t.Fatalf("%q is read as %+v, want %+v", s, at, want)
		}
		if canonical := strconv.Itoa(int(at.kind)) + ":" + author + ":" + d; s != canonical {
			t.Fatalf("%q is read as %q", s, canonical)
		}
	})
}

// FuzzOddTags: whatever stands in tags, an event is found by exactly its tags, by none of their
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
		db, err := Open("", WithClock(func() nostr.Timestamp { return 0 }))
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
			n, err := countOf(t, v, f)
			if err != nil || (n == 1) != f.Matches(stored) {
				t.Fatalf("%s: %d, %v; it matches: %v", f.String(), n, err, f.Matches(stored))
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

func TestSieveForgetsNothing(t *testing.T) {
	t.Parallel()
	s := newSieve(1000)
	key := func(n int) []byte { return []byte{tableID, byte(n >> 16), byte(n >> 8), byte(n)} }
	for n := range s.room {
		s.add(key(n))
	}
	vain := 0
	for n := range s.room {
		if !s.mayHold(key(n)) {
			t.Fatalf("key %d is forgotten", n)
		}
		if s.mayHold(key(n + 1<<22)) {
			vain++
		}
	}
	if vain > s.room/50 {
		t.Fatalf("%d of %d look-ups are vain when it is full", vain, s.room)
	}
}

// TestSieveGrowsWithTheIndex: a sieve that was made anew knows what was there before.
func TestSieveGrowsWithTheIndex(t *testing.T) {
	t.Parallel()
	db, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ev := func(n byte) *nostr.Event {
		return &nostr.Event{ID: hex.EncodeToString(bytes.Repeat([]byte{n}, 32)), PubKey: strings.Repeat("2", 64), Kind: 1}
	}
	for n := range byte(100) {
		db.sieve.Load().room = int(n) / 2 // always too small
		if err := db.Apply([]Record{{Seq: 2*uint64(n) + 1, Event: ev(n)}, {Seq: 2*uint64(n) + 2, Event: ev(n / 2)}}); err != nil {
			t.Fatal(err)
		}
	}
	if db.count != 100 {
		t.Fatalf("%d events, want 100: one that is known was stored again", db.count)
	}
}
