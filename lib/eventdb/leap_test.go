package eventdb_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/eventdb"
)

// TestLeapsMissNothing: filters whose kinds are rare among what else they ask for, so that the walk
// leaps to them, are answered as by the naive matcher. The random filters of
// TestAgainstNaiveMatcher ask worlds that are too small for that.
func TestLeapsMissNothing(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	m := &model{now: nostr.Now()}
	db := open(t, "")
	defer closeDB(t, db)
	var recs []eventdb.Record
	for i := range 6000 {
		kind := 1
		if rnd.IntN(300) == 0 {
			kind = []int{2, 4, 7, 8}[rnd.IntN(4)]
		}
		ev := &nostr.Event{PubKey: fmt.Sprintf("%064x", rnd.IntN(80)), Kind: kind, CreatedAt: nostr.Timestamp(1_700_000_000 + rnd.IntN(3000)),
			Sig: strings.Repeat("0", 128), Content: fmt.Sprint(i), Tags: nostr.Tags{{"t", "popular"}, {"p", fmt.Sprint(rnd.IntN(3))}}}
		ev.ID = ev.GetID()
		m.events = append(m.events, ev)
		recs = append(recs, eventdb.Record{Seq: uint64(i + 1), Event: ev})
	}
	if err := db.Apply(recs); err != nil {
		t.Fatal(err)
	}
	v := db.View()
	defer v.Close()
	for i := range 400 {
		f := filterOfRareKinds(rnd)
		var got, want []string
		for ev, err := range v.Query(t.Context(), f) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, ev.ID)
		}
		for _, ev := range m.query(f) {
			want = append(want, ev.ID)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d: %v: %d events, want %d", i, f, len(got), len(want))
		}
	}
}

// filterOfRareKinds asks for some of the rare kinds, and for what nearly everything has.
func filterOfRareKinds(rnd *rand.Rand) nostr.Filter {
	var f nostr.Filter
	for range 1 + rnd.IntN(4) {
		f.Kinds = append(f.Kinds, []int{2, 4, 7, 8, 9}[rnd.IntN(5)])
	}
	if rnd.IntN(2) == 0 {
		f.Tags = nostr.TagMap{"t": {"popular"}}
		if rnd.IntN(2) == 0 {
			f.Tags["p"] = []string{"0", "1"}[:1+rnd.IntN(2)]
		}
	}
	if rnd.IntN(2) == 0 || f.Tags == nil {
		for a := range 1 + rnd.IntN(79) {
			f.Authors = append(f.Authors, fmt.Sprintf("%064x", a))
		}
	}
	if rnd.IntN(3) == 0 {
		f.Limit = 1 + rnd.IntN(10)
	}
	if rnd.IntN(3) == 0 {
		t := nostr.Timestamp(1_700_000_000 + rnd.IntN(3000))
		f.Since = &t
	}
	if rnd.IntN(3) == 0 {
		t := nostr.Timestamp(1_700_000_000 + rnd.IntN(3000))
		f.Until = &t
	}
	return f
}
