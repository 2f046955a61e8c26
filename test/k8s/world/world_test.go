package main

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

func TestMain(m *testing.M) { world.Main(m) }

// TestWorld does with one process what `make k8s-test` does on a cluster: the story, events that
// flow while users work, and a look whether everything is there.
func TestWorld(t *testing.T) {
	t.Parallel()
	tendril := world.Start(t, nil)
	w := newWorld(t, "127.0.0.1", tendril.URL, fixture.Domain)
	w.serve(3, 0, 0, make(chan error, 4))
	control := httptest.NewServer(w.control())
	t.Cleanup(control.Close)
	do := func(task string) {
		t.Helper()
		if _, said := world.Get(t, control.URL+"/tasks/"+task); !strings.HasSuffix(said, "\n"+world.Done+"\n") {
			t.Fatalf("%s:\n%s", task, said)
		}
	}
	do("story")
	users := make(chan struct{})
	go func() { defer close(users); do("load") }()
	do("flow?events=150&rate=50")
	var status world.Status
	fixture.Await(t, "users do everything at least once", func() bool {
		_, said := world.Get(t, control.URL+"/status")
		fixture.Must(t, json.Unmarshal([]byte(said), &status))
		for _, action := range world.UsersDo {
			if status.Clients[action].Requests == 0 {
				return false
			}
		}
		return true
	})
	world.Get(t, control.URL+"/end")
	<-users
	for action, tally := range status.Clients {
		if tally.Failed != 0 || tally.Moved != 0 {
			t.Errorf("%s: %+v", action, tally)
		}
	}
	do("served")
	holders := map[string]bool{}
	for _, s := range status.Spans {
		holders[s.Relay] = true
	}
	if status.Published != 150 || len(status.Relays) != 3 || len(holders) != 3 {
		t.Errorf("the status says %d events on %d relays, %d of them connected", status.Published, len(status.Relays), len(holders))
	}
	missing, err := w.notServed(t, []string{w.published[0], strings.Repeat("1", 64)})
	if err != nil || len(missing) != 1 {
		t.Errorf("of two events of which one does not exist, these are missing: %v, %v", missing, err)
	}
}
