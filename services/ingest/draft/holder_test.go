package draft_test

import (
	"fmt"
	"testing"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/ingest/draft"
	"tendril.dev/services/ingest/rejections"
)

// indexOf is an index of events on a clock.
func indexOf(t *testing.T, now *nostr.Timestamp, events ...*nostr.Event) *eventdb.DB {
	t.Helper()
	index, err := eventdb.Open("", eventdb.WithClock(func() nostr.Timestamp { return *now }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { index.Close() })
	for _, ev := range events {
		if err := index.Apply([]eventdb.Record{{Seq: index.Seq() + 1, Event: ev}}); err != nil {
			t.Fatal(err)
		}
	}
	return index
}

func draftOver(t *testing.T, index *eventdb.DB) *draft.Draft {
	t.Helper()
	view := index.View()
	t.Cleanup(func() { view.Close() })
	return draft.New(t.Context(), draft.Base{Log: view, Held: held.NewSet(), Rejected: rejections.NewIndex(time.Hour), Now: time.Now()})
}

// TestHolderIsTheIndexs: who holds an address is the same whether what led to it was applied to the
// index, or is of the batch at hand, wherever that begins, and whether the index has swept or not.
func TestHolderIsTheIndexs(t *testing.T) {
	t.Parallel()
	const early, late = 10, 9000
	expires := nostr.Tag{"expiration", "5000"}
	list := nostr.Address{Kind: 10317, PubKey: owner}
	plain, timed, other := event(10317, 1000), event(10317, 1000, expires), event(1, 1000)
	deleteID := func(ev *nostr.Event) *nostr.Event { return event(5, 2000, nostr.Tag{"e", ev.ID}) }
	deleteList := func(at nostr.Timestamp) *nostr.Event { return event(5, at, nostr.Tag{"a", list.String()}) }
	for name, tc := range map[string]struct {
		events []*nostr.Event
		holder *nostr.Event
	}{
		"nobody":                             {nil, nil},
		"one that stays":                     {[]*nostr.Event{plain}, plain},
		"one that expires":                   {[]*nostr.Event{timed, other}, timed},
		"deleted by id":                      {[]*nostr.Event{plain, deleteID(plain)}, nil},
		"deleted by id, would have expired":  {[]*nostr.Event{timed, deleteID(timed)}, timed},
		"deleted by address":                 {[]*nostr.Event{plain, deleteList(2000)}, nil},
		"deleted by address and expires":     {[]*nostr.Event{timed, other, deleteList(2000)}, nil},
		"an older one deleted by address":    {[]*nostr.Event{timed, deleteList(999)}, timed},
		"an address of other spelling":       {[]*nostr.Event{plain, event(5, 2000, nostr.Tag{"a", list.String() + "junk"}, nostr.Tag{"a", "0" + list.String()})}, plain},
		"deleted and replaced by another":    {[]*nostr.Event{timed, deleteList(1500), event(10317, 3000)}, event(10317, 3000)},
		"what only names it is of no moment": {[]*nostr.Event{plain, event(1, 2000, nostr.Tag{"a", list.String()})}, plain},
	} {
		for from := range len(tc.events) + 1 {
			for _, clock := range []nostr.Timestamp{early, late} {
				t.Run(fmt.Sprintf("%s/batch from %d at %d", name, from, clock), func(t *testing.T) {
					t.Parallel()
					now := nostr.Timestamp(early)
					index := indexOf(t, &now, tc.events[:from]...)
					now = clock
					d := draftOver(t, index)
					for _, ev := range tc.events[from:] {
						if err := d.Accept(ev); err != nil {
							t.Fatal(err)
						}
					}
					holder, held, err := d.Holder(list)
					if err != nil || held != (tc.holder != nil) || held && fmt.Sprintf("%x", holder.ID) != tc.holder.ID {
						t.Errorf("%+v, %v, %v; want %v", holder, held, err, tc.holder)
					}
				})
			}
		}
	}
}
