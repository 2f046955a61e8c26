package strfry

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
	all := events(200)
	r := New(Limits{})
	load(t, r, all[:150])
	for _, ev := range all[150:] {
		if err := r.Publish(ev, ev); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(all, func(a, b *nostr.Event) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	rnd := rand.New(rand.NewPCG(3, 4))
	at := func() *nostr.Timestamp { ts := nostr.Timestamp(1000 + rnd.IntN(100)); return &ts }
	for range 500 {
		var f nostr.Filter
		if rnd.IntN(4) == 0 {
			f.Kinds = []int{1617 + rnd.IntN(5), 1617 + rnd.IntN(5)}
		}
		if rnd.IntN(4) == 0 {
			f.Authors = []string{strings.Repeat(fmt.Sprint(rnd.IntN(5)), 64)}
		}
		if rnd.IntN(8) == 0 {
			f.IDs = []string{all[rnd.IntN(len(all))].ID, all[rnd.IntN(len(all))].ID, strings.Repeat("f", 64)}
		}
		f.Tags = nostr.TagMap{}
		if rnd.IntN(2) == 0 {
			f.Tags["e"] = []string{fmt.Sprint(rnd.IntN(7)), fmt.Sprint(rnd.IntN(7))}
		}
		if rnd.IntN(3) == 0 {
			f.Tags["a"] = []string{fmt.Sprint(rnd.IntN(4))}
		}
		if rnd.IntN(2) == 0 {
			f.Since = at()
		}
		if rnd.IntN(2) == 0 {
			f.Until = at()
		}
		f.Limit = 1 + rnd.IntN(60)
		var want []string
		for _, ev := range all {
			if f.Matches(ev) && len(want) < f.Limit {
				want = append(want, ev.ID)
			}
		}
		parsed, err := readFilter(json.RawMessage(f.String()), 500)
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		var got []string
		for _, e := range r.store.query(parsed, parsed.limit) {
			got = append(got, hex.EncodeToString(e.item.ID[:]))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: %d events, want %d", f, len(got), len(want))
		}
	}
}
