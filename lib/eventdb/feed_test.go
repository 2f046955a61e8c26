package eventdb

import (
	"strings"
	"testing"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
)

// feed commits events and applies them, as the writer of a process does.
func feed(t *testing.T, b *bus.Bus, db *DB, events ...*nostr.Event) {
	t.Helper()
	first := write(t, b, events...) - uint64(len(events)) + 1
	var recs []Record
	for n, ev := range events {
		recs = append(recs, Record{Seq: first + uint64(n), Event: ev})
	}
	if err := db.Feed(recs); err != nil {
		t.Fatal(err)
	}
}

// TestFollowReadsNothingThatIsFed: what the writer of the process feeds is not sent to it again.
// What another writer commits is read nevertheless.
func TestFollowReadsNothingThatIsFed(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	db, _ := followed(t, b, "", quiet)
	fed := notes(0, 1)
	waitFor(t, db, write(t, b, fed...)) // like every writer it begins when the index has read the log
	const size = 5000
	feedSome := func(n int) {
		next := notes(len(fed), len(fed)+n)
		for _, ev := range next {
			ev.Content += strings.Repeat("x", size)
			ev.ID = ev.GetID()
		}
		feed(t, b, db, next...)
		fed = append(fed, next...)
	}
	feedSome(1)
	before := b.Conn.Stats().InBytes
	for range 200 {
		feedSome(10) // a few: they are fed when all are stored, and that takes its time on a slow disk
	}
	if got := b.Conn.Stats().InBytes - before; got > 200*10*size/2 {
		t.Errorf("%d bytes were received while %d of events were fed", got, 200*10*size)
	}
	holds(t, db, fed...)

	others := notes(len(fed), len(fed)+700)
	waitFor(t, db, write(t, b, others...))
	fed = append(fed, others...)
	holds(t, db, fed...)
}
