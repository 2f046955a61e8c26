package world

import (
	"fmt"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// Fetch returns what a relay has for a filter.
func Fetch(t testing.TB, url string, f nostr.Filter) []*nostr.Event {
	t.Helper()
	s := Dial(t, url)
	defer s.Close()
	events, err := s.Query(f)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// Serves waits until a relay serves events.
func Serves(t testing.TB, url string, events ...*nostr.Event) {
	t.Helper()
	s := Dial(t, url)
	defer s.Close()
	for _, ev := range events {
		fixture.Await(t, fmt.Sprintf("an event of kind %d is served: %s", ev.Kind, ev), func() bool {
			got, err := s.Query(nostr.Filter{IDs: []string{ev.ID}})
			if err != nil || len(got) == 1 && got[0].String() != ev.String() {
				t.Fatalf("served %s, %v; want %s", got, err, ev)
			}
			return len(got) == 1
		})
	}
}
