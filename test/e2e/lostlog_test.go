package e2e

import (
	"errors"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestWaitingCanBeSeenAndStopped: a service that waits for NATS, and then for the streams, says so
// on /readyz and is alive meanwhile. SIGTERM ends the wait, and that is a good end.
func TestWaitingCanBeSeenAndStopped(t *testing.T) {
	t.Parallel()
	bus := world.StartNATS(t)
	bus.End(syscall.SIGTERM)
	r := world.StartReplica(t, "gateway", bus.URL, world.Folder(t), nil)
	says := func(what string) {
		t.Helper()
		await(t, "/readyz says "+what, func() bool {
			res, body := world.Get(t, r.Observation()+"/readyz")
			return res.StatusCode == http.StatusServiceUnavailable && strings.Contains(body, what)
		})
		if res, body := world.Get(t, r.Observation()+"/healthz"); res.StatusCode != http.StatusOK {
			t.Errorf("/healthz answers %d %s", res.StatusCode, body)
		}
	}
	says("waiting for the bus: connect to NATS")
	bus.Start()
	says("waiting for the bus: look for stream")
	if err := r.Stop(); err != nil {
		t.Errorf("it ends with %v", err)
	}
}

// TestLostLog: all of NATS's disk is lost. The services end and say so; ingest makes no empty log
// until it is told which one is given up.
func TestLostLog(t *testing.T) {
	t.Parallel()
	bus, volume := world.StartNATS(t), world.Folder(t)
	index := map[string]string{"NGIT_RELAY_DATA_PATH": world.Folder(t)}
	ingest := world.StartReplica(t, "ingest", bus.URL, volume, index)
	gateway := world.StartReplica(t, "gateway", bus.URL, volume, nil)
	ingest.AwaitReady()
	gateway.AwaitReady()
	ev := fixture.NewPerson().Sign(1621, "in the log")
	putInLog(t, bus.URL, ev)
	gateway.Door().Serves(ev)
	await(t, "ingest has read it too", func() bool {
		_, body := world.Get(t, ingest.Observation()+"/metrics")
		return regexp.MustCompile(`(?m)^tendril_index_sequence [1-9]`).MatchString(body)
	})

	bus.End(syscall.SIGKILL)
	bus.LoseDisk()
	bus.Start()
	for _, r := range []*world.Replica{ingest, gateway} {
		if err := r.Ended(); err == nil {
			t.Errorf("%s ends as if all was well", r.Name)
		}
		if said := lastLine(r); !strings.Contains(said, "NATS has ") || !strings.Contains(said, "When NATS has lost its disk") {
			t.Errorf("%s ends with %q", r.Name, said)
		}
	}
	again := world.StartReplica(t, "ingest", bus.URL, volume, index)
	if err := again.Ended(); err == nil {
		t.Error("ingest ends as if all was well")
	}
	found := regexp.MustCompile(`the log of (\S+) is gone: .* set NGIT_FORGET_LOG=(\S+)$`).FindStringSubmatch(lastLine(again))
	if found == nil || found[1] != found[2] {
		t.Fatalf("ingest ends with %q", lastLine(again))
	}
	if streams := streamNames(t, bus.URL); len(streams) != 0 {
		t.Errorf("made beside the log that is lost: %v", streams)
	}
	index["NGIT_FORGET_LOG"] = found[1]
	world.StartReplica(t, "ingest", bus.URL, volume, index).AwaitReady()
	if streams := streamNames(t, bus.URL); !strings.Contains(strings.Join(streams, " "), proto.StreamEvents) {
		t.Errorf("the streams are %v", streams)
	}
}

// putInLog writes an event to the log, as if it had been accepted.
func putInLog(t *testing.T, url string, ev *nostr.Event) {
	t.Helper()
	js, done := world.JetStream(t, url)
	defer done()
	if _, err := js.Publish(world.Context(t), proto.EventSubjectOf(ev).String(), []byte(ev.String())); err != nil {
		t.Fatal(err)
	}
}

func lastLine(r *world.Replica) string {
	out := strings.TrimSpace(r.Output())
	return out[strings.LastIndexByte(out, '\n')+1:]
}

func streamNames(t *testing.T, url string) (names []string) {
	t.Helper()
	js, done := world.JetStream(t, url)
	defer done()
	list := js.StreamNames(world.Context(t))
	for name := range list.Name() {
		names = append(names, name)
	}
	if err := list.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		t.Fatal(err)
	}
	return names
}
