package worker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/session"
)

// TestTheLabelIsTheURL: as dashboards have it, and only while the relay is ours.
func TestTheLabelIsTheURL(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m, err := NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"ngit_sync_relay_connected", "ngit_sync_relay_status", "ngit_sync_relay_failures",
		"ngit_sync_connection_attempts_total", "ngit_sync_gap_events_total"}
	of := func(url string) string {
		return fmt.Sprintf(`# HELP ngit_sync_connection_attempts_total Attempts to connect to relays.
# TYPE ngit_sync_connection_attempts_total counter
ngit_sync_connection_attempts_total{relay=%[1]q,result="success"} 1
# HELP ngit_sync_gap_events_total Events that should have come live but were found later.
# TYPE ngit_sync_gap_events_total counter
ngit_sync_gap_events_total{relay=%[1]q} 1
# HELP ngit_sync_relay_connected 0 disconnected, 1 connecting, 2 syncing, 3 connected, 4 connected with failures of historic sync.
# TYPE ngit_sync_relay_connected gauge
ngit_sync_relay_connected{relay=%[1]q} 3
# HELP ngit_sync_relay_failures Failed connections in a row.
# TYPE ngit_sync_relay_failures gauge
ngit_sync_relay_failures{relay=%[1]q} 2
# HELP ngit_sync_relay_status 1 healthy, 2 disconnected, 3 degraded, 4 dead, 5 rate limited.
# TYPE ngit_sync_relay_status gauge
ngit_sync_relay_status{relay=%[1]q} 3
`, url)
	}
	for _, url := range []string{"ws://relay.example.com", "wss://relay.example.com"} { // its scheme changes
		m.set("relay.example.com", url, snapshot{connection: session.Connected, health: health.Degraded, failures: 2})
		m.attempt("relay.example.com", "success")
		m.gap("relay.example.com")
		if err := testutil.GatherAndCompare(reg, strings.NewReader(of(url)), names...); err != nil {
			t.Error(err)
		}
	}
	m.forget("relay.example.com")
	m.gap("relay.example.com")
	m.attempt("relay.example.com", "failure")
	if n, err := testutil.GatherAndCount(reg, names...); err != nil || n != 0 {
		t.Errorf("%d of a relay that is gone, %v", n, err)
	}
}

// TestLabelsOfRelaysAreBounded: beyond the bound relays are counted as others; the sums know them
// all.
func TestLabelsOfRelaysAreBounded(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m, err := NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	name := func(i int) string { return fmt.Sprintf("r%d.example", i) }
	for i := range maxNamed + 5 {
		m.set(name(i), "wss://"+name(i), snapshot{connection: session.Connected, health: health.Dead, naughty: true})
		m.attempt(name(i), "success")
		m.gap(name(i))
	}
	for metric, want := range map[string]int{
		"ngit_sync_relay_connected": maxNamed, "ngit_sync_relay_status": maxNamed, "ngit_sync_relay_failures": maxNamed,
		"ngit_sync_connection_attempts_total": maxNamed + 1, "ngit_sync_gap_events_total": maxNamed + 1,
	} {
		if n, err := testutil.GatherAndCount(reg, metric); err != nil || n != want {
			t.Errorf("%s: %d series, want %d; %v", metric, n, want, err)
		}
	}
	if n := testutil.ToFloat64(m.gaps.WithLabelValues(otherRelays)); n != 5 {
		t.Errorf("%v gaps of other relays", n)
	}
	total := fmt.Sprintf(`# HELP ngit_sync_relays_tracked_total Relays that this worker keeps.
# TYPE ngit_sync_relays_tracked_total gauge
ngit_sync_relays_tracked_total %d
`, maxNamed+5)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(total), "ngit_sync_relays_tracked_total"); err != nil {
		t.Error(err)
	}
	// One goes, and the next new one has its label. What others counted stays.
	m.forget(name(0))
	m.forget(name(maxNamed + 1))
	m.set("new.example", "wss://new.example", snapshot{})
	m.attempt("new.example", "failure")
	if n := testutil.ToFloat64(m.attempts.WithLabelValues("wss://new.example", "failure")); n != 1 {
		t.Errorf("attempts of the new one: %v", n)
	}
	if n := testutil.ToFloat64(m.attempts.WithLabelValues(otherRelays, "success")); n != 5 {
		t.Errorf("attempts of others: %v", n)
	}
}
