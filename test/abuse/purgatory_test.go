package abuse

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// stuffed signs an announcement of so many bytes.
func stuffed(who *fixture.Person, identifier string, bytes int) *nostr.Event {
	return who.Announce(identifier, strings.Repeat("x", bytes))
}

// TestPurgatoryFloods: announcements that will never have git data do not close purgatory to
// others: neither to those whose repository is served, nor to newcomers.
func TestPurgatoryFloods(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name              string
		addresses, keys   int
		connections, size int
		events            int
		mostBytes         string
	}{
		// As it was done to a running server: 280 announcements of 480 KB by one key.
		{name: "huge ones by one key", addresses: 1, keys: 1, connections: 6, size: 480_000, events: 280, mostBytes: "134217728"},
		{name: "many keys of one address", addresses: 1, keys: 300, connections: 6, size: 60_000, events: 300, mostBytes: "8388608"},
		{name: "many addresses", addresses: 40, keys: 400, connections: 40, size: 60_000, events: 400, mostBytes: "8388608"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := start(t, map[string]string{"TENDRIL_TEST_PURGATORY_MAX_BYTES": c.mostBytes})
			n := moveIn(t, p)
			keys := make([]*fixture.Person, c.keys)
			for i := range keys {
				keys[i] = fixture.NewPerson()
			}
			var mu sync.Mutex
			answers := map[string]int{}
			var running sync.WaitGroup
			for connection := range c.connections {
				running.Go(func() {
					s := world.DialFrom(t, p.Relay(), stranger(connection%c.addresses))
					defer s.Close()
					for i := connection; i < c.events; i += c.connections {
						s.Send("EVENT", stuffed(keys[i%c.keys], fmt.Sprintf("flood-%d", i), c.size))
						m, err := s.TryNext()
						if err != nil {
							return
						}
						mu.Lock()
						answers[fmt.Sprint(m[len(m)-1])]++
						mu.Unlock()
					}
				})
			}
			n.unhurt(1) // while it goes on
			running.Wait()
			for answer, times := range answers {
				t.Logf("%d × %s", times, answer)
			}
			n.unhurt(2)
			newcomer(t, p, "192.0.2.77")
		})
	}
}
