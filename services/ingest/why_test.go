package ingest

import (
	"fmt"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// TestRefusals: the last ones are remembered, and found by event and by repository, the last first.
func TestRefusals(t *testing.T) {
	t.Parallel()
	var r refusals
	author := strings.Repeat("a", 64)
	for n := range maxRefusals + 3 {
		ev := &nostr.Event{ID: fmt.Sprint(n), PubKey: author, Kind: nostr.KindAnnouncement, Tags: nostr.Tags{{"d", "tree"}}}
		if n%2 == 1 {
			ev.Kind = nostr.KindIssue
		}
		r.add(ev, proto.Refusal{Reason: fmt.Sprint("because ", n)})
	}
	var long refusals
	long.add(&nostr.Event{PubKey: author, Kind: nostr.KindState, Tags: nostr.Tags{{"d", strings.Repeat("x", 1<<10)}}}, proto.Refusal{})
	if long.all[0].Ref != "" {
		t.Errorf("an identifier that no repository can have is kept: %d bytes", len(long.all[0].Ref))
	}
	if len(r.all) != maxRefusals {
		t.Errorf("%d are remembered, want %d", len(r.all), maxRefusals)
	}
	for _, c := range []struct {
		q     proto.Why
		first string // empty: nothing is found
		found int
	}{
		{proto.Why{Event: "2"}, "", 0}, {proto.Why{Event: "3"}, "because 3", 1}, {proto.Why{}, "", 0},
		{proto.Why{Ref: "30617:" + author + ":tree"}, fmt.Sprint("because ", maxRefusals+2), maxTold},
		{proto.Why{Ref: "30617:" + author + ":bush"}, "", 0},
	} {
		got := r.find(c.q)
		if len(got) != c.found || c.found > 0 && got[0].Reason != c.first {
			t.Errorf("%+v: %d found, %+v; want %d, %q first", c.q, len(got), got, c.found, c.first)
		}
	}
}
