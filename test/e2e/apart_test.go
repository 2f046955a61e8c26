package e2e

import (
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestServicesApart: every service is a process of its own, twice, around a NATS that is not ours
// and permits each only what it needs. The story goes on when one of each is killed.
func TestServicesApart(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	nats, volume := world.GuardedNATS(t), world.Folder(t)
	settings := map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.First.URL, "NGIT_WORKER_TTL": "8s", "NGIT_CANDIDATE_ACK_WAIT": "5s"}
	var first, second []*world.Replica
	for _, name := range world.Services {
		first = append(first, world.StartReplica(t, name, nats.URL, volume, nats.As(name, settings)))
	}
	for _, name := range world.Services {
		second = append(second, world.StartReplica(t, name, nats.URL, volume, nats.As(name, settings)))
	}
	door, other := first[4].URL(), second[4].URL()
	for _, ev := range []*nostr.Event{s.Announcement, s.State, s.Issue, s.Comment, s.Pull} {
		world.Serves(t, world.RelayAt(door), ev)
		world.Serves(t, world.RelayAt(other), ev)
	}
	// A user at one door; someone else clones at the other.
	mine := world.Host(t, door, "mine", world.Hosting{})
	world.CloneIs(t, mine.At(other), mine.Pushed)
	// The world may reach the front door: probes are answered there too, metrics are not.
	for url, want := range map[string]int{
		door + "/healthz": 200, door + "/readyz": 200, door + "/metrics": 404, first[4].Observation() + "/metrics": 200, first[4].Observation() + "/healthz": 200,
	} {
		if res, _ := world.Get(t, url); res.StatusCode != want {
			t.Errorf("%s answers %d, want %d", url, res.StatusCode, want)
		}
	}
	for _, r := range first {
		r.Kill()
	}
	late := s.NewIssue("after the crash")
	s.Second.Publish(late)
	world.Serves(t, world.RelayAt(other), late)
	attempt := 0
	fixture.Await(t, "a push is taken by the writer and the worker that are left", func() bool {
		attempt++
		return mine.Push(t, other, attempt-1, func(ev *nostr.Event) error { return world.TrySubmit(t, world.RelayAt(other), ev) }) == nil
	})
	world.Serves(t, world.RelayAt(other), mine.State)
	for i := len(second) - 1; i >= 0; i-- {
		if err := second[i].Stop(); err != nil {
			t.Errorf("%s ends with %v", second[i].Name, err)
		}
	}
}
