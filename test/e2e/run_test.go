package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/lib/nettest"
	"tendril.dev/lib/nostr"
	"tendril.dev/test/world"
)

// TestServicesInSeveralProcesses: `tendril run` shares out the services over three processes, which
// are one system: it syncs, takes a push, can be watched process by process, and stops well.
func TestServicesInSeveralProcesses(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	nats, volume := nettest.NewNATS(t, "").URL, world.Folder(t)
	settings := map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.first.URL}
	var processes []*world.Replica
	for _, services := range [][]string{{"gateway", "discovery"}, {"ingest"}, {"purgatory", "relayconn"}} {
		processes = append(processes, world.StartRun(t, services, nats, volume, settings))
	}
	door := processes[0].URL()
	for _, ev := range []*nostr.Event{s.announcement, s.state, s.issue, s.comment, s.pull} {
		world.Serves(t, world.RelayAt(door), ev)
	}
	ann, work := world.NewPerson(t), world.NewWorkTree(t)
	for _, ev := range []*nostr.Event{ann.Announce("mine", "mine", nil, nil), ann.State("mine", work.Refs(), "refs/heads/main")} {
		if ok, message := world.Submit(t, world.RelayAt(door), ev); !ok || message != waits {
			t.Fatalf("answered %v %q", ok, message)
		}
	}
	onceMoved(t, work.Dir, "push", "-q", door+"/"+ann.Npub+"/mine.git", "main")
	onceMoved(t, work.Dir, "clone", "-q", door+"/"+ann.Npub+"/mine.git", filepath.Join(t.TempDir(), "copy"))

	for i, metric := range []string{"ngit_websocket_connections_total", "ngit_ingest_writer 1", "purgatory_sync_queue_size"} {
		processes[i].AwaitReady()
		at := processes[i].Observation()
		if res, body := get(t, at+"/metrics"); res.StatusCode != 200 || !strings.Contains(body, metric) {
			t.Errorf("%s: /metrics answers %d without %s", processes[i].Name, res.StatusCode, metric)
		}
		if res, _ := get(t, at+"/healthz"); res.StatusCode != 200 {
			t.Errorf("%s: /healthz answers %d", processes[i].Name, res.StatusCode)
		}
	}
	// The world may reach the front door: probes are answered there too, metrics are not.
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 404} {
		if res, _ := get(t, door+path); res.StatusCode != want {
			t.Errorf("%s at the front door: %d, want %d", path, res.StatusCode, want)
		}
	}
	for _, i := range []int{2, 0, 1} {
		if err := processes[i].Stop(); err != nil {
			t.Errorf("%s ends with %v", processes[i].Name, err)
		}
	}
}
