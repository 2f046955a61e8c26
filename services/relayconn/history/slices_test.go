package history_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/history"
)

// past makes a past of several years in which all events are of one day, of one week, or of all the
// time, or none is; and some are dated before the beginning or in the future.
func past(rnd *rand.Rand) (events []*nostr.Event) {
	const now = 1_790_000_000
	spans := []int{1000, 86_400, 7 * 86_400, 150_000_000}
	for part := range rnd.IntN(3) {
		span, begin := spans[rnd.IntN(len(spans))], now-rnd.IntN(150_000_000)
		crowd := 1 + rnd.IntN(60)
		for i := range rnd.IntN(1500) {
			at := begin - rnd.IntN(span)
			if crowd > 50 {
				at -= at % 7 // several in a second
			}
			events = append(events, event(100_000*part+i, nostr.Timestamp(at)))
		}
	}
	for i, at := range []int{0, 5, 1_599_999_999, 1_600_000_000, 1_600_000_001, now + 500_000} {
		events = append(events, event(900_000+i, nostr.Timestamp(at)))
	}
	for _, ev := range events {
		for n, name := range []string{"a", "A", "q"} {
			if rnd.IntN(3) > n-1 {
				ev.Tags = append(ev.Tags, nostr.Tag{name, "x"})
			}
		}
	}
	return events
}

// takesSinceForAfter is how a relay reads filters that takes since for the moment after which
// events are wanted.
func takesSinceForAfter(filters []nostr.Filter) (read []nostr.Filter) {
	for _, f := range filters {
		if f.Since != nil {
			after := *f.Since + 1
			f.Since = &after
		}
		read = append(read, f)
	}
	return read
}

// TestSlicesAreTheWholePast: whenever a walk is cut, and into however many slices, they bring
// together what it would have brought alone, also from a relay that takes since for after.
func TestSlicesAreTheWholePast(t *testing.T) {
	t.Parallel()
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(7, 8))
			most := 0
			for round := range 8 {
				events := past(rnd)
				filters := group("a", "A", "q")[:1+rnd.IntN(3)]
				if rnd.IntN(3) == 0 {
					since := nostr.Timestamp(1_790_000_000 - rnd.IntN(150_000_000))
					for i := range filters {
						filters[i].Since = &since
					}
				}
				reads := func(filters []nostr.Filter) []nostr.Filter { return filters }
				if round%2 == 1 {
					reads = takesSinceForAfter
				}
				cap := 25 + rnd.IntN(30)
				walks := []*history.Walk{history.NewWalk(filters, 40)}
				got, gaps := map[string]bool{}, []history.Gap{}
				for asked := 0; len(walks) > 0; asked++ {
					if asked > 5000 {
						t.Fatalf("round %d: it does not end", round)
					}
					most = max(most, len(walks))
					i := rnd.IntN(len(walks))
					w := walks[i]
					for _, ev := range answer(events, reads(w.Filters()), cap) {
						if fresh, _ := w.Saw(ev); fresh {
							got[ev.ID] = true
						}
					}
					if w.Ended() {
						walks = append(walks, w.Slice(rnd.IntN(8))...)
						continue
					}
					gaps = append(gaps, w.Gaps()...)
					walks = slices.Delete(walks, i, i+1)
				}
				for _, ev := range events {
					crowded := slices.Contains(gaps, history.Gap{From: ev.CreatedAt, To: ev.CreatedAt})
					if nostr.Filters(reads(filters)).Match(ev) && !got[ev.ID] && !crowded && ev.CreatedAt > 0 {
						t.Fatalf("round %d: an event of %d is missing; gaps %v", round, ev.CreatedAt, gaps)
					}
				}
			}
			if most < 8 {
				t.Errorf("never more than %d slices", most)
			}
		})
	}
}

// TestSlicesAreNotWorthIt where a page was not full, or what is left has been shown.
func TestSlicesAreNotWorthIt(t *testing.T) {
	t.Parallel()
	var events []*nostr.Event
	for i := range 100 {
		events = append(events, event(i, nostr.Timestamp(1_700_000_000-1000*i)))
	}
	since := nostr.Timestamp(1_700_000_000 - 60_000)
	for name, tc := range map[string]struct {
		filter nostr.Filter
		limit  int
		want   int
	}{
		"a small page":        {nostr.Filter{}, 10, 0},
		"a full page":         {nostr.Filter{}, 50, 5},
		"less than two pages": {nostr.Filter{Since: &since}, 50, 0},
	} {
		w := history.NewWalk([]nostr.Filter{tc.filter}, tc.limit)
		if n := len(w.Slice(5)); n != 0 {
			t.Errorf("%s: %d slices before anything came", name, n)
		}
		for _, ev := range relay(events, w.Filters()[0], tc.limit) {
			w.Saw(ev)
		}
		w.Ended()
		if n := len(w.Slice(5)); n != tc.want {
			t.Errorf("%s: %d slices, want %d", name, n, tc.want)
		}
		if n := len(w.Slice(5)); n != 0 {
			t.Errorf("%s: %d slices more, and nothing came", name, n)
		}
	}
}

// TestSlicesAreBounded though a relay invents a past that is dense everywhere.
func TestSlicesAreBounded(t *testing.T) {
	t.Parallel()
	walks, asked, most, id := []*history.Walk{history.NewWalk([]nostr.Filter{{}}, 20)}, 0, 0, 0
	for ; len(walks) > 0; asked++ {
		w := walks[asked%len(walks)]
		until := nostr.Timestamp(1_790_000_000)
		if f := w.Filters()[0]; f.Until != nil {
			until = *f.Until
		}
		for i := range nostr.Timestamp(20) {
			id++
			w.Saw(event(id, until-i/10))
		}
		if w.Ended() {
			walks = append(walks, w.Slice(16)...)
			most = max(most, len(walks))
		} else {
			walks = slices.DeleteFunc(walks, func(x *history.Walk) bool { return x == w })
		}
	}
	if most > 257 || most < 100 || asked > 21_000 {
		t.Errorf("%d slices, %d pages", most, asked)
	}
}

func TestWidth(t *testing.T) {
	t.Parallel()
	for _, tc := range [][4]int{{1, 100, 10, 10}, {1, 101, 10, 11}, {10, 100, 10, 20}, {0, 0, 1, 1}, {50, 60, 2, 100}} {
		if got := history.Width(nostr.Timestamp(tc[0]), nostr.Timestamp(tc[1]), tc[2]); got != nostr.Timestamp(tc[3]) {
			t.Errorf("a page of %d s, %d s in %d slices: %d s, want %d", tc[0], tc[1], tc[2], got, tc[3])
		}
	}
}
