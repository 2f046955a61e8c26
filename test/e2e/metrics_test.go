package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// series is one metric with its labels.
type series struct {
	labels map[string]string
	value  float64
}

// scrape reads /metrics. Of a histogram the value is how much it has counted.
func scrape(t *testing.T, url string) map[string][]series {
	t.Helper()
	_, body := world.Get(t, url+"/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	must(t, err)
	all := map[string][]series{}
	for name, family := range families {
		for _, m := range family.Metric {
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			s := series{labels: map[string]string{}, value: value}
			for _, l := range m.Label {
				s.labels[l.GetName()] = l.GetValue()
			}
			all[name] = append(all[name], s)
		}
	}
	return all
}

// metricsOfThePage are all metrics that dashboards use, with those that docs/metrics.md names
// without a name: the name, the labels, "still" if it may be zero after the traffic of the test,
// and values of the labels that must have moved from zero.
const metricsOfThePage = `
	ngit_sync_relay_connected                  | relay                    |       | relay=RELAY
	ngit_sync_relay_status                     | relay                    |       | relay=RELAY
	ngit_sync_relay_failures                   | relay                    | still |
	ngit_sync_connection_attempts_total        | relay result             |       | relay=RELAY result=success; result=failure
	ngit_sync_events_total                     | source                   |       | source=direct; source=live; source=startup; source=reconnect
	ngit_sync_events_synced_total              |                          |       |
	ngit_sync_gap_events_total                 | relay                    |       | relay=RELAY
	ngit_sync_relays_tracked_total             |                          |       |
	ngit_sync_relays_connected_total           |                          |       |
	ngit_sync_relays_dead_total                |                          | still |
	ngit_sync_naughty_relays_total             | category                 | still | category=dns; category=tls; category=protocol
	ngit_sync_policy_refusals_total            | category                 | still | category=auth-required; category=restricted; category=blocked; category=invalid; category=other
	ngit_sync_rejected_hot_cache_current       | event_type               |       | event_type=state
	ngit_sync_rejected_hot_cache_hits_total    | event_type               |       | event_type=state
	ngit_sync_rejected_hot_cache_misses_total  | event_type               | still | event_type=announcement; event_type=state; event_type=other
	ngit_sync_rejected_hot_cache_expired_total | event_type               | still | event_type=announcement; event_type=state; event_type=other
	ngit_sync_rejected_cold_index_current      | event_type               |       |
	ngit_sync_rejected_cold_index_expired_total | event_type              | still | event_type=announcement; event_type=state; event_type=other
	ngit_sync_rejected_invalidated_total       | event_type               |       | event_type=state
	ngit_events_received_total                 | kind                     |       | kind=30617; kind=30618; kind=other
	ngit_events_stored_total                   | kind                     |       | kind=30617; kind=1621
	ngit_events_rejected_total                 | kind reason              |       | kind=1621
	ngit_git_operations_total                  | operation result status  |       | operation=info_refs status=success; operation=upload_pack status=success; operation=receive_pack status=success; operation=clone result=ok status=success; operation=fetch result=ok status=success; operation=push result=ok status=success; operation=push status=error
	ngit_git_operation_duration_seconds        | operation                |       | operation=clone; operation=receive_pack
	ngit_git_bytes_total                       | direction                |       | direction=in; direction=out
	ngit_git_push_authorization_total          | result                   |       | result=allowed; result=denied
	ngit_git_processes                         | operation                | still | operation=upload-pack; operation=index-pack
	ngit_git_queue                             |                          | still |
	ngit_git_cpu_seconds_total                 | operation                |       | operation=upload-pack
	ngit_git_memory_bytes                      |                          | still |
	ngit_disk_free_bytes                       | folder                   |       | folder=relay; folder=git
	ngit_disk_size_bytes                       | folder                   |       | folder=relay; folder=git
	ngit_http_requests_total                   | code route               |       | route=git code=200; route=metrics code=200
	ngit_git_top_repos_bytes                   | repo                     |       | repo=REPO
	ngit_repositories_total                    |                          |       |
	ngit_websocket_connections_active          |                          |       |
	ngit_websocket_connections_total           |                          |       |
	ngit_websocket_connection_duration_seconds |                          |       |
	ngit_websocket_messages_received_total     | type                     |       | type=EVENT; type=REQ; type=CLOSE; type=COUNT; type=other
	ngit_websocket_messages_sent_total         | type                     |       | type=EVENT; type=EOSE; type=OK; type=NOTICE; type=COUNT
	ngit_websocket_unique_ips                  |                          |       |
	ngit_websocket_flagged_abusers             |                          | still |
	ngit_build_info                            | commit goversion version |       |
	ngit_uptime_seconds                        |                          |       |
	purgatory_sync_queue_size                  |                          | still |
	purgatory_sync_attempts_total              | result                   |       | result=ok
	purgatory_sync_oids_fetched_total          |                          |       |
	purgatory_domain_in_flight                 | domain                   | still |
	purgatory_domain_requests_total            | domain result            |       | domain=DOMAIN result=ok
	purgatory_held                             | kind                     |       | kind=30617
	purgatory_released_total                   | kind                     |       | kind=30617; kind=30618; kind=1618
	purgatory_expired_total                    | kind                     |       | kind=30618
	purgatory_wait_seconds                     |                          |       |
	ngit_ingest_event_to_served_seconds        |                          |       |
	purgatory_shards_held                      |                          |       |
	tendril_projection_lag                     | projection               | still | projection=index; projection=ingest_held; projection=ingest_rejected; projection=discovery_held; projection=discovery_targets; projection=purgatory_held; projection=relayconn_targets
	ngit_ingest_commit_events                  |                          |       |
	ngit_ingest_commit_duration_seconds        |                          |       |
	ngit_ingest_candidates_pending             | lane                     | still | lane=user; lane=release; lane=sync
`

// missing says what is wrong with a metric of the page.
func missing(want []string, all map[string][]series) string {
	found := all[want[0]]
	if len(found) == 0 {
		return want[0] + " is not there"
	}
	for _, s := range found {
		if got := slices.Sorted(maps.Keys(s.labels)); !slices.Equal(got, strings.Fields(want[1])) {
			return fmt.Sprintf("%s has the labels %v, want %s", want[0], got, want[1])
		}
	}
	for values := range strings.SplitSeq(want[3], ";") {
		if !slices.ContainsFunc(found, func(s series) bool {
			for _, pair := range strings.Fields(values) {
				name, value, _ := strings.Cut(pair, "=")
				if s.labels[name] != value {
					return false
				}
			}
			return want[2] == "still" || s.value != 0
		}) {
			return fmt.Sprintf("%s{%s} has not moved", want[0], values)
		}
	}
	return ""
}

// TestEveryMetricOfThePage: after some of everything that a server goes through, each metric of
// docs/metrics.md is there with its labels and has moved. None can vanish unseen, and every query
// of the dashboards and alerts finds what it names. `make dashboards` has promtool evaluate them.
func TestEveryMetricOfThePage(t *testing.T) {
	t.Parallel()
	s := world.NewScene(t)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.First.URL + ",ws://127.0.0.1:1",
		"NGIT_REJECTED_HOT_CACHE_DURATION_SECS": "3600", "NGIT_TRUSTED_PROXIES": "127.0.0.1"})
	_, atFirst := world.Get(t, p.URL+"/metrics")
	ann, work := fixture.NewPerson(), world.NewWorkTree(t)
	remote := p.Repo(ann, "mine")

	// A user: too early, then announced; a state that a newer one overtakes; pushes that are
	// refused and taken; a clone, a fetch, and something that waits still.
	p.Refuses("invalid: no announcement", ann.State("mine", work.Refs()))
	p.Holds(ann.Announce("mine"), ann.At(nostr.Now()-60).State("mine", map[string]string{"refs/heads/main": strings.Repeat("a", 40)}), ann.State("mine", work.Refs()))
	work.Fails("", "push", "-q", remote, "main:refs/heads/other") // no state allows it
	work.Git("push", "-q", remote, "main")
	clone := filepath.Join(t.TempDir(), "clone")
	world.Git(t, t.TempDir(), "clone", "-q", remote, clone)
	work.Commit("more")
	p.Holds(ann.At(nostr.Now()+1).State("mine", work.Refs()))
	work.Git("push", "-q", remote, "main")
	world.Git(t, clone, "fetch", "-q")
	p.Holds(ann.Announce("waiting"))
	for _, ev := range []*nostr.Event{s.Guest.Sign(7777, "what is this"), ann.State("nothing", work.Refs()), s.Guest.Sign(1621, "about nothing", ann.Repo("nothing"))} {
		p.Refuses("", ev)
	}

	// A nostr client, with everything that it may say.
	socket := p.Dial()
	socket.Send("REQ", "a", map[string]any{"kinds": []int{30617}})
	socket.Send("COUNT", "b", map[string]any{"kinds": []int{30617}})
	socket.Send("WHAT")
	for said := map[any]bool{}; !said["NOTICE"] || !said["COUNT"] || !said["EOSE"] || !said["EVENT"]; {
		said[socket.Next()[0]] = true
	}
	socket.Send("CLOSE", "a") // not before: what is closed is not answered
	go func() {               // the connection stays as long as someone reads
		for _, err := socket.TryNext(); err == nil; _, err = socket.TryNext() {
		}
	}()
	// Another relay: what is there, what comes live, and what it keeps back until the connection is
	// made again.
	p.Serves(s.Pull)
	live := s.NewIssue("live")
	s.Second.Publish(live)
	p.Serves(live)
	// What is missed counts as a gap only where the past has been asked for already.
	await(t, "the relay has been asked for everything", func() bool {
		return slices.ContainsFunc(scrape(t, p.URL)["ngit_sync_relay_connected"], func(r series) bool {
			return r.labels["relay"] == s.Second.URL && r.value == 3
		})
	})
	s.Second.Shut(true)
	s.Second.HangUp()
	missed := s.Guest.At(nostr.Timestamp(time.Now().Add(-5*time.Minute).Unix())).Sign(1621, "missed", s.Owner.Repo(world.Project))
	s.Second.Publish(missed)
	s.Second.Shut(false)
	p.Serves(missed)

	// A client that meets a limit.
	for code := 0; code != http.StatusTooManyRequests; {
		asks, err := http.NewRequest("GET", p.URL+"/no/such/page", nil)
		must(t, err)
		asks.Header.Set("X-Forwarded-For", "192.0.2.1")
		answer, err := http.DefaultClient.Do(asks)
		must(t, err)
		answer.Body.Close()
		code = answer.StatusCode
	}

	page, err := os.ReadFile("../../docs/metrics.md")
	fixture.Must(t, err)
	for name, all := range scrape(t, p.URL) {
		if before, _, _ := strings.Cut(name, "_"); (before == "ngit" || before == "tendril") && !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/metrics.md has no %s", name)
		}
		for _, s := range all {
			// The repositories with the most traffic are what one metric names.
			if labels := fmt.Sprint(s.labels); name != "ngit_git_top_repos_bytes" && (strings.Contains(labels, ann.PubKey) || strings.Contains(labels, ann.Npub)) {
				t.Errorf("an identity is a label of %s: %s", name, labels)
			}
		}
	}
	var wrong []string
	t.Cleanup(func() {
		if len(wrong) > 0 {
			t.Logf("metrics that were looked for in vain:\n%s", strings.Join(wrong, "\n"))
		}
	})
	// A git server is known by its host, without its port.
	wanted := fixture.Rows(strings.NewReplacer("RELAY", s.Second.URL, "DOMAIN", "127.0.0.1", "REPO", ann.Npub+"/mine").Replace(metricsOfThePage))
	await(t, "every metric is there and has moved", func() bool {
		all := scrape(t, p.URL)
		wrong = nil
		for _, want := range wanted {
			if m := missing(want, all); m != "" {
				wrong = append(wrong, m)
			}
		}
		return len(wrong) == 0
	})
	for _, m := range unanswered(queries(t), scrape(t, p.URL)) {
		t.Error(m)
	}
	if promtool := os.Getenv("TENDRIL_PROMTOOL"); promtool != "" {
		_, before := world.Get(t, p.URL+"/metrics")
		_, after := world.Get(t, p.URL+"/metrics")
		askPromtool(t, promtool, queries(t), []string{atFirst, before, after})
	}
}
