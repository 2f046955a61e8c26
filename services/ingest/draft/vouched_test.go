package draft_test

import (
	"fmt"
	"testing"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// TestVouched: an event is vouched for by what names it, unless that speaks for nothing, is gone,
// or is lost among thousands that speak for nothing.
func TestVouched(t *testing.T) {
	t.Parallel()
	profile := event(0, 1000)
	named := nostr.Tag{"e", profile.ID}
	comment, list := event(1111, 2000, named), event(10317, 2000, named)
	requests := func(n int, at nostr.Timestamp) (all []*nostr.Event) {
		for i := range n {
			// Of others: their author's own would delete it.
			ev := &nostr.Event{PubKey: fmt.Sprintf("%064x", i+1), Kind: 5, CreatedAt: at, Tags: nostr.Tags{named}, Sig: profile.Sig}
			ev.ID = ev.GetID()
			all = append(all, ev)
		}
		return all
	}
	for name, tc := range map[string]struct {
		stored, batch []*nostr.Event
		want          bool
	}{
		"by nothing":                      {nil, nil, false},
		"by a comment":                    {[]*nostr.Event{comment}, nil, true},
		"by its address":                  {[]*nostr.Event{event(1111, 2000, nostr.Tag{"A", "0:" + owner + ":"})}, nil, true},
		"by a quote of its address":       {[]*nostr.Event{event(1111, 2000, nostr.Tag{"q", "0:" + owner + ":"})}, nil, true},
		"by one of the batch":             {nil, []*nostr.Event{comment}, true},
		"by one that the batch deletes":   {[]*nostr.Event{comment}, []*nostr.Event{event(5, 3000, nostr.Tag{"e", comment.ID})}, false},
		"by what speaks for nothing":      {append(requests(3, 3000), list), nil, false},
		"by a comment before many":        {append(requests(3000, 3000), comment), nil, true},
		"by a comment after ever so many": {append(requests(12_000, 1500), comment), nil, true},
		"by a comment lost among many":    {append(requests(12_000, 3000), comment), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := nostr.Timestamp(10)
			index := indexOf(t, &now)
			var recs []eventdb.Record
			for i, ev := range tc.stored {
				recs = append(recs, eventdb.Record{Seq: uint64(i + 1), Event: ev})
			}
			if err := index.Apply(recs); err != nil {
				t.Fatal(err)
			}
			d := draftOver(t, index)
			for _, ev := range tc.batch {
				if err := d.Accept(ev); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := d.Vouched(profile); err != nil || got != tc.want {
				t.Errorf("%v, %v; want %v", got, err, tc.want)
			}
		})
	}
}
