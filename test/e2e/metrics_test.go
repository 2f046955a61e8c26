package e2e

import (
	"fmt"
	"maps"
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
	if err != nil {
		t.Fatal(err)
	}
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

// wantMetric is a metric of docs/metrics.md: its labels, and values of them that must have moved
// from zero after the traffic of the test. still: it may be zero then.
type wantMetric struct {
	name   string
	labels []string
	values []string // of the labels, "kind=30617 reason=…" each; empty: any
	still  bool
}

func (w wantMetric) missing(all map[string][]series) string {
	found := all[w.name]
	if len(found) == 0 {
		return w.name + " is not there"
	}
	for _, s := range found {
		if got := slices.Sorted(maps.Keys(s.labels)); !slices.Equal(got, w.labels) {
			return fmt.Sprintf("%s has the labels %v, want %v", w.name, got, w.labels)
		}
	}
	values := w.values
	if len(values) == 0 {
		values = []string{""}
	}
	for _, want := range values {
		if !slices.ContainsFunc(found, func(s series) bool {
			for _, pair := range strings.Fields(want) {
				name, value, _ := strings.Cut(pair, "=")
				if s.labels[name] != value {
					return false
				}
			}
			return w.still || s.value != 0
		}) {
			return fmt.Sprintf("%s{%s} has not moved", w.name, want)
		}
	}
	return ""
}

// metricsOfThePage are all metrics that dashboards use, with those that it names without a name.
// relay is the URL of a relay that is connected.
func metricsOfThePage(relay, domain, repo string) []wantMetric {
	of := func(labels ...string) []string { return labels }
	relayLabel := of("relay")
	return []wantMetric{
		{name: "ngit_sync_relay_connected", labels: relayLabel, values: of("relay=" + relay)},
		{name: "ngit_sync_relay_status", labels: relayLabel, values: of("relay=" + relay)},
		{name: "ngit_sync_relay_failures", labels: relayLabel, still: true},
		{name: "ngit_sync_connection_attempts_total", labels: of("relay", "result"), values: of("relay="+relay+" result=success", "result=failure")},
		{name: "ngit_sync_events_total", labels: of("source"), values: of("source=direct", "source=live", "source=startup", "source=reconnect")},
		{name: "ngit_sync_events_synced_total"},
		{name: "ngit_sync_gap_events_total", labels: relayLabel, values: of("relay=" + relay)},
		{name: "ngit_sync_relays_tracked_total"},
		{name: "ngit_sync_relays_connected_total"},
		{name: "ngit_sync_relays_dead_total", still: true},
		{name: "ngit_sync_naughty_relays_total", still: true},
		{name: "ngit_sync_rejected_hot_cache_current"},
		{name: "ngit_sync_rejected_cold_index_current"},
		{name: "ngit_sync_rejected_invalidated_total"},
		{name: "ngit_events_received_total", labels: of("kind"), values: of("kind=30617", "kind=30618", "kind=other")},
		{name: "ngit_events_stored_total", labels: of("kind"), values: of("kind=30617", "kind=1621")},
		{name: "ngit_events_rejected_total", labels: of("kind", "reason"), values: of("kind=1621")},
		{name: "ngit_git_operations_total", labels: of("operation", "result", "status"), values: of(
			"operation=info_refs status=success", "operation=upload_pack status=success", "operation=receive_pack status=success",
			"operation=clone result=ok status=success", "operation=fetch result=ok status=success", "operation=push result=ok status=success",
			"operation=push status=error")},
		{name: "ngit_git_operation_duration_seconds", labels: of("operation"), values: of("operation=clone", "operation=receive_pack")},
		{name: "ngit_git_bytes_total", labels: of("direction"), values: of("direction=in", "direction=out")},
		{name: "ngit_git_push_authorization_total", labels: of("result"), values: of("result=allowed", "result=denied")},
		{name: "ngit_git_top_repos_bytes", labels: of("repo"), values: of("repo=" + repo)},
		{name: "ngit_repositories_total"},
		{name: "ngit_websocket_connections_active"},
		{name: "ngit_websocket_connections_total"},
		{name: "ngit_websocket_connection_duration_seconds"},
		{name: "ngit_websocket_messages_received_total", labels: of("type"), values: of("type=EVENT", "type=REQ", "type=CLOSE", "type=COUNT", "type=other")},
		{name: "ngit_websocket_messages_sent_total", labels: of("type"), values: of("type=EVENT", "type=EOSE", "type=OK", "type=NOTICE", "type=COUNT")},
		{name: "ngit_websocket_unique_ips"},
		{name: "ngit_websocket_flagged_abusers", still: true},
		{name: "ngit_build_info", labels: of("commit", "goversion", "version")},
		{name: "ngit_uptime_seconds"},
		{name: "purgatory_sync_queue_size", still: true},
		{name: "purgatory_sync_attempts_total", labels: of("result"), values: of("result=ok")},
		{name: "purgatory_sync_oids_fetched_total"},
		{name: "purgatory_domain_in_flight", labels: of("domain"), still: true},
		{name: "purgatory_domain_requests_total", labels: of("domain", "result"), values: of("domain=" + domain + " result=ok")},
		{name: "purgatory_held", labels: of("kind"), values: of("kind=30617")},
		{name: "purgatory_released_total", labels: of("kind"), values: of("kind=30617", "kind=30618", "kind=1618")},
		{name: "purgatory_expired_total", labels: of("kind"), values: of("kind=30618")},
		{name: "purgatory_wait_seconds"},
		{name: "ngit_ingest_event_to_served_seconds"},
		{name: "purgatory_shards_held"},
		{name: "tendril_projection_lag", labels: of("projection"), still: true, values: of("projection=index", "projection=ingest_held",
			"projection=ingest_rejected", "projection=discovery_held", "projection=discovery_targets", "projection=purgatory_held", "projection=relayconn_targets")},
		{name: "ngit_ingest_commit_events"},
		{name: "ngit_ingest_commit_duration_seconds"},
		{name: "ngit_ingest_candidates_pending", labels: of("lane"), still: true, values: of("lane=user", "lane=release", "lane=sync")},
	}
}

// TestEveryMetricOfThePage: after some of everything that a server goes through, each metric of
// docs/metrics.md is there with its labels and has moved. None can vanish unseen.
func TestEveryMetricOfThePage(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.First.URL + ",ws://127.0.0.1:1",
		"NGIT_REJECTED_HOT_CACHE_DURATION_SECS": "3600"})
	ann, work := fixture.NewPerson(), world.NewWorkTree(t)
	remote := p.URL + "/" + ann.Npub + "/mine.git"

	// A user: too early, then announced; a state that a newer one overtakes; pushes that are
	// refused and taken; a clone, a fetch, and something that waits still.
	early := ann.State("mine", work.Refs())
	if ok, message := submit(t, p, early); ok || !strings.Contains(message, "no announcement") {
		t.Errorf("a state before its announcement: %v %s", ok, message)
	}
	wantHeld(t, p, ann.Announce("mine"))
	wantHeld(t, p, ann.At(nostr.Now()-60).Sign(30618, "", nostr.Tag{"d", "mine"}, nostr.Tag{"refs/heads/main", strings.Repeat("a", 40)}),
		ann.State("mine", work.Refs()))
	if out, err := world.TryGit(t, work.Dir, "push", "-q", remote, "main:refs/heads/other"); err == nil {
		t.Errorf("a push that no state allows: %s", out)
	}
	world.Git(t, work.Dir, "push", "-q", remote, "main")
	clone := filepath.Join(t.TempDir(), "clone")
	world.Git(t, t.TempDir(), "clone", "-q", remote, clone)
	work.Commit("more")
	wantHeld(t, p, ann.At(nostr.Now()+1).Sign(30618, "", nostr.Tag{"d", "mine"}, nostr.Tag{"HEAD", "ref: refs/heads/main"}, nostr.Tag{"refs/heads/main", work.Refs()["refs/heads/main"]}))
	world.Git(t, work.Dir, "push", "-q", remote, "main")
	world.Git(t, clone, "fetch", "-q")
	wantHeld(t, p, ann.Announce("waiting"))
	if ok, message := submit(t, p, s.Guest.Sign(7777, "what is this")); ok {
		t.Errorf("an event about nothing here: %s", message)
	}
	if ok, _ := submit(t, p, ann.State("nothing", work.Refs())); ok {
		t.Error("a state of no repository is taken")
	}
	if ok, _ := submit(t, p, s.Guest.Sign(1621, "about nothing", ann.Repo("nothing"))); ok {
		t.Error("an issue of no repository is taken")
	}

	// A nostr client, with everything that it may say.
	socket := world.Dial(t, p.Relay())
	socket.Send("REQ", "a", map[string]any{"kinds": []int{30617}})
	socket.Send("COUNT", "b", map[string]any{"kinds": []int{30617}})
	socket.SendText(`["WHAT"]`)
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
	world.Serves(t, p.Relay(), s.Pull)
	live := s.NewIssue("live")
	s.Second.Publish(live)
	world.Serves(t, p.Relay(), live)
	s.Second.Shut(true)
	s.Second.HangUp()
	missed := s.Guest.At(nostr.Timestamp(time.Now().Add(-5*time.Minute).Unix())).Sign(1621, "missed", s.Owner.Repo(world.Project))
	s.Second.Publish(missed)
	s.Second.Shut(false)
	world.Serves(t, p.Relay(), missed)

	for name, all := range scrape(t, p.URL) {
		for _, s := range all {
			// The repositories with the most traffic are what one metric names.
			if labels := fmt.Sprint(s.labels); name != "ngit_git_top_repos_bytes" && (strings.Contains(labels, ann.PubKey) || strings.Contains(labels, ann.Npub)) {
				t.Errorf("an identity is a label of %s: %s", name, labels)
			}
		}
	}
	var missing []string
	t.Cleanup(func() {
		if len(missing) > 0 {
			t.Logf("metrics that were looked for in vain:\n%s", strings.Join(missing, "\n"))
		}
	})
	// A git server is known by its host, without its port.
	wanted := metricsOfThePage(s.Second.URL, "127.0.0.1", ann.Npub+"/mine")
	fixture.Await(t, "every metric is there and has moved", func() bool {
		all := scrape(t, p.URL)
		missing = nil
		for _, w := range wanted {
			if m := w.missing(all); m != "" {
				missing = append(missing, m)
			}
		}
		return len(missing) == 0
	})
}
