package outside

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
)

// TestQueryIsWhatAWalkWouldFind: the index answers as if every event had been looked at.
func TestQueryIsWhatAWalkWouldFind(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	var all []*nostr.Event
	var raws [][]byte
	for range 200 {
		ev := &nostr.Event{
			PubKey: strings.Repeat(fmt.Sprint(rnd.IntN(4)), 64), CreatedAt: nostr.Timestamp(1000 + rnd.IntN(100)), Kind: 1617 + rnd.IntN(5),
			Tags: nostr.Tags{{"e", fmt.Sprint(rnd.IntN(6))}, {"a", fmt.Sprint(rnd.IntN(3))}, {"e", fmt.Sprint(rnd.IntN(6))}, {"long", "x"}},
			Sig:  strings.Repeat("0", 128), Content: fmt.Sprint("event ", rnd.Uint64()),
		}
		ev.ID = ev.GetID()
		all, raws = append(all, ev), append(raws, []byte(ev.String()))
	}
	r := NewRelay(Behaviour{})
	if err := Load(raws[:150], func(*nostr.Event) []*Relay { return []*Relay{r} }); err != nil {
		t.Fatal(err)
	}
	for _, ev := range all[150:] {
		if err := r.Publish(ev, ev); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(all, func(a, b *nostr.Event) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	at := func() *nostr.Timestamp { ts := nostr.Timestamp(1000 + rnd.IntN(100)); return &ts }
	for range 500 {
		f := nostr.Filter{Tags: nostr.TagMap{}, Limit: 1 + rnd.IntN(60)}
		for _, part := range []struct {
			one int // of so many filters have it
			add func()
		}{
			{4, func() { f.Kinds = []int{1617 + rnd.IntN(5), 1617 + rnd.IntN(5)} }},
			{4, func() { f.Authors = []string{strings.Repeat(fmt.Sprint(rnd.IntN(5)), 64)} }},
			{8, func() {
				f.IDs = []string{all[rnd.IntN(len(all))].ID, all[rnd.IntN(len(all))].ID, strings.Repeat("f", 64)}
			}},
			{2, func() { f.Tags["e"] = []string{fmt.Sprint(rnd.IntN(7)), fmt.Sprint(rnd.IntN(7))} }},
			{3, func() { f.Tags["a"] = []string{fmt.Sprint(rnd.IntN(4))} }},
			{2, func() { f.Since = at() }},
			{2, func() { f.Until = at() }},
		} {
			if rnd.IntN(part.one) == 0 {
				part.add()
			}
		}
		var want, got []string
		for _, ev := range all {
			if f.Matches(ev) && len(want) < f.Limit {
				want = append(want, ev.ID)
			}
		}
		parsed, err := readFilter(json.RawMessage(f.String()), 500)
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		for _, e := range r.store.query(parsed, parsed.limit) {
			got = append(got, hex.EncodeToString(e.item.ID[:]))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: %d events, want %d", f, len(got), len(want))
		}
	}
}
