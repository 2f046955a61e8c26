package session_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
)

// relay answers a filter from its events as NIP-01 says, but never with more than its own cap.
func relay(events []*nostr.Event, f nostr.Filter, most int) []*nostr.Event {
	out := slices.DeleteFunc(slices.Clone(events), func(ev *nostr.Event) bool { return !f.Matches(ev) })
	slices.SortFunc(out, func(a, b *nostr.Event) int { return int(b.CreatedAt - a.CreatedAt) })
	return out[:min(len(out), f.Limit, most)]
}

func made(i int, at nostr.Timestamp) *nostr.Event {
	return &nostr.Event{ID: fmt.Sprintf("%064x", i), Kind: 1, CreatedAt: at}
}

// walk asks a relay until nothing is left to ask for, and gives what came and how many events were
// sent.
func walk(t *testing.T, w *session.Walk, answer func(filters []nostr.Filter) []*nostr.Event) (got map[string]bool, sent int) {
	t.Helper()
	got = map[string]bool{}
	for asked, more := 0, true; more; asked++ {
		if asked > 2000 {
			t.Fatal("it does not end")
		}
		for _, ev := range answer(w.Filters()) {
			if !w.Matches(ev) {
				t.Fatalf("%v is not what was asked for", ev)
			}
			sent++
			if fresh, _ := w.Saw(ev); fresh && got[ev.ID] {
				t.Fatal("an event that came is fresh")
			} else if fresh {
				got[ev.ID] = true
			}
		}
		more = w.Ended()
	}
	return got, sent
}

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

// mixed makes events of which each may be for several of three filters, of very different numbers,
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

// TestEverythingComes: however a relay answers a REQ of one or several filters, and however many it
// shows at once, each event of each filter comes unless it lies in a second that the walk calls
// crowded.
func TestEverythingComes(t *testing.T) {
	t.Parallel()
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(5, 6))
			all, there := 0, 0
			for round := range 60 {
				limit := 3 + rnd.IntN(20)
				most := limit
				if round%2 == 0 {
					most = 3 + rnd.IntN(limit-2)
				}
				var filters []nostr.Filter
				for _, name := range []string{"a", "A", "q"}[:1+round%3] {
					filters = append(filters, nostr.Filter{Tags: nostr.TagMap{name: {"x", "y"}}})
				}
				events := slices.DeleteFunc(mixed(rnd), func(ev *nostr.Event) bool { return !nostr.Filters(filters).Match(ev) })
				w := session.NewWalk(filters, limit)
				got, sent := walk(t, w, func(filters []nostr.Filter) []*nostr.Event { return answer(events, filters, most) })
				perSecond := map[nostr.Timestamp]int{}
				for _, ev := range events {
					perSecond[ev.CreatedAt]++
				}
				for _, ev := range events {
					if at := ev.CreatedAt; !got[ev.ID] && (perSecond[at] < most || !slices.Contains(w.Gaps, session.Gap{From: at, To: at})) {
						t.Fatalf("round %d: an event of %d is missing (limit %d, cap %d, %d in that second, gaps %v)", round, at, limit, most, perSecond[at], w.Gaps)
					}
				}
				all, there = all+sent, there+len(events)
			}
			if all > 4*there {
				t.Errorf("%d events came for %d", all, there)
			}
		})
	}
}

// TestCrowdedSecondsAreRecorded though the relay shows fewer events at once than it is asked for,
// and nothing is recorded where it has shown everything. Each digit is an event of that second.
func TestCrowdedSecondsAreRecorded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		at   string
		most int
		gaps string
	}{
		"between others":             {"65555555554", 4, "5"},
		"the newest":                 {"5555555554", 4, "5"},
		"the oldest":                 {"66666555555555", 4, "65"},
		"two":                        {"7666666654444444433", 5, "64"},
		"three events at once":       {"555", 100, ""},
		"and others before":          {"555333", 100, ""},
		"all shown in several pages": {"6655544333", 5, ""},
	} {
		var events []*nostr.Event
		for i, at := range tc.at {
			events = append(events, made(i, nostr.Timestamp(at-'0')))
		}
		w := session.NewWalk([]nostr.Filter{{}}, 10)
		walk(t, w, func(filters []nostr.Filter) []*nostr.Event { return relay(events, filters[0], tc.most) })
		gaps := ""
		for _, gap := range w.Gaps {
			if gaps += fmt.Sprint(gap.From); gap.To != gap.From {
				t.Errorf("%s: gap %v", name, gap)
			}
		}
		if gaps != tc.gaps {
			t.Errorf("%s: gaps %s, want %s", name, gaps, tc.gaps)
		}
	}
}

// TestWhatIsIgnored: a relay that does not heed since, until or limit brings nothing new by that,
// and the walk ends with what it brought and says so.
func TestWhatIsIgnored(t *testing.T) {
	t.Parallel()
	var events []*nostr.Event
	for i := range 60 {
		events = append(events, made(i, nostr.Timestamp(1000-i)))
	}
	for name, tc := range map[string]struct {
		ignores     string
		since       nostr.Timestamp
		most, fresh int
		perhaps     bool // it may have shown everything, and the gap may be missing
	}{
		"until":           {"until", 0, 10, 10, false},
		"until and limit": {"until limit", 0, 100, 60, false},
		"since":           {"since", 951, 10, 50, true},
		"since and until": {"since until", 951, 10, 10, false},
		"all of them":     {"since until limit", 951, 100, 50, false},
		"limit, for ever": {"limit", 0, 1000, 60, true},
	} {
		w := session.NewWalk([]nostr.Filter{{Since: &tc.since}}, 10)
		got, _ := walk(t, w, func(filters []nostr.Filter) []*nostr.Event {
			f := filters[0]
			if strings.Contains(tc.ignores, "since") {
				f.Since = nil
			}
			if strings.Contains(tc.ignores, "until") {
				f.Until = nil
			}
			if strings.Contains(tc.ignores, "limit") {
				f.Limit = 1000
			}
			return relay(events, f, tc.most)
		})
		gaps := w.Gaps
		if n := len(gaps); len(got) != tc.fresh || n != 1 && !tc.perhaps || n == 1 && gaps[0].From != tc.since {
			t.Errorf("%s: %d events, want %d; gaps %v", name, len(got), tc.fresh, gaps)
		}
	}
}

// TestFetchInParts: a relay that shows less at once than it is asked for by id is asked until all has
// come, or nothing comes twice.
func TestFetchInParts(t *testing.T) {
	t.Parallel()
	var events []*nostr.Event
	var ids []string
	for i := range 9 {
		ids = append(ids, made(i, 1).ID)
		if i < 7 { // it does not have the others
			events = append(events, made(i, 1))
		}
	}
	w, asked := session.NewFetch(ids), 0
	got, _ := walk(t, w, func(filters []nostr.Filter) []*nostr.Event {
		asked++
		return relay(events, filters[0], 2)
	})
	if len(got) != len(events) || w.Missing() != 2 || asked != 5 {
		t.Errorf("%d of %d events came in %d answers, %d are missing", len(got), len(events), asked, w.Missing())
	}
}
