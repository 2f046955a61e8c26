package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/world"
)

func get(t *testing.T, url string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(world.Context(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

// TestOnePort: health, metrics, the information document and pages, all on the front door, all with
// CORS.
func TestOnePort(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.first.URL})
	world.Serves(t, p.Relay(), s.pull)
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": `"ready":true`} {
		if res, body := get(t, p.URL+path); res.StatusCode != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
	// What is counted after an event is served may be a moment late.
	var metrics string
	for _, want := range []string{
		"ngit_sync_relay_connected{relay=", "ngit_sync_relay_status{relay=", "ngit_sync_relays_tracked_total 2", `ngit_events_stored_total{kind="30617"} 1`,
		`ngit_events_stored_total{kind="1618"} 1`, "ngit_sync_events_synced_total", "ngit_repositories_total 1", `purgatory_released_total{kind="30618"} 1`,
		`purgatory_sync_attempts_total{result="ok"}`, "purgatory_shards_held 64", "ngit_websocket_connections_total", "ngit_build_info",
	} {
		world.Await(t, "/metrics has "+want, func() bool {
			_, metrics = get(t, p.URL+"/metrics")
			return strings.Contains(metrics, want)
		})
	}
	for _, line := range strings.Split(metrics, "\n") {
		if strings.HasPrefix(line, "ngit_git_top_repos_bytes{") {
			continue // the repositories with the most traffic are what it names
		}
		if strings.Contains(line, s.owner.PubKey) || strings.Contains(line, s.owner.Npub) || strings.Contains(line, project) {
			t.Errorf("an identity is a label: %s", line)
		}
	}
	res, body := get(t, p.URL+"/", "Accept", "application/nostr+json")
	var info struct {
		SupportedGrasps []string       `json:"supported_grasps"`
		SupportedNIPs   []int          `json:"supported_nips"`
		Criteria        string         `json:"repo_acceptance_criteria"`
		Limitation      map[string]any `json:"limitation"`
	}
	if err := json.Unmarshal([]byte(body), &info); err != nil || len(info.SupportedGrasps) < 2 || info.Criteria == "" || info.Limitation["max_message_length"] != float64(524288) {
		t.Errorf("information document: %v\n%s", err, body)
	}
	if res.Header.Get("Access-Control-Allow-Origin") != "*" {
		t.Error("no CORS on the information document")
	}
	page, body := get(t, p.URL+"/"+s.owner.Npub+"/"+project+".git")
	if page.StatusCode != http.StatusOK || !strings.Contains(body, project) || !strings.Contains(page.Header.Get("Content-Type"), "text/html") {
		t.Errorf("the repository's page: %d %.200s", page.StatusCode, body)
	}
	none, _ := get(t, p.URL+"/"+s.owner.Npub+"/unknown.git")
	if none.StatusCode != http.StatusNotFound || none.Header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("an unknown repository: %d %v", none.StatusCode, none.Header)
	}
}

// TestStop: Ctrl-C closes sockets with 1001 and ends with success.
func TestStop(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	s := world.Dial(t, p.Relay())
	s.Send("REQ", "a", map[string]any{"kinds": []int{30617}})
	if m := s.Next(); m[0] != "EOSE" {
		t.Fatalf("answered %v", m)
	}
	closed := make(chan error, 1)
	go func() {
		_, err := s.TryNext()
		closed <- err
	}()
	if err := p.Stop(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	if err := <-closed; websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the socket is closed with %v, want 1001", err)
	}
	if !strings.Contains(p.Output(), "stopping") {
		t.Error("it did not say that it stops")
	}
}

// TestOwnRelayIsNeverATarget: an announcement that lists us and no one else makes no connection,
// and no loop.
func TestOwnRelayIsNeverATarget(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	bus := world.Listen(t, p.NATS)
	ann, work := world.NewPerson(t), world.NewWorkTree(t)
	announcement := ann.Announce("mine", "mine", nil, []string{"ws://" + strings.ToUpper(world.Domain) + ":80/", "wss://other.invalid"})
	wantHeld(t, p, announcement, ann.State("mine", work.Refs(), "refs/heads/main"))
	world.Git(t, work.Dir, "push", "-q", p.URL+"/"+ann.Npub+"/mine.git", "main")
	world.Await(t, "the other relay is a target", func() bool { return bus.Heard("grasp.target.other.invalid", "") })
	for _, said := range bus.Said() {
		if strings.HasPrefix(said.Subject, "grasp.target."+world.Domain) {
			t.Errorf("we are our own target: %s %s", said.Subject, said.Data)
		}
	}
	if got := world.Fetch(t, p.Relay(), nostr.Filter{Kinds: []int{30617}}); len(got) != 1 {
		t.Errorf("served %v", got)
	}
}
