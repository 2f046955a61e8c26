package held

import (
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/proto"
)

// TestLoad: the load follows what comes, is replaced and goes, and is about as large as the events.
func TestLoad(t *testing.T) {
	t.Parallel()
	author := strings.Repeat("a", 64)
	entry := func(n int) *Entry {
		ev := &nostr.Event{Kind: 30618, PubKey: author, CreatedAt: nostr.Timestamp(n), Content: strings.Repeat("x", 5000), Tags: nostr.Tags{{"d", "x"}}, Sig: strings.Repeat("0", 128)}
		ev.ID = ev.GetID()
		e, err := NewEntry(proto.Held{Event: ev, Identifier: "x", Phase: proto.PhaseWaiting})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	s, a, b := NewSet(), entry(1), entry(2)
	s.Apply(Change{Seq: 1, Key: a.Key, Entry: a}, Change{Seq: 2, Key: b.Key, Entry: b}, Change{Seq: 3, Key: a.Key, Entry: a})
	raw, err := a.Event.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if load := s.Load(author); load.OfAuthor != 2 || load.Bytes < 2*len(raw)*9/10 || load.Bytes > 2*len(raw)*11/10 {
		t.Errorf("%+v for two events of %d bytes", load, len(raw))
	}
	if load := s.Load("somebody"); load.OfAuthor != 0 || load.Bytes == 0 {
		t.Errorf("%+v", load)
	}
	s.Apply(Change{Seq: 4, Key: a.Key}, Change{Seq: 5, Key: b.Key})
	if load := s.Load(author); load != (Load{}) {
		t.Errorf("%+v of nothing", load)
	}
}
