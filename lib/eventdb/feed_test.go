package eventdb_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/proto"
)

// feed commits events and applies them, as the writer of a process does.
func feed(t *testing.T, b *bus.Bus, db *eventdb.DB, events ...*nostr.Event) {
	t.Helper()
	first := write(t, b, events...) - uint64(len(events)) + 1
	var recs []eventdb.Record
	for n, ev := range events {
		recs = append(recs, eventdb.Record{Seq: first + uint64(n), Event: ev})
	}
	if err := db.Apply(recs); err != nil {
		t.Fatal(err)
	}
}

// readers is how many read the log.
func readers(t *testing.T, b *bus.Bus) int {
	t.Helper()
	s, err := b.JS.Stream(t.Context(), proto.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Consumers
}

// feedUntilTrusted feeds an index until its follower leaves the log alone. It returns the events.
func feedUntilTrusted(t *testing.T, b *bus.Bus, db *eventdb.DB) (fed []*nostr.Event) {
	t.Helper()
	// Like every writer it begins when the index has read the log.
	fed = notes(0, 1)
	waitFor(t, db, write(t, b, fed...))
	for deadline := time.Now().Add(patience); ; {
		next := notes(len(fed), len(fed)+10)
		feed(t, b, db, next...)
		if fed = append(fed, next...); len(fed) > 20 && readers(t, b) == 0 {
			return fed
		}
		if time.Now().After(deadline) {
			t.Fatal("the log is read though all of it is fed")
		}
	}
}

// TestFollowReadsNothingThatIsFed: what the writer of the process applies is not sent to it again.
// What another writes is read nevertheless, and soon where somebody waits for it.
func TestFollowReadsNothingThatIsFed(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	db := open(t, "")
	defer closeDB(t, db)
	defer follow(t, b, db, slog.New(slog.DiscardHandler))()
	fed := feedUntilTrusted(t, b, db)
	for range 3 {
		next := notes(len(fed), len(fed)+500)
		feed(t, b, db, next...)
		fed = append(fed, next...)
	}
	holds(t, db, fed...)

	others := notes(len(fed), len(fed)+700)
	waitFor(t, db, write(t, b, others...))
	fed = append(fed, others...)
	holds(t, db, fed...)

	// It is read on as long as it is not fed, without anybody's asking.
	for range 3 {
		more := notes(len(fed), len(fed)+3)
		head := write(t, b, more...)
		for deadline := time.Now().Add(patience); db.Seq() < head; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the index stays at %d, the log is at %d", db.Seq(), head)
			}
		}
		fed = append(fed, more...)
	}
	holds(t, db, fed...)
}

// TestAnotherLogIsNoticedWhileTheIndexIsFed: also when the log is only looked at.
func TestAnotherLogIsNoticedWhileTheIndexIsFed(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	db := open(t, "")
	defer closeDB(t, db)
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() { done <- eventdb.Follow(ctx, b.JS, db, slog.New(slog.DiscardHandler)) }()
	feedUntilTrusted(t, b, db)
	s, err := b.JS.Stream(t.Context(), proto.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	config := s.CachedInfo().Config
	if err := b.JS.DeleteStream(t.Context(), proto.StreamEvents); err != nil {
		t.Fatal(err)
	}
	if _, err := b.JS.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, eventdb.ErrOtherLog) {
		t.Errorf("follow: %v", err)
	}
}

// TestAViewKeepsItsSieve: a view finds what it shows, though it has gone from the index since and
// the sieve was made anew without it.
func TestAViewKeepsItsSieve(t *testing.T) {
	t.Parallel()
	db := open(t, "")
	defer closeDB(t, db)
	old, replaced := project("tree", 1), project("tree", 2)
	if err := db.Apply([]eventdb.Record{{Seq: 1, Event: old}}); err != nil {
		t.Fatal(err)
	}
	before := db.View()
	defer before.Close()
	eventdb.Crowd(db) // the next change makes the sieve anew
	for n, ev := range []*nostr.Event{replaced, note(1)} {
		if err := db.Apply([]eventdb.Record{{Seq: uint64(n) + 2, Event: ev}}); err != nil {
			t.Fatal(err)
		}
		eventdb.Crowd(db)
	}
	after := db.View()
	defer after.Close()
	for _, c := range []struct {
		name string
		view *eventdb.View
		ev   *nostr.Event
		want bool
	}{
		{"before", before, old, true}, {"before", before, replaced, false},
		{"after", after, old, false}, {"after", after, replaced, true},
	} {
		if has, err := c.view.Has(c.ev.ID); has != c.want || err != nil {
			t.Errorf("%s: event of %d: %t, %v; want %t", c.name, c.ev.CreatedAt, has, err, c.want)
		}
	}
}
