package session_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
)

// relay answers a filter from its events as NIP-01 says, but never with more than its own cap.
func relay(events []*nostr.Event, f nostr.Filter, most int) []*nostr.Event {
	var out []*nostr.Event
	for _, ev := range events {
		if f.Matches(ev) {
			out = append(out, ev)
		}
	}
	slices.SortFunc(out, func(a, b *nostr.Event) int { return int(b.CreatedAt - a.CreatedAt) })
	return out[:min(len(out), f.Limit, most)]
}

func walk(t *testing.T, events []*nostr.Event, f nostr.Filter, limit, most int) (got map[string]bool, w *session.Walk, asked int) {
	t.Helper()
	got = map[string]bool{}
	w = session.NewWalk([]nostr.Filter{f}, limit)
	for more := true; more; {
		if asked++; asked > 10_000 {
			t.Fatal("it does not end")
		}
		for _, ev := range relay(events, w.Filters()[0], most) {
			got[ev.ID] = true
			if _, enough := w.Saw(ev); enough {
				t.Fatal("a page that keeps to its limit is taken to be endless")
			}
		}
		more = w.Ended()
	}
	return got, w, asked
}

func made(i int, at nostr.Timestamp) *nostr.Event {
	return &nostr.Event{ID: fmt.Sprintf("%064x", i), Kind: 1, CreatedAt: at}
}

// TestEverythingComes: whatever the times of the events and the cap of the relay, the walk brings
// everything unless one second holds as many as a page, and it says when that was so.
func TestEverythingComes(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	for round := range 400 {
		limit := 2 + rnd.IntN(20)
		most := limit
		if rnd.IntN(2) == 0 {
			most = 2 + rnd.IntN(limit)
		}
		var events []*nostr.Event
		at := nostr.Timestamp(1_000_000)
		for i := range rnd.IntN(200) {
			if same := rnd.IntN(3); same == 0 || i == 0 {
				at -= nostr.Timestamp(1 + rnd.IntN(50))
			}
			events = append(events, made(i, at))
		}
		perSecond := map[nostr.Timestamp]int{}
		crowded := 0
		for _, ev := range events {
			perSecond[ev.CreatedAt]++
		}
		for _, n := range perSecond {
			if n >= min(most, limit) {
				crowded += n
			}
		}
		got, _, _ := walk(t, events, nostr.Filter{}, limit, most)
		if len(got) < len(events)-crowded || crowded == 0 && len(got) != len(events) {
			t.Fatalf("round %d: %d of %d events (%d in crowded seconds), limit %d, cap %d", round, len(got), len(events), crowded, limit, most)
		}
	}
}

// TestCrowdedSecondsAreRecorded though the relay shows fewer events at once than it is asked for,
// and nothing is recorded where it has shown everything.
func TestCrowdedSecondsAreRecorded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		at   map[nostr.Timestamp]int
		most int
		gaps []session.Gap
	}{
		"between others":             {at: map[nostr.Timestamp]int{600: 1, 500: 9, 400: 1}, most: 4, gaps: []session.Gap{{From: 500, To: 500}}},
		"the newest":                 {at: map[nostr.Timestamp]int{500: 9, 400: 1}, most: 4, gaps: []session.Gap{{From: 500, To: 500}}},
		"the oldest":                 {at: map[nostr.Timestamp]int{600: 5, 500: 9}, most: 4, gaps: []session.Gap{{From: 600, To: 600}, {From: 500, To: 500}}},
		"two":                        {at: map[nostr.Timestamp]int{700: 1, 600: 7, 500: 1, 400: 8, 300: 2}, most: 5, gaps: []session.Gap{{From: 600, To: 600}, {From: 400, To: 400}}},
		"three events at once":       {at: map[nostr.Timestamp]int{500: 3}, most: 100},
		"and others before":          {at: map[nostr.Timestamp]int{500: 3, 400: 3}, most: 100},
		"all shown in several pages": {at: map[nostr.Timestamp]int{600: 2, 500: 3, 400: 2, 300: 3}, most: 5},
	} {
		var events []*nostr.Event
		for at, n := range tc.at {
			for range n {
				events = append(events, made(len(events), at))
			}
		}
		if _, w, _ := walk(t, events, nostr.Filter{}, 10, tc.most); !slices.Equal(w.Gaps(), tc.gaps) {
			t.Errorf("%s: gaps %v, want %v", name, w.Gaps(), tc.gaps)
		}
	}
}

// TestWhatIsIgnored: a relay that does not heed since, until or limit brings nothing new by that,
// and the walk ends with what it brought and says so.
func TestWhatIsIgnored(t *testing.T) {
	t.Parallel()
	since := nostr.Timestamp(951)
	var events []*nostr.Event
	for i := range 60 {
		events = append(events, made(i, nostr.Timestamp(1000-i)))
	}
	for name, tc := range map[string]struct {
		filter  nostr.Filter
		heeds   func(f *nostr.Filter) // takes away what the relay does not
		most    int
		fresh   int
		from    nostr.Timestamp
		perhaps bool // it may have shown everything, and the gap may be missing
	}{
		"until":           {heeds: func(f *nostr.Filter) { f.Until = nil }, most: 10, fresh: 10},
		"until and limit": {heeds: func(f *nostr.Filter) { f.Until, f.Limit = nil, 1000 }, most: 100, fresh: 60},
		"since":           {filter: nostr.Filter{Since: &since}, heeds: func(f *nostr.Filter) { f.Since = nil }, most: 10, fresh: 50, from: since, perhaps: true},
		"since and until": {filter: nostr.Filter{Since: &since}, heeds: func(f *nostr.Filter) { f.Since, f.Until = nil, nil }, most: 10, fresh: 10, from: since},
		"all of them":     {filter: nostr.Filter{Since: &since}, heeds: func(f *nostr.Filter) { f.Since, f.Until, f.Limit = nil, nil, 1000 }, most: 100, fresh: 50, from: since},
		"limit, for ever": {heeds: func(f *nostr.Filter) { f.Limit = 1000 }, most: 1000, fresh: 60, perhaps: true},
	} {
		w := session.NewWalk([]nostr.Filter{tc.filter}, 10)
		got := map[string]bool{}
		for asked, more := 0, true; more; asked++ {
			if asked > 100 {
				t.Fatalf("%s: it does not end", name)
			}
			f := w.Filters()[0]
			tc.heeds(&f)
			for _, ev := range relay(events, f, tc.most) {
				if !w.Matches(ev) {
					t.Fatalf("%s: %v is not what was asked for", name, ev)
				}
				if fresh, _ := w.Saw(ev); fresh {
					got[ev.ID] = true
				}
			}
			more = w.Ended()
		}
		if len(got) != tc.fresh {
			t.Errorf("%s: %d events, want %d", name, len(got), tc.fresh)
		}
		if n := len(w.Gaps()); n != 1 && !tc.perhaps || n == 1 && w.Gaps()[0].From != tc.from {
			t.Errorf("%s: gaps %v", name, w.Gaps())
		}
	}
}

// TestEndlessPage: it is enough after a while, and the walk ends.
func TestEndlessPage(t *testing.T) {
	t.Parallel()
	w := session.NewWalk([]nostr.Filter{{}}, 5)
	for i := range 1000 {
		if _, enough := w.Saw(made(i, 7)); enough {
			if i != 99 {
				t.Errorf("enough after %d events on a page of 5", i+1)
			}
			if w.Ended() || len(w.Gaps()) != 1 {
				t.Errorf("the walk goes on, or has no gap: %v", w.Gaps())
			}
			return
		}
	}
	t.Fatal("a page without end")
}
