package pages_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/pages"
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

func walk(t *testing.T, events []*nostr.Event, f nostr.Filter, limit, most int) (got map[string]bool, w *pages.Walk, asked int) {
	t.Helper()
	got = map[string]bool{}
	w = pages.New(f, limit)
	for more := true; more; {
		if asked++; asked > 10_000 {
			t.Fatal("it does not end")
		}
		for _, ev := range relay(events, w.Filter(), most) {
			got[ev.ID] = true
			if _, err := w.Saw(ev); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if more, err = w.Ended(); err != nil {
			t.Fatal(err)
		}
	}
	return got, w, asked
}

func event(i int, at nostr.Timestamp) *nostr.Event {
	return &nostr.Event{ID: fmt.Sprintf("%064x", i), Kind: 1, CreatedAt: at}
}

// TestEverythingComes: whatever the times of the events and the cap of the relay, the walk brings everything unless one second holds as many as
// a page, and it says when that was so.
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
			events = append(events, event(i, at))
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

func TestCrowdedSecondIsSteppedOver(t *testing.T) {
	t.Parallel()
	var events []*nostr.Event
	for i := range 30 {
		events = append(events, event(i, 500))
	}
	events = append(events, event(100, 600), event(101, 400))
	got, w, asked := walk(t, events, nostr.Filter{}, 10, 10)
	if !got[event(100, 0).ID] || !got[event(101, 0).ID] {
		t.Fatal("what lies around the crowded second did not come")
	}
	if !slices.Equal(w.Gaps, []nostr.Timestamp{500}) || asked > 6 {
		t.Fatalf("gaps %v after %d pages", w.Gaps, asked)
	}
}

func TestSinceEndsTheWalk(t *testing.T) {
	t.Parallel()
	since := nostr.Timestamp(100)
	events := []*nostr.Event{event(1, 200), event(2, 100), event(3, 99)}
	got, _, asked := walk(t, events, nostr.Filter{Since: &since}, 2, 2)
	if len(got) != 2 || asked > 3 {
		t.Fatalf("%d events after %d pages", len(got), asked)
	}
}

func TestEmptyPastIsOnePage(t *testing.T) {
	t.Parallel()
	if _, _, asked := walk(t, nil, nostr.Filter{}, 10, 10); asked != 1 {
		t.Fatalf("%d pages", asked)
	}
}

func TestEndlessPageIsAnError(t *testing.T) {
	t.Parallel()
	w := pages.New(nostr.Filter{}, 5)
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		_, err = w.Saw(event(i, 7))
	}
	if !errors.Is(err, pages.ErrEndless) {
		t.Fatalf("a page without end: %v", err)
	}
}
