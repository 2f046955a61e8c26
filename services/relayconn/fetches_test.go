package relayconn

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"tendril.dev/proto"
)

// TestAskedByID: what ingest names is asked for at a relay that a worker holds, by its session, and
// at one that no worker holds, by one worker on a connection of its own.
func TestAskedByID(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	judge := newIngest(t, b)
	held, stranger := newForeign(t), newForeign(t)
	aim(t, b, held.URL, wanting(held.URL, "30617:aa:x"))
	for n := range 2 {
		newWorker(t, b, fmt.Sprint("worker-", n))
	}
	connected(t, b, held)
	here, there := event(30617, "here", 1000*time.Hour), event(30617, "there", 1000*time.Hour)
	held.look(func() { held.events = append(held.events, here) })
	stranger.look(func() { stranger.events = append(stranger.events, there, event(30617, "not asked for", time.Hour)) })
	say := func() {
		data, err := json.Marshal(proto.Fetch{
			IDs:    []string{here.ID, there.ID},
			Relays: []string{held.URL, stranger.URL, "wss://git.example.com", "no relay"},
		})
		must(t, err)
		must(t, b.Conn.Publish(proto.SubjectFetch, data))
	}
	eventually(t, "both have come", func() bool {
		say() // as ingest does, until the event is decided
		return judge.has("reconnect sync.live here", "reconnect sync.live there")
	})
	stranger.look(func() {
		if stranger.dials != 1 || len(stranger.asked) == 0 || len(stranger.asked[0].IDs) == 0 {
			t.Errorf("%d connections, asked for %v", stranger.dials, stranger.asked)
		}
	})
	held.look(func() {
		if len(held.open) != 1 { // a visit would last longer than this test
			t.Errorf("%d connections to a relay that a worker holds", len(held.open))
		}
	})
	if taken := judge.all(); len(taken) != 2 {
		t.Errorf("taken: %v", taken)
	}
}
