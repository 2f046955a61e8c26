package eventdb

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// TestFollow: an index applies what is there and what comes, and goes on where it was. Marks and
// gaps move its sequence too.
func TestFollow(t *testing.T) {
	t.Parallel()
	b, dir := openBus(t), t.TempDir()
	mark := func() uint64 {
		ack, err := b.JS.Publish(t.Context(), proto.SubjectEventsMark, []byte(`{}`))
		must(t, err)
		return ack.Sequence
	}
	write(t, b, project(9001, "x", 1), project(9002, "x", 2)) // the first is gone from the log: a gap at its start
	write(t, b, notes(0, 700)...)
	db, stop := followed(t, b, dir, quiet)
	waitFor(t, db, mark())
	holds(t, db, append(notes(0, 700), project(9002, "x", 2))...)
	for n := 700; n < 710; n++ {
		waitFor(t, db, write(t, b, notes(n, n+1)...))
	}
	write(t, b, project(9003, "x", 3))
	reached := mark()
	waitFor(t, db, reached)
	stop()
	head := write(t, b, notes(710, 730)...)
	db = open(t, dir)
	if db.Seq() != reached {
		t.Fatalf("reopened at %d, want %d", db.Seq(), reached)
	}
	must(t, db.Close())
	db, _ = followed(t, b, dir, quiet)
	waitFor(t, db, head)
	holds(t, db, append(notes(0, 730), project(9003, "x", 3))...)
}

func TestBindDropsAnIndexOfAnotherLog(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(t *testing.T, b *bus.Bus, db *DB)
		opts   Options // of the second opening
		says   string
		first  int // that the log has then
	}{
		"the stream was deleted and made again": {remake, Options{}, "is of another log", 20},
		"the index is ahead": {func(t *testing.T, _ *bus.Bus, db *DB) {
			must(t, db.Apply([]Record{{Seq: 1000, Event: made(999, 1, 1)}}))
		}, Options{}, "is of another log", 0},
		"the log was restored and went on differently": {func(t *testing.T, _ *bus.Bus, db *DB) {
			for seq := uint64(21); seq <= 25; seq++ { // the log has others there
				must(t, db.Apply([]Record{{Seq: seq, Event: made(900+int(seq), 1, 1)}}))
			}
		}, Options{}, "does not have the last event of the index", 0},
		"the log was restored, and something else has left it": {func(t *testing.T, b *bus.Bus, db *DB) {
			gone := notes(0, 2)
			must(t, db.Apply([]Record{{Seq: 21, Removed: gone[1].ID, Subject: proto.EventSubjectOf(gone[1]).String()}}))
			m := &nats.Msg{Subject: proto.EventSubjectOf(gone[0]).String(),
				Header: nats.Header{proto.HeaderRemoved: {gone[0].ID}}}
			_, err := b.PublishBatch(t.Context(), []*nats.Msg{m}, nil)
			must(t, err)
		}, Options{}, "does not have the last event of the index", 1},
		"it was away for long": {func(*testing.T, *bus.Bus, *DB) {}, Options{Now: func() Timestamp {
			return Timestamp(time.Now().Add(longAway + time.Hour).Unix())
		}}, "was away for long", 0},
		"it was made under other rules": {func(*testing.T, *bus.Bus, *DB) {}, Options{KeepDeleted: true}, "by another version of Tendril or under other settings", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, dir := openBus(t), t.TempDir()
			db, stop := followed(t, b, dir, quiet)
			waitFor(t, db, write(t, b, notes(0, 20)...))
			stop()
			db = open(t, dir)
			tc.change(t, b, db)
			must(t, db.Close())
			head := write(t, b, notes(20, 30)...)

			db = open(t, dir, tc.opts)
			var said bytes.Buffer
			must(t, Bind(t.Context(), b.JS, db, slog.New(slog.NewTextHandler(&said, nil))))
			if !strings.Contains(said.String(), tc.says) || db.Seq() != 0 {
				t.Errorf("bound at %d, and said %q, want %q", db.Seq(), said.String(), tc.says)
			}
			holds(t, db)
			must(t, db.Close())
			db, _ = followed(t, b, dir, quiet)
			waitFor(t, db, head)
			holds(t, db, notes(tc.first, 30)...)
		})
	}
}

