package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"tendril.dev/test/k8s/load"
	"tendril.dev/test/outside"
	"tendril.dev/test/world"
)

func TestMain(m *testing.M) {
	code := m.Run()
	world.Clean()
	os.Exit(code)
}

// meet starts a world of its own and a Tendril that it knows.
func meet(t *testing.T, relays int) (*World, *httptest.Server) {
	t.Helper()
	tendril := world.Start(t, nil)
	w, err := newWorld("127.0.0.1", tendril.URL, world.Domain)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(w.dir) })
	if err := w.serve(relays, 0, 0, make(chan error, relays+1)); err != nil {
		t.Fatal(err)
	}
	control := httptest.NewServer(w.control())
	t.Cleanup(control.Close)
	return w, control
}

// post does a task of the outside world; end returns what it has said when it has ended.
func post(t *testing.T, url string) (end func() (said []string)) {
	t.Helper()
	response, err := http.Post(url, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return func() []string {
		t.Helper()
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		said := strings.Split(strings.TrimSpace(string(text)), "\n")
		if err != nil || response.StatusCode != http.StatusOK || said[len(said)-1] != load.Done {
			t.Fatalf("%s: %s, %v\n%s", url, response.Status, err, text)
		}
		return said
	}
}

// TestWorld does with one process what `make k8s-test` does on a cluster: the story, events that
// flow while users work, and a look whether everything is there.
func TestWorld(t *testing.T) {
	t.Parallel()
	w, control := meet(t, 3)
	if said := post(t, control.URL+"/tasks/story")(); len(said) < 4 {
		t.Fatalf("the story: %s", strings.Join(said, "\n"))
	}
	users := post(t, control.URL+"/tasks/load")
	post(t, control.URL+"/tasks/flow?events=150&rate=50")()
	var status load.Status
	world.Await(t, "users do everything at least once", func() bool {
		response, err := http.Get(control.URL + "/status")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
			t.Fatal(err)
		}
		for _, action := range []string{"clone", "push", "EVENT", "REQ", "NIP-11"} {
			if status.Clients[action].Requests == 0 {
				return false
			}
		}
		return true
	})
	if _, err := http.Post(control.URL+"/end", "", nil); err != nil {
		t.Fatal(err)
	}
	users()
	for action, tally := range status.Clients {
		if tally.Failed != 0 || tally.Moved != 0 {
			t.Errorf("%s: %+v", action, tally)
		}
	}
	if said := post(t, control.URL+"/tasks/served")(); len(said) != 2+pushing {
		t.Fatalf("%s", strings.Join(said, "\n"))
	}
	if status.Published != 150 || len(status.Relays) != 3 {
		t.Errorf("the status says %d events on %d relays", status.Published, len(status.Relays))
	}
	if holders := outside.Holders(w.ledger.Spans()); len(holders) != 3 {
		t.Errorf("the relays are held by %v", holders)
	}
}

// TestNotEverythingIsServed: what is missing is found missing.
func TestNotEverythingIsServed(t *testing.T) {
	t.Parallel()
	w, _ := meet(t, 1)
	missing, err := w.notServed(t.Context(), []string{strings.Repeat("0", 64), strings.Repeat("1", 64)})
	if err != nil || len(missing) != 2 {
		t.Errorf("of two events that do not exist, these are missing: %v, %v", missing, err)
	}
	w.users.pushers = []*pusher{{w: w, who: w.owner, name: project, pushed: strings.Repeat("0", 40)}}
	if err := w.users.pushesAreThere(t.Context(), w, &task{}); err == nil {
		t.Error("a push that was never made is found")
	}
}
