package writer

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/ingest/known"
)

const owner = "00000000000000000000000000000000000000000000000000000000000000aa"

func made(kind int, at nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
	ev := &nostr.Event{PubKey: owner, Kind: kind, CreatedAt: at, Tags: tags, Sig: strings.Repeat("0", 128)}
	ev.ID = ev.GetID()
	return ev
}

// indexOf is an index of events on a clock.
func indexOf(t *testing.T, now *nostr.Timestamp, events ...*nostr.Event) *eventdb.DB {
	t.Helper()
	index, err := eventdb.Open("", eventdb.Options{Now: func() nostr.Timestamp { return *now }})
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

func noneHeld() *held.Set { return held.NewSet(nil, slog.New(slog.DiscardHandler), nil) }

// draftOver is a draft over an index, at the beginning of a batch.
func draftOver(t testing.TB, index *eventdb.DB, set *held.Set) *draft {
	t.Helper()
	w := &Writer{Node: &node.Node{Index: index}, Held: set, Rejected: known.NewRejected(nil, slog.New(slog.DiscardHandler), time.Hour, "")}
	w.Settings.Domain = "grasp.test"
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
		"none":                               {nil, nil},
		"one that stays":                     {[]*nostr.Event{plain}, plain},
		"one that expires":                   {[]*nostr.Event{timed, other}, timed},
		"deleted by id":                      {[]*nostr.Event{plain, deleteID(plain)}, nil},
		"deleted by id, expires":             {[]*nostr.Event{timed, deleteID(timed)}, nil},
		"deleted by address":                 {[]*nostr.Event{plain, deleteList(2000)}, nil},
		"deleted by address and expires":     {[]*nostr.Event{timed, other, deleteList(2000)}, nil},
		"an older one deleted by address":    {[]*nostr.Event{timed, deleteList(999)}, timed},
		"an address of other spelling":       {[]*nostr.Event{plain, made(5, 2000, nostr.Tag{"a", list.String() + "junk"}, nostr.Tag{"a", "0" + list.String()})}, plain},
		"deleted and replaced by another":    {[]*nostr.Event{timed, deleteList(1500), made(10317, 3000)}, made(10317, 3000)},
		"what only names it is of no moment": {[]*nostr.Event{plain, made(1, 2000, nostr.Tag{"a", list.String()})}, plain},
	} {
		for from := range len(tc.events) + 1 {
			for _, clock := range []nostr.Timestamp{early, late} {
				t.Run(fmt.Sprintf("%s/batch from %d at %d", name, from, clock), func(t *testing.T) {
					t.Parallel()
					now := nostr.Timestamp(early)
					index := indexOf(t, &now, tc.events[:from]...)
					now = clock
					d := draftOver(t, index, noneHeld())
					for _, ev := range tc.events[from:] {
						d.Accept(ev)
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
		"by a quote of its address":       {[]*nostr.Event{made(1111, 2000, nostr.Tag{"q", "0:" + owner + ":"})}, nil, true},
		"by one of the batch":             {nil, []*nostr.Event{comment}, true},
		"by one that the batch deletes":   {[]*nostr.Event{comment}, []*nostr.Event{made(5, 3000, nostr.Tag{"e", comment.ID})}, false},
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
			d := draftOver(t, index, noneHeld())
			for _, ev := range tc.batch {
				d.Accept(ev)
			}
			if got, err := d.Vouched(profile), d.failure(); err != nil || got != tc.want {
				t.Errorf("%v, %v; want %v", got, err, tc.want)
			}
		})
	}
}

// TestWhoListsUsNamesFirst: of those who name a key as a maintainer, those who list us come
// first, however many announced later; also when the batch at hand brings them or takes them
// away.
func TestWhoListsUsNamesFirst(t *testing.T) {
	t.Parallel()
	maintainer := fmt.Sprintf("%064x", 99)
	naming := func(author int, at nostr.Timestamp, listing bool) *nostr.Event {
		clone, relay := "https://elsewhere.test/x.git", "wss://elsewhere.test"
		if listing {
			clone, relay = "https://grasp.test/"+npubOf(t, fmt.Sprintf("%064x", author))+"/x.git", "wss://grasp.test"
		}
		return by(author, 30617, at, nostr.Tag{"d", "x"}, nostr.Tag{"clone", clone}, nostr.Tag{"relays", relay},
			nostr.Tag{"maintainers", maintainer})
	}
	now := nostr.Timestamp(10)
	index := indexOf(t, &now, naming(1, 1000, true))
	d := draftOver(t, index, noneHeld())
	for _, step := range []struct {
		accept *nostr.Event
		first  int // author
		all    int
	}{
		{naming(2, 2000, false), 1, 2},
		{naming(3, 3000, false), 1, 3},
		{naming(1, 4000, false), 2, 3}, // moves away
		{naming(4, 5000, true), 4, 4},
		{by(4, 5, 6000, nostr.Tag{"a", "30617:" + fmt.Sprintf("%064x", 4) + ":x"}), 2, 3},
	} {
		d.Accept(step.accept)
		list, err := d.Announced("x").Naming("x", maintainer), d.failure()
		if err != nil || len(list) != step.all || list[0].Event.PubKey != fmt.Sprintf("%064x", step.first) {
			t.Fatalf("after %s: %d, first %.4v, %v; want %d, first %d", step.accept, len(list), list, err, step.all, step.first)
		}
	}
}

func by(author int, kind int, at nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
	ev := made(kind, at, tags...)
	ev.PubKey = fmt.Sprintf("%064x", author)
	ev.ID = ev.GetID()
	return ev
}

func npubOf(tb testing.TB, pubkey string) string {
	tb.Helper()
	npub, err := nip19.EncodePublicKey(pubkey)
	if err != nil {
		tb.Fatal(err)
	}
	return npub
}
