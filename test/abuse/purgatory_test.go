package abuse

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/world"
)

// stuffed signs an announcement of so many bytes.
func stuffed(who *world.Person, identifier string, bytes int) *nostr.Event {
	return who.Announce(identifier, identifier, nil, nil, nostr.Tag{"description", strings.Repeat("x", bytes)})
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
			p := start(t, map[string]string{"NGIT_PURGATORY_MAX_BYTES": c.mostBytes})
			n := moveIn(t, p)
			keys := make([]*world.Person, c.keys)
			for i := range keys {
				keys[i] = world.NewPerson()
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

// TestVouchingWithoutData: announcements that never had git data here let no author in.
func TestVouchingWithoutData(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"NGIT_EVENTS_PER_MINUTE": "10000", "NGIT_EVENTS_PER_MINUTE_PER_IP": "10000"})
	n := moveIn(t, p)
	elsewhere := func(who *world.Person, identifier string, at int, more ...nostr.Tag) *nostr.Event {
		tags := nostr.Tags{{"d", identifier}, {"clone", "https://git.example.com/x.git"}, {"relays", "wss://relay.example.com"}}
		return who.SignAt(nostr.Now()+nostr.Timestamp(at), 30617, "", append(tags, more...)...)
	}
	mallory := world.NewPerson()
	s := world.DialFrom(t, p.Relay(), stranger(1))

	// A1 lists us and is held; A2 does not; A3 does again.
	s.Submit(mallory.Announce("free", "free", nil, nil))
	if ok, message := s.Submit(elsewhere(mallory, "free", 1)); ok {
		t.Errorf("an announcement that lists us nowhere is taken: %s", message)
	}
	again := mallory.SignAt(nostr.Now()+2, 30617, "", mallory.Announce("free", "free", nil, nil).Tags...)
	if ok, message := s.Submit(again); !ok || message != waits {
		t.Errorf("a new announcement that lists us is answered %v %q, want it held", ok, message)
	}

	// One held announcement names many keys, which then announce what lies elsewhere.
	maintainers := nostr.Tag{"maintainers"}
	var crowd []*world.Person
	for range 100 {
		crowd = append(crowd, world.NewPerson())
		maintainers = append(maintainers, crowd[len(crowd)-1].PubKey)
	}
	s.Submit(mallory.Announce("crowd", "crowd", nil, nil, maintainers))
	for _, who := range crowd {
		s.Submit(elsewhere(who, "crowd", 0))
	}
	n.unhurt(2)
	served := world.Fetch(t, p.Relay(), nostr.Filter{Kinds: []int{30617}})
	if len(served) != 1 || served[0].PubKey != n.who.PubKey {
		t.Errorf("%d announcements are served, want only the one that has git data", len(served))
	}
}
