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
		if n == maxRefusals {
			ev.Tags[0][1] = strings.Repeat("x", 1<<10) // no repository has such an identifier: it is not kept
		}
		r.add(ev, proto.Refusal{Reason: fmt.Sprint("because ", n)})
	}
	ref := "30617:" + author + ":"
	for q, want := range map[proto.Why]string{
		{Event: "2"}: "", {}: "", {Ref: ref + "bush"}: "", {Ref: ref + strings.Repeat("x", 1<<10)}: "",
		{Event: "3"}: "because 3", {Ref: ref + "tree"}: fmt.Sprint("because ", maxRefusals+2),
	} {
		got := r.find(q)
		if len(r.all) != maxRefusals || len(got) > maxTold || (len(got) > 0) != (want != "") || len(got) > 0 && got[0].Reason != want {
			t.Errorf("%+v: %d found of %d, %+v; want %q first", q, len(got), len(r.all), got, want)
		}
	}
}
