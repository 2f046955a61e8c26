package session_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
)

// answers are the ways in which relays answer a REQ of several filters.
var answers = map[string]func(events []*nostr.Event, filters []nostr.Filter, most int) []*nostr.Event{
	"each filter": func(events []*nostr.Event, filters []nostr.Filter, most int) (out []*nostr.Event) {
		for _, f := range filters {
			out = append(out, relay(events, f, most)...)
		}
		return out
	},
	"each filter, and what came for another is not counted": func(events []*nostr.Event, filters []nostr.Filter, most int) (out []*nostr.Event) {
		came := map[string]bool{}
		for _, f := range filters {
			rest := slices.DeleteFunc(slices.Clone(events), func(ev *nostr.Event) bool { return came[ev.ID] })
			for _, ev := range relay(rest, f, most) {
				came[ev.ID] = true
				out = append(out, ev)
			}
		}
		return out
	},
	"all together": func(events []*nostr.Event, filters []nostr.Filter, most int) []*nostr.Event {
		any := slices.DeleteFunc(slices.Clone(events), func(ev *nostr.Event) bool { return !nostr.Filters(filters).Match(ev) })
		return relay(any, nostr.Filter{Limit: filters[0].Limit}, most)
	},
}

// tagged makes events of which each may be for several of three filters, of very different numbers,
// few or many of them in one second.
func mixed(rnd *rand.Rand) (events []*nostr.Event) {
	share := [3]int{1 + rnd.IntN(100), rnd.IntN(100), rnd.IntN(10)}
	at := nostr.Timestamp(1_000_000)
	for i := range rnd.IntN(400) {
		if rnd.IntN(4) > 0 || i == 0 {
			at -= nostr.Timestamp(1 + rnd.IntN(50))
		}
		ev := made(i, at)
		for n, name := range []string{"a", "A", "q"} {
			if rnd.IntN(100) < share[n] {
				ev.Tags = append(ev.Tags, nostr.Tag{name, "x"})
			}
		}
		events = append(events, ev)
		if rnd.IntN(60) == 0 { // from here on it is another crowd
			share[0], share[1] = share[1], share[0]
		}
	}
	return events
}

func group(names ...string) (filters []nostr.Filter) {
	for _, name := range names {
		filters = append(filters, nostr.Filter{Tags: nostr.TagMap{name: {"x", "y"}}})
	}
	return filters
}

// TestEverythingOfAGroupComes: however a relay answers a REQ of several filters, and whatever it
// shows at once, each event of each filter comes unless it lies in a second that the walk calls
// crowded.
func TestEverythingOfAGroupComes(t *testing.T) {
	t.Parallel()
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(5, 6))
			asked, came, there := 0, 0, 0
			for round := range 40 {
				limit := 3 + rnd.IntN(20)
				most := limit
				if round%2 == 0 {
					most = 3 + rnd.IntN(limit-2)
				}
				events := mixed(rnd)
				filters := group("a", "A", "q")
				w := session.NewWalk(filters, limit)
				got := map[string]bool{}
				for n, more := 0, true; more; n++ {
					if n > 2000 {
						t.Fatalf("round %d: it does not end", round)
					}
					asked++
					for _, ev := range answer(events, w.Filters(), most) {
						if !w.Matches(ev) {
							t.Fatalf("round %d: %v is not what was asked for", round, ev)
						}
						came++
						if fresh, _ := w.Saw(ev); fresh == got[ev.ID] {
							t.Fatalf("round %d: an event that came is %v to be fresh", round, fresh)
						}
						got[ev.ID] = true
					}
					more = w.Ended()
				}
				perSecond := map[nostr.Timestamp]int{}
				for _, ev := range events {
					if nostr.Filters(filters).Match(ev) {
						there++
						perSecond[ev.CreatedAt]++
					}
				}
				for _, ev := range events {
					if !nostr.Filters(filters).Match(ev) || got[ev.ID] {
						continue
					}
					if perSecond[ev.CreatedAt] < most || !slices.Contains(w.Gaps(), session.Gap{From: ev.CreatedAt, To: ev.CreatedAt}) {
						t.Fatalf("round %d: an event of %d is missing (limit %d, cap %d, %d in that second, gaps %v)",
							round, ev.CreatedAt, limit, most, perSecond[ev.CreatedAt], w.Gaps())
					}
				}
			}
			t.Logf("%d pages, %d events came for %d", asked, came, there)
		})
	}
}

// TestSparseBesideDense: a filter with few events does not hold up one with many, and neither is
// asked for what the other has left to show.
func TestSparseBesideDense(t *testing.T) {
	t.Parallel()
	var events []*nostr.Event
	for i := range 1000 {
		ev := made(i, nostr.Timestamp(10_000-i))
		ev.Tags = nostr.Tags{{"a", "x"}}
		if i < 3 || i == 777 {
			ev.Tags = nostr.Tags{{"A", "x"}}
		}
		events = append(events, ev)
	}
	w := session.NewWalk(group("a", "A", "q"), 100)
	asked, came := 0, 0
	for more := true; more; {
		asked++
		var page []*nostr.Event
		for _, f := range w.Filters() {
			page = append(page, relay(events, f, 100)...)
		}
		slices.SortFunc(page, func(a, b *nostr.Event) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
		for _, ev := range page {
			came++
			w.Saw(ev)
		}
		more = w.Ended()
	}
	if asked > 12 || came > 1030 {
		t.Errorf("%d pages, %d events for 1000", asked, came)
	}
}
