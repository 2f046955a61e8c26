package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"tendril.dev/test/k8s/report"
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

func command(t *testing.T, method, url string, into any) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if into != nil && response.StatusCode == http.StatusOK {
		if err := json.NewDecoder(response.Body).Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	return response.StatusCode
}

// finish waits until a task has ended, and returns what it said and why it failed.
func finish(t *testing.T, control *httptest.Server, name string) (said []string, failed string) {
	t.Helper()
	next := 0
	var task report.Task
	world.Await(t, "the task "+name+" ends", func() bool {
		if code := command(t, http.MethodGet, fmt.Sprintf("%s/tasks/%s?from=%d", control.URL, name, next), &task); code != http.StatusOK {
			t.Fatalf("the task %s is reported with %d", name, code)
		}
		said, next = append(said, task.Lines...), task.Next
		return task.Done
	})
	return said, task.Error
}

// TestWorld does with one process what `make k8s-test` does on a cluster: the story, events that
// flow while users work, and a look whether everything is there.
func TestWorld(t *testing.T) {
	t.Parallel()
	w, control := meet(t, 3)
	if code := command(t, http.MethodGet, control.URL+"/tasks/story", nil); code != http.StatusNotFound {
		t.Errorf("a task that was not begun is reported with %d", code)
	}
	begin := func(query string) {
		t.Helper()
		if code := command(t, http.MethodPost, control.URL+"/tasks/"+query, nil); code != http.StatusOK {
			t.Fatalf("POST %s is answered %d", query, code)
		}
	}
	begin("story")
	if said, failed := finish(t, control, "story"); failed != "" || len(said) < 5 {
		t.Fatalf("the story: %s\n%s", failed, strings.Join(said, "\n"))
	}
	begin("load")
	if code := command(t, http.MethodPost, control.URL+"/tasks/load", nil); code != http.StatusConflict {
		t.Errorf("a load that runs is begun again: %d", code)
	}
	begin("flow?events=150&rate=50")
	if _, failed := finish(t, control, "flow"); failed != "" {
		t.Fatal(failed)
	}
	var status report.Status
	world.Await(t, "users do everything at least once", func() bool {
		command(t, http.MethodGet, control.URL+"/status", &status)
		for _, action := range []string{"clone", "push", "EVENT", "REQ", "NIP-11"} {
			if status.Clients[action].Requests == 0 {
				return false
			}
		}
		return true
	})
	begin("load/end")
	if said, failed := finish(t, control, "load"); failed != "" {
		t.Fatalf("%s\n%s", failed, strings.Join(said, "\n"))
	}
	for action, tally := range status.Clients {
		if tally.Failed != 0 || tally.Moved != 0 {
			t.Errorf("%s: %+v", action, tally)
		}
	}
	begin("served")
	said, failed := finish(t, control, "served")
	if failed != "" || len(said) != 1+pushing {
		t.Fatalf("%s\n%s", failed, strings.Join(said, "\n"))
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
		t.Errorf("of two events that nobody has, these are missing: %v, %v", missing, err)
	}
	w.users.pushers = []*pusher{{w: w, who: w.owner, name: project, pushed: strings.Repeat("0", 40)}}
	if err := w.users.pushesAreThere(t.Context(), w, &task{}); err == nil {
		t.Error("a push that nobody has is found")
	}
}
