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
	"tendril.dev/test/fixture"
)

// TestQueryIsWhatAWalkWouldFind: the index answers as if every event had been looked at.
func TestQueryIsWhatAWalkWouldFind(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	var all []*nostr.Event
	var raws [][]byte
	digit := func(n int) string { return fmt.Sprint(rnd.IntN(n)) }
	for range 200 {
		ev := fixture.Unsigned(strings.Repeat(digit(4), 64)).At(nostr.Timestamp(1000+rnd.IntN(100))).Sign(1617+rnd.IntN(5), fmt.Sprint("event ", rnd.Uint64()),
			nostr.Tag{"e", digit(6)}, nostr.Tag{"a", digit(3)}, nostr.Tag{"e", digit(6)}, nostr.Tag{"long", "x"})
		all, raws = append(all, ev), append(raws, []byte(ev.String()))
	}
	r := NewRelay(Behaviour{})
	fixture.Must(t, Load(raws[:150], func(*nostr.Event) []*Relay { return []*Relay{r} }))
	for _, ev := range all[150:] {
		fixture.Must(t, r.Publish(ev, ev))
	}
	slices.SortFunc(all, func(a, b *nostr.Event) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	at := func() *nostr.Timestamp { ts := nostr.Timestamp(1000 + rnd.IntN(100)); return &ts }
	for range 500 {
		f := nostr.Filter{Tags: nostr.TagMap{}, Limit: 1 + rnd.IntN(60)}
		for part := range 7 {
			switch rnd.IntN(4)*7 + part { // a quarter of the filters has each part
			case 0:
				f.Kinds = []int{1617 + rnd.IntN(5), 1617 + rnd.IntN(5)}
			case 1:
				f.Authors = []string{strings.Repeat(digit(5), 64)}
			case 2:
				f.IDs = []string{all[rnd.IntN(len(all))].ID, all[rnd.IntN(len(all))].ID, strings.Repeat("f", 64)}
			case 3:
				f.Tags["e"] = []string{digit(7), digit(7)}
			case 4:
				f.Tags["a"] = []string{digit(4)}
			case 5:
				f.Since = at()
			case 6:
				f.Until = at()
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
