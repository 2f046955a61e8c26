package relayconn

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/session"
)

// TestLabelsOfRelays: each is the URL, is there only while the relay is ours, and beyond a bound
// relays are counted as others; the sums know them all.
func TestLabelsOfRelays(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	name := func(i int) string { return fmt.Sprintf("r%d.example", i) }
	for i := range maxNamed + 5 {
		m.set(name(i), snapshot{label: "wss://" + name(i), connection: session.Connected, health: health.Degraded, failures: 2})
		m.count(name(i), m.attempts, "success")
		m.count(name(i), m.gaps)
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
	for v, want := range map[*prometheus.GaugeVec]float64{m.connected: 3, m.status: 3, m.failures: 2} {
		if got := testutil.ToFloat64(v.WithLabelValues("wss://" + name(7))); got != want {
			t.Errorf("a gauge is %v, want %v", got, want)
		}
	}
	for i := range maxNamed + 5 {
		m.forget(name(i))
		m.count(name(i), m.gaps) // a late verdict
	}
	if n, err := testutil.GatherAndCount(reg, "ngit_sync_relay_connected", "ngit_sync_relay_status", "ngit_sync_relay_failures", "ngit_sync_gap_events_total"); err != nil || n != 1 {
		t.Errorf("%d series of relays that are gone, want that of the others; %v", n, err)
	}
}
