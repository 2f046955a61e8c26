package eventdb

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// patience is how long a test waits for what should happen soon.
const patience = 2 * time.Minute

func openBus(t testing.TB) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing(), Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// note is a small event; n makes it a different one.
func note(n int) *nostr.Event {
	ev := &nostr.Event{PubKey: strings.Repeat("ab", 32), Kind: 1, CreatedAt: nostr.Timestamp(1000 + n), Content: "note", Sig: strings.Repeat("00", 64)}
	ev.ID = ev.GetID()
	return ev
}

func project(d string, created nostr.Timestamp) *nostr.Event {
	ev := &nostr.Event{PubKey: strings.Repeat("ab", 32), Kind: 30617, CreatedAt: created, Tags: nostr.Tags{{"d", d}}, Sig: strings.Repeat("00", 64)}
	ev.ID = ev.GetID()
	return ev
}

// write appends events to the log as ingest does, and gives the log's head.
func write(t testing.TB, b *bus.Bus, events ...*nostr.Event) uint64 {
	t.Helper()
	var last uint64
	for chunk := range slices.Chunk(events, bus.MaxBatch) {
		var msgs []*nats.Msg
		for _, ev := range chunk {
			raw, err := ev.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			msgs = append(msgs, &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: raw})
		}
		var err error
		if last, err = b.PublishBatch(t.Context(), msgs, nil); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

func writeRaw(t *testing.T, b *bus.Bus, subject string, data []byte) uint64 {
	t.Helper()
	ack, err := b.JS.Publish(t.Context(), subject, data)
	if err != nil {
		t.Fatal(err)
	}
	return ack.Sequence
}

var quiet = slog.New(slog.DiscardHandler)

// followed is an index in a folder that follows the log until stop is called, or the test ends.
func followed(t testing.TB, b *bus.Bus, dir string, log *slog.Logger) (db *DB, stop func()) {
	t.Helper()
	db = open(t, dir)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Follow(ctx, b.JS, db, log) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("follow: %v", err)
		}
		closeDB(t, db)
	})
	t.Cleanup(stop)
	return db, stop
}

func waitFor(t testing.TB, db *DB, seq uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := db.WaitFor(ctx, seq); err != nil {
		t.Fatal(err)
	}
}

// holds checks that the index has exactly these events.
func holds(t *testing.T, db *DB, events ...*nostr.Event) {
	t.Helper()
	v := db.View()
	defer v.Close()
	var want, got []string
	for _, ev := range events {
		want = append(want, ev.ID)
	}
	for ev, err := range v.Query(t.Context(), nostr.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ev.ID)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		missing := slices.DeleteFunc(slices.Clone(want), func(id string) bool { return slices.Contains(got, id) })
		t.Fatalf("the index has %d events, want %d; missing: %.200q", len(got), len(want), missing)
	}
}

func notes(from, to int) []*nostr.Event {
	var out []*nostr.Event
	for n := from; n < to; n++ {
		out = append(out, note(n))
	}
	return out
}

// TestFollow: an index applies what is there and what comes, and goes on where it was.
func TestFollow(t *testing.T) {
	t.Parallel()
	b, dir := openBus(t), t.TempDir()
	head := write(t, b, notes(0, 1700)...)
	db, stop := followed(t, b, dir, quiet)
	waitFor(t, db, head)
	holds(t, db, notes(0, 1700)...)
	for n := 1700; n < 1720; n++ {
		waitFor(t, db, write(t, b, note(n)))
	}
	stop()
	head = write(t, b, notes(1720, 1730)...)
	db = open(t, dir)
	if db.Seq() != 1720 {
		t.Fatalf("reopened at %d, want 1720", db.Seq())
	}
	closeDB(t, db)
	db, _ = followed(t, b, dir, quiet)
	waitFor(t, db, head)
	holds(t, db, notes(0, 1730)...)
}

func TestBindDropsAnIndexOfAnotherLog(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(t *testing.T, b *bus.Bus, db *DB)
		opts   []Options // of the second opening
		says   string
	}{
		"the stream was deleted and made again": {change: func(t *testing.T, b *bus.Bus, _ *DB) { remake(t, b) }, says: "is of another log"},
		"the index is ahead": {says: "is of another log", change: func(t *testing.T, _ *bus.Bus, db *DB) {
			if err := db.Apply([]Record{{Seq: 1000, Event: note(999)}}); err != nil {
				t.Fatal(err)
			}
		}},
		"it was made under other rules": {
			change: func(*testing.T, *bus.Bus, *DB) {},
			opts:   []Options{{KeepDeleted: true}},
			says:   "made by another version of Tendril or under other settings",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, dir := openBus(t), t.TempDir()
			db, stop := followed(t, b, dir, quiet)
			waitFor(t, db, write(t, b, notes(0, 20)...))
			stop()
			db = open(t, dir)
			tc.change(t, b, db)
			closeDB(t, db)
			head := write(t, b, notes(5, 30)...)

			db = open(t, dir, tc.opts...)
			var said bytes.Buffer
			if err := Bind(t.Context(), b.JS, db, slog.New(slog.NewTextHandler(&said, nil))); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(said.String(), tc.says) {
				t.Errorf("it said %q, want %q", said.String(), tc.says)
			}
			if db.Seq() != 0 {
				t.Fatalf("bound at %d, want an empty index", db.Seq())
			}
			holds(t, db)
			closeDB(t, db)
			db, _ = followed(t, b, dir, quiet)
			waitFor(t, db, head)
			v := viewOf(t, db)
			for _, ev := range append(notes(5, 30), note(999)) {
				if is, err := has(v, ev.ID); err != nil || is == (ev.ID == note(999).ID) {
					t.Fatalf("after the rebuilding: event of %d: %v, %v", ev.CreatedAt, is, err)
				}
			}
		})
	}
}

