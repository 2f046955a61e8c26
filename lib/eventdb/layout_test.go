package eventdb_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// TestAnIndexOfAnotherLayoutIsMadeAnew: what an earlier version left behind is noticed, and nothing
// of it is ever read as if it were of this one.
func TestAnIndexOfAnotherLayoutIsMadeAnew(t *testing.T) {
	t.Parallel()
	b, dir := openBus(t), t.TempDir()
	events := []*nostr.Event{note(0), note(1), note(2)}
	last := write(t, b, events...)
	leaveLayoutOne(t, b, dir, events)
	db := open(t, dir)
	defer closeDB(t, db)
	if db.Seq() != last {
		t.Fatalf("the old index is at %d, want %d: the test needs one that has nothing to read", db.Seq(), last)
	}
	defer follow(t, b, db, slog.New(slog.DiscardHandler))()
	waitFor(t, db, write(t, b, note(3)))
	holds(t, db, append(events, note(3))...)
}

// leaveLayoutOne writes what the first layout had of the events: plain JSON, postings of fixed
// size, filters of all keys.
func leaveLayoutOne(t *testing.T, b *bus.Bus, dir string, events []*nostr.Event) {
	t.Helper()
	stream, err := b.JS.Stream(t.Context(), proto.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	opts := &pebble.Options{DisableWAL: true, FormatMajorVersion: pebble.FormatNewest, Logger: discard{}}
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	old, err := pebble.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	set := func(key string, value []byte) {
		if err := old.Set([]byte(key), value, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	number := func(n int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
	for i, ev := range events {
		raw, errRaw := ev.MarshalJSON()
		id, errID := hex.DecodeString(ev.ID)
		if errRaw != nil || errID != nil {
			t.Fatal(errRaw, errID)
		}
		set("e"+string(number(i+1)), raw)
		set("i"+string(id), append(number(i+1), 0, 1))
	}
	set("ms", number(len(events)))
	set("mn", number(len(events)))
	created := stream.CachedInfo().Created.UTC().Format(time.RFC3339Nano)
	set("ml", fmt.Appendf(nil, "layout 1, deletions disrespected false, log of %s", created))
	if err := old.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
}

type discard struct{}

func (discard) Infof(string, ...any)  {}
func (discard) Errorf(string, ...any) {}
func (discard) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
