package writer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/known"
)

const owner = "00000000000000000000000000000000000000000000000000000000000000aa"

func made(kind int, at nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
	ev := &nostr.Event{PubKey: owner, Kind: kind, CreatedAt: at, Tags: tags, Sig: strings.Repeat("0", 128)}
	ev.ID = ev.GetID()
	return ev
}

// draftOver is a draft at the beginning of a batch, over an index of events and on a clock.
func draftOver(t testing.TB, now *nostr.Timestamp, events ...*nostr.Event) *draft {
	t.Helper()
	index, err := eventdb.Open("", eventdb.Options{Now: func() nostr.Timestamp { return *now }})
	must(t, err)
	t.Cleanup(func() { index.Close() })
	for i, ev := range events {
		must(t, index.Apply([]eventdb.Record{{Seq: uint64(i + 1), Event: ev}}))
	}
	w := &Writer{Node: &node.Node{Index: index, Settings: testSettings()}, Held: held.NewSet(nil, quiet, nil), Rejected: known.NewRejected(nil, quiet, time.Hour, "")}
	d := newDraft(w)
	t.Cleanup(func() { d.view.Close() })
	d.begin(t.Context())
	return d
}

// TestHolderIsTheIndexs: who holds an address is the same whether what led to it was applied to the
// index, or is of the batch at hand, wherever that begins and at any time.
func TestHolderIsTheIndexs(t *testing.T) {
	t.Parallel()
	const early, late = 10, 9000
	expires := nostr.Tag{"expiration", "5000"}
	list := nostr.Address{Kind: 10317, PubKey: owner}
	plain, timed, other := made(10317, 1000), made(10317, 1000, expires), made(1, 1000)
	deleteID := func(ev *nostr.Event) *nostr.Event { return made(5, 2000, nostr.Tag{"e", ev.ID}) }
	deleteList := func(at nostr.Timestamp) *nostr.Event { return made(5, at, nostr.Tag{"a", list.String()}) }
	for name, tc := range map[string]struct {
		events []*nostr.Event
		holder *nostr.Event
	}{
		"one that expires":                   {[]*nostr.Event{timed, other}, timed},
		"deleted by id, expires":             {[]*nostr.Event{timed, deleteID(timed)}, nil},
		"deleted by address":                 {[]*nostr.Event{plain, deleteList(2000)}, nil},
		"deleted by address and expires":     {[]*nostr.Event{timed, other, deleteList(2000)}, nil},
		"an address of other spelling":       {[]*nostr.Event{plain, made(5, 2000, nostr.Tag{"a", list.String() + "junk"}, nostr.Tag{"a", "0" + list.String()})}, plain},
		"deleted and replaced by another":    {[]*nostr.Event{timed, deleteList(1500), made(10317, 3000)}, made(10317, 3000)},
		"what only names it is of no moment": {[]*nostr.Event{plain, made(1, 2000, nostr.Tag{"a", list.String()})}, plain},
	} {
		for from := range len(tc.events) + 1 {
			for _, clock := range []nostr.Timestamp{early, late} {
				t.Run(fmt.Sprintf("%s/batch from %d at %d", name, from, clock), func(t *testing.T) {
					t.Parallel()
					now := nostr.Timestamp(early)
					d := draftOver(t, &now, tc.events[:from]...)
					now = clock
					d.begin(t.Context())
					for _, ev := range tc.events[from:] {
						d.Accept(ev, proto.Request{})
					}
					for _, at := range []nostr.Timestamp{999, 1000, 1001, 2999, 3000, 3001} {
						probe := made(10317, at)
						want := tc.holder != nil && !nostr.Replaces(probe, tc.holder)
						if got := d.Superseded(probe); got != want || d.err != nil {
							t.Fatalf("an event of %d is superseded: %v, %v; want %v", at, got, d.err, want)
						}
					}
				})
			}
		}
	}
}

// TestVouched: an event is vouched for by what names it, unless that speaks for nothing, is gone,
// or is lost among thousands that speak for nothing.
func TestVouched(t *testing.T) {
	t.Parallel()
	profile := made(0, 1000)
	named := nostr.Tag{"e", profile.ID}
	comment, list := made(1111, 2000, named), made(10317, 2000, named)
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
		"by its address":                  {[]*nostr.Event{made(1111, 2000, nostr.Tag{"A", "0:" + owner + ":"})}, nil, true},
		"by one of the batch":             {nil, []*nostr.Event{comment}, true},
		"by one that the batch deletes":   {[]*nostr.Event{comment}, []*nostr.Event{made(5, 3000, nostr.Tag{"e", comment.ID})}, false},
		"by what speaks for nothing":      {append(requests(3, 3000), list), nil, false},
		"by a comment after ever so many": {append(requests(12_000, 1500), comment), nil, true},
		"by a comment lost among many":    {append(requests(12_000, 3000), comment), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := nostr.Timestamp(10)
			d := draftOver(t, &now, tc.stored...)
			for _, ev := range tc.batch {
				d.Accept(ev, proto.Request{})
			}
			if got, err := d.Vouched(profile), d.failure(); err != nil || got != tc.want {
				t.Errorf("%v, %v; want %v", got, err, tc.want)
			}
		})
	}
}

// TestWhoListsAKey: that somebody lists a key as a maintainer is found, also when the batch at hand
// brings who does, or takes the last of these away.
func TestWhoListsAKey(t *testing.T) {
	t.Parallel()
	alice, bob, dave, maintainer := newPerson(1), newPerson(2), newPerson(4), newPerson(99)
	now := nostr.Timestamp(10)
	listing := alice.announcement("x", 1000, maintainer)
	d := draftOver(t, &now, listing, alice.announcement("y", 1000), maintainer.announcement("x", 1000, alice))
	for _, step := range []struct {
		why    string
		accept *nostr.Event
		is     bool
	}{
		{"alice lists the key", nil, true},
		{"alice lists nobody any more", alice.elsewhere("x", 2000), false},
		{"bob lists the key", bob.elsewhere("x", 2000, maintainer), true},
		{"bob deletes that", bob.event(5, 6000, "", bob.repo("x")), false},
		{"dave lists the key for another repository", dave.announcement("z", 5000, maintainer), false},
		{"who lists oneself", maintainer.elsewhere("x", 2000, maintainer), false},
	} {
		if step.accept != nil {
			d.Accept(step.accept, proto.Request{})
		}
		if got, err := d.Announced("x").Lists(string(maintainer)), d.failure(); err != nil || got != step.is {
			t.Errorf("%s: %v, %v", step.why, got, err)
		}
	}
	if !d.Announced("z").Lists(string(maintainer)) || d.Announced("x").Lists(string(alice)) {
		t.Errorf("of others the wrong ones are found: %v", d.failure())
	}
	if invited := newPerson(98); d.TakesPart(string(invited)) {
		t.Error("nobody lists the key")
	} else if d.Accept(dave.announcement("z", 7000, invited), proto.Request{}); !d.TakesPart(string(invited)) {
		t.Error("who is invited takes no part")
	}
}
