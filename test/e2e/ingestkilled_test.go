package e2e

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestIngestKilledDuringSync: ingest is killed when it has accepted a part of a relay's 20,000
// issues, and a standby goes on, or a new one that begins with nothing. In the end all are served,
// and the log has each once.
func TestIngestKilledDuringSync(t *testing.T) {
	t.Parallel()
	for name, standby := range map[string]bool{"two replicas": true, "started again": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ingestKilled(t, standby)
		})
	}
}

func ingestKilled(t *testing.T, standby bool) {
	const n = 20_000
	owner, work, git := fixture.NewPerson(), world.NewWorkTree(t), world.NewGitServer(t)
	events := make([]*nostr.Event, n)
	for i := range events {
		events[i] = owner.At(nostr.Now()-nostr.Timestamp(n-i)).Sign(1621, fmt.Sprint("issue ", i), owner.Repo("mine"))
	}
	relay := world.NewRelay(t, events...)
	relay.Publish(owner.Announce("mine", git.Host("mine", work), relay.URL), owner.State("mine", work.Refs()))
	bus, volume := world.StartNATS(t), world.Folder(t)
	settings := map[string]string{
		"NGIT_SYNC_BOOTSTRAP_RELAY_URL": relay.URL, "NGIT_WORKER_TTL": "10s", "TENDRIL_TEST_CANDIDATE_ACK_WAIT": "2s", "NGIT_LOG_LEVEL": "info",
		"TENDRIL_TEST_COMMIT_BATCH": "50", // so that it is killed while more is waiting
	}
	start := func(name string) *world.Replica { return world.StartReplica(t, name, bus.URL, volume, settings) }
	first := start("ingest")
	first.AwaitReady()
	if standby {
		start("ingest").AwaitReady()
	}
	js, done := world.JetStream(t, bus.URL)
	t.Cleanup(done)
	part := hears(t, js, n/5)
	release := relay.Hold(3 * n / 4) // a slow machine must not sync all before the kill
	t.Cleanup(release)
	door := start("gateway")
	for _, name := range []string{"purgatory", "discovery", "relayconn"} { // the sync begins with the last
		start(name)
	}
	<-part
	first.Kill()
	release()
	if had := accepted(t, js); had >= n {
		t.Fatalf("all %d were accepted before ingest was killed", had)
	} else {
		t.Logf("killed after %d of %d", had, n)
	}
	if !standby {
		start("ingest")
	}
	at := door.Door()
	issues := nostr.Filter{Kinds: []int{1621}}
	for had := 0; had < n; had = at.Count(issues) {
		await(t, fmt.Sprintf("more than %d are served", had), func() bool { return at.Count(issues) > had })
	}
	logged, _ := readLog(t, js, "grasp.event.1621.>")
	once(t, "the log has", events, logged)
	once(t, "the gateway serves", events, served(at, issues))
}

// hears gives what is closed when so many issues were written to the log.
func hears(t *testing.T, js jetstream.JetStream, n int) <-chan struct{} {
	t.Helper()
	heard := make(chan struct{})
	if _, err := js.Conn().Subscribe("grasp.event.1621.>", func(*nats.Msg) {
		if n--; n == 0 {
			close(heard)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return heard
}

// accepted is how many events the log has.
func accepted(t *testing.T, js jetstream.JetStream) int {
	t.Helper()
	stream, err := js.Stream(t.Context(), proto.StreamEvents)
	must(t, err)
	return int(stream.CachedInfo().State.Msgs)
}

// served is what a relay has for a filter, in pages; no two of the events are of one second.
func served(door world.Door, f nostr.Filter) (events []*nostr.Event) {
	f.Limit = 500
	for {
		page := door.Fetch(f)
		if len(page) == 0 {
			return events
		}
		events = append(events, page...)
		until := page[len(page)-1].CreatedAt - 1
		f.Until = &until
	}
}

// once checks that every event is there exactly once, and nothing else.
func once(t *testing.T, who string, events, found []*nostr.Event) {
	t.Helper()
	times := map[string]int{}
	for _, ev := range found {
		times[ev.ID]++
	}
	missing, often := 0, 0
	for _, ev := range events {
		switch times[ev.ID] {
		case 0:
			missing++
		case 1:
		default:
			often++
		}
	}
	if missing+often > 0 || len(times) != len(events) {
		t.Errorf("%s %d messages for %d events: %d are missing, %d are there more than once", who, len(found), len(events), missing, often)
	}
}
