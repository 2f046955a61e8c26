package held

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

var must = fixture.Must

func entry(t testing.TB, identifier string, kind int, content string) *Entry {
	t.Helper()
	e, err := NewEntry(proto.Held{
		Event: fixture.Unsigned(strings.Repeat("a", 64)).At(100).Sign(kind, content, nostr.Tag{"d", identifier}), Identifier: identifier,
		Source: proto.SourceUser, Phase: proto.PhaseWaiting, HeldAt: time.Unix(100, 0).UTC(), ExpiresAt: time.Unix(200, 0).UTC(),
	})
	must(t, err)
	return e
}

func put(t testing.TB, seq uint64, e *Entry) bus.Message {
	t.Helper()
	data, err := e.Encode()
	must(t, err)
	return bus.Message{Seq: seq, Subject: proto.KVSubject(proto.BucketHeld, e.Key), Data: data}
}

func quietSet() *Set { return NewSet(nil, slog.New(slog.DiscardHandler), nil) }

func TestSetFollowsItsBucket(t *testing.T) {
	t.Parallel()
	s := quietSet()
	announcement, state, other := entry(t, "a.b/ü <&>", 30617, ""), entry(t, "a.b/ü <&>", 30618, "<b>"), entry(t, "bush", 30618, "")
	var changes []string
	s.changed = func(c Change) { changes = append(changes, fmt.Sprint(c.Seq, c.Before != nil, c.Entry != nil)) }
	read := func(m bus.Message) {
		t.Helper()
		must(t, s.read([]bus.Message{m}))
	}
	read(put(t, 1, announcement))
	read(bus.Message{Seq: 2, Subject: proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey), Data: []byte(`{}`)})
	s.Apply(Change{Seq: 3, Key: state.Key, Entry: state}, Change{Seq: 4, Key: other.Key, Entry: other})
	read(put(t, 3, entry(t, "stale", 30618, ""))) // the follower reads what the writer has applied already
	if s.Len() != 3 || s.Seq() != 4 || s.ByID(state.Event.ID) != state {
		t.Fatalf("%d entries at %d", s.Len(), s.Seq())
	}
	of := s.OfIdentifier("a.b/ü <&>")
	if len(of) != 2 || of[0].Key > of[1].Key {
		t.Fatalf("%d of the identifier", len(of))
	}
	for _, e := range of {
		if (e.Event.Kind == 30617) != (e.Announcement != nil) {
			t.Errorf("kind %d: announcement %v", e.Event.Kind, e.Announcement)
		}
	}
	gone := bus.Message{Seq: 5, Subject: proto.KVSubject(proto.BucketHeld, announcement.Key), Header: nats.Header{}}
	gone.Header.Set(proto.KVOperation, proto.KVDelete)
	read(gone)
	if want := []string{"1 false true", "5 true false"}; !slices.Equal(changes, want) {
		t.Errorf("told of %q, want %q", changes, want)
	}
	if s.Len() != 2 || s.ByID(announcement.Event.ID) != nil || s.ByKey(announcement.Key) != nil || len(s.OfIdentifier("a.b/ü <&>")) != 1 {
		t.Errorf("a deleted entry is still there")
	}
}

func TestUnreadableEntriesAreNotHeld(t *testing.T) {
	t.Parallel()
	s := quietSet()
	good := entry(t, "tree", 30618, "")
	elsewhere := put(t, 3, good)
	elsewhere.Subject = proto.KVSubject(proto.BucketHeld, entry(t, "bush", 30618, "").Key)
	for i, m := range []bus.Message{
		{Subject: proto.KVSubject(proto.BucketHeld, good.Key), Data: []byte("{")},
		{Subject: proto.KVSubject(proto.BucketHeld, good.Key), Data: []byte("{}")},
		elsewhere,
		put(t, 0, &Entry{Held: proto.Held{Event: entry(t, "tree", 1, "").Event, Identifier: "tree"}, Key: good.Key}),
	} {
		m.Seq = uint64(i + 1)
		if _, _, err := ReadChange(m); err == nil {
			t.Errorf("message %d was read", i)
		}
		if err := s.read([]bus.Message{m}); err != nil || s.Len() != 0 {
			t.Errorf("message %d: %d are held, %v", i, s.Len(), err)
		}
	}
}

// TestEntrySurvivesItsEncoding, and is hardly larger than its event: what is taken must fit into
// the bucket.
func TestEntrySurvivesItsEncoding(t *testing.T) {
	t.Parallel()
	e := entry(t, "tree", 30618, strings.Repeat("<script>&\"\b\u2028", 10<<10))
	data, err := e.Encode()
	if err != nil || len(data) > len(nostr.Encode(e.Event))+1<<10 || !strings.Contains(string(data), "<script>&") {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	again, err := Decode(e.Key, data)
	if err != nil || again.Event.ID != e.Event.ID || !again.Event.CheckID() || !again.ExpiresAt.Equal(e.ExpiresAt) {
		t.Errorf("%+v, %v", again, err)
	}
}

func FuzzDecode(f *testing.F) {
	e := entry(f, "tree", 30617, "")
	data, err := e.Encode()
	must(f, err)
	f.Add(e.Key, data)
	f.Fuzz(func(t *testing.T, key string, data []byte) {
		e, err := Decode(key, data)
		if err != nil {
			return
		}
		if e.Key != key || e.Event == nil {
			t.Fatalf("%q gives %+v", key, e)
		}
		_, err = e.Encode()
		must(t, err)
	})
}
