package eventdb

import (
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
)

// TestHolderOutlivesItsTime: what older events give way to does not depend on the clock, nor on
// what was swept.
func TestHolderOutlivesItsTime(t *testing.T) {
	t.Parallel()
	now := nostr.Timestamp(10)
	db, err := Open("", Options{Now: func() nostr.Timestamp { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	me := strings.Repeat("2", 64)
	apply := func(ev *nostr.Event) {
		if err := db.Apply([]Record{{Seq: db.Seq() + 1, Event: ev}}); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(when string, want *nostr.Event, readable bool) {
		t.Helper()
		v := db.View()
		defer v.Close()
		entry, err := EntryOf(want)
		if err != nil {
			t.Fatal(err)
		}
		if holder, held, err := v.Holder(30617, me, "x"); err != nil || !held || holder != entry {
			t.Errorf("%s: %+v, %v, %v; want %+v", when, holder, held, err, entry)
		}
		if _, err := v.Replaceable(30617, me, "x"); (err == nil) != readable {
			t.Errorf("%s: the event itself: %v", when, err)
		}
		for kind, pubkey := range map[int]string{30618: me, 1: me, 30617: "no key"} {
			if _, held, err := v.Holder(kind, pubkey, "x"); err != nil || held {
				t.Errorf("%s: %d of %q: %v, %v; want nobody", when, kind, pubkey, held, err)
			}
		}
	}
	timed := made(2, 30617, 6, nostr.Tag{"d", "x"}, nostr.Tag{"expiration", "50"})
	apply(timed)
	holds("alive", timed, true)
	now = 100
	holds("expired", timed, false)
	apply(made(1, 30617, 5, nostr.Tag{"d", "x"}))
	holds("after an older one", timed, false)
	newer := made(3, 30617, 7, nostr.Tag{"d", "x"})
	apply(newer)
	holds("after a newer one", newer, true)
}