// remake deletes the log and makes an empty one.
func remake(t *testing.T, b *bus.Bus) {
	t.Helper()
	stream, err := b.JS.Stream(t.Context(), proto.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	if err := b.JS.DeleteStream(t.Context(), proto.StreamEvents); err != nil {
		t.Fatal(err)
	}
	if _, err := b.JS.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

func TestMarksAndReplacedMessagesMoveTheSequence(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	write(t, b, project("x", 1), project("x", 2), note(1)) // the first is gone from the log: a gap at its start
	head := writeRaw(t, b, proto.SubjectEventsMark, []byte(`{}`))
	db, _ := followed(t, b, "", quiet)
	waitFor(t, db, head) // the log ends with a mark
	holds(t, db, project("x", 2), note(1))
	// Live now: a replacement of what the index has, then only a mark.
	write(t, b, project("x", 3))
	waitFor(t, db, writeRaw(t, b, proto.SubjectEventsMark, []byte(`{}`)))
	holds(t, db, project("x", 3), note(1))
	if last, err := bus.LastSeq(t.Context(), b.JS, proto.StreamEvents); err != nil || db.Seq() != last {
		t.Fatalf("index at %d, log at %d, %v", db.Seq(), last, err)
	}
}

// TestWhatLeavesTheLogLeavesTheIndex: an empty message in the place of an event takes it away. An
// index that has read the event is then as one that reads the log from its start, also in what it
// takes afterwards.
func TestWhatLeavesTheLogLeavesTheIndex(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	removal := func(ev *nostr.Event, id string) uint64 {
		head, err := b.PublishBatch(t.Context(), []*nats.Msg{{
			Subject: proto.EventSubjectOf(ev).String(), Header: nats.Header{proto.HeaderRemoved: {id}},
		}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return head
	}
	whole, _ := followed(t, b, "", quiet)
	tree, bush := project("tree", 2000), project("bush", 2000)
	waitFor(t, whole, write(t, b, note(1), note(2), tree, bush))
	holds(t, whole, note(1), note(2), tree, bush)
	removal(note(1), note(1).ID)
	removal(note(3), "no id")
	waitFor(t, whole, removal(tree, tree.ID))
	holds(t, whole, note(2), bush)

	older := project("tree", 1000)
	head := write(t, b, older, note(1))
	waitFor(t, whole, head)
	fresh, _ := followed(t, b, "", quiet)
	waitFor(t, fresh, head)
	for _, db := range []*DB{whole, fresh} {
		holds(t, db, note(1), note(2), bush, older)
	}
}

func TestAMalformedMessageDoesNotStopTheFollower(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	slot := func(n string) string {
		return "grasp.event.1." + strings.Repeat("ab", 32) + "." + strings.Repeat(n, 32)
	}
	writeRaw(t, b, slot("1"), []byte(`{"id":`))
	writeRaw(t, b, slot("2"), []byte(`{}`))
	writeRaw(t, b, slot("3"), []byte(`{"id":"ff","pubkey":"`+strings.Repeat("ab", 32)+`","kind":1,"created_at":1,"tags":[],"content":"","sig":""}`))
	writeRaw(t, b, slot("4"), []byte{0xff, 0})
	writeRaw(t, b, "grasp.event.no.such.subject", []byte(`{}`))
	head := write(t, b, note(1))
	var out bytes.Buffer // what is logged is there when the head is reached
	db, _ := followed(t, b, "", slog.New(slog.NewJSONHandler(&out, nil)))
	waitFor(t, db, head)
	holds(t, db, note(1))
	var told []float64
	for line := range strings.Lines(out.String()) {
		var said map[string]any
		if err := json.Unmarshal([]byte(line), &said); err != nil {
			t.Fatal(err)
		}
		if said["level"] == "ERROR" {
			told = append(told, said["seq"].(float64))
		}
	}
	if !slices.Equal(told, []float64{1, 2, 3, 4}) {
		t.Fatalf("told of the sequences %v, want 1 to 4", told)
	}
}