// TestWhatIsBehindTheLastRecordIsReadAgain: an index has read a writer's mark behind its last event.
// The log was restored to that event, and has another in the place of the mark.
func TestWhatIsBehindTheLastRecordIsReadAgain(t *testing.T) {
	t.Parallel()
	b, dir := openBus(t), t.TempDir()
	db, stop := followed(t, b, dir, quiet)
	waitFor(t, db, write(t, b, notes(0, 5)...))
	must(t, db.apply(nil, 6))
	stop()
	head := write(t, b, notes(5, 7)...)
	db, _ = followed(t, b, dir, quiet)
	waitFor(t, db, head)
	holds(t, db, notes(0, 7)...)
}

// remake deletes the log and makes an empty one.
func remake(t *testing.T, b *bus.Bus, _ *DB) {
	stream, err := b.JS.Stream(t.Context(), proto.StreamEvents)
	must(t, err, b.JS.DeleteStream(t.Context(), proto.StreamEvents))
	_, err = b.JS.CreateStream(t.Context(), stream.CachedInfo().Config)
	must(t, err)
}

// TestWhatLeavesTheLogLeavesTheIndex: an empty message in the place of an event takes it away. An
// index that has read the event is then as one that reads the log from its start, also in what it
// takes afterwards.
func TestWhatLeavesTheLogLeavesTheIndex(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	removal := func(ev *Event, id string) uint64 {
		head, err := b.PublishBatch(t.Context(), []*nats.Msg{{
			Subject: proto.EventSubjectOf(ev).String(), Header: nats.Header{proto.HeaderRemoved: {id}},
		}}, nil)
		must(t, err)
		return head
	}
	whole, _ := followed(t, b, "", quiet)
	note, tree, bush := notes(1, 2)[0], project(2, "tree", 2000), project(3, "bush", 2000)
	waitFor(t, whole, write(t, b, note, tree, bush))
	removal(note, note.ID)
	removal(made(4, 1, 1), "no id")
	waitFor(t, whole, removal(tree, tree.ID))
	holds(t, whole, bush)

	older := project(5, "tree", 1000)
	head := write(t, b, older, note)
	fresh, _ := followed(t, b, "", quiet)
	for _, db := range []*DB{whole, fresh} {
		waitFor(t, db, head)
		holds(t, db, note, bush, older)
	}
}

func TestAMalformedMessageDoesNotStopTheFollower(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	for n, data := range []string{`{"id":`, `{}`, `{"id":"ff","pubkey":"` + me + `","kind":1,"created_at":1,"tags":[],"content":"","sig":""}`, "\xff\x00"} {
		_, err := b.JS.Publish(t.Context(), proto.EventSubjectOf(made(n, 1, 1)).String(), []byte(data))
		must(t, err)
	}
	_, err := b.JS.Publish(t.Context(), "grasp.event.no.such.subject", []byte(`{}`))
	must(t, err)
	// What a login of the core account may have JetStream put there.
	unsigned, misplaced := made(4, 5, 1, Tag{"e", notes(10, 11)[0].ID}), made(5, 1, 1)
	for at, ev := range map[*Event]*Event{unsigned: unsigned, made(6, 1, 1): misplaced} {
		_, err := b.JS.Publish(t.Context(), proto.EventSubjectOf(at).String(), []byte(ev.String()))
		must(t, err)
	}
	head := write(t, b, notes(10, 11)...)
	var said bytes.Buffer // what is logged is there when the head is reached
	db, _ := followed(t, b, "", slog.New(slog.NewTextHandler(&said, nil)))
	waitFor(t, db, head)
	holds(t, db, notes(10, 11)...)
	if n := strings.Count(said.String(), "level=ERROR"); n != 6 {
		t.Fatalf("told of %d messages, want 6: %s", n, said.String())
	}
}
