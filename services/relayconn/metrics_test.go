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
	series := func(want int, names ...string) {
		t.Helper()
		if n, err := testutil.GatherAndCount(reg, names...); err != nil || n != want {
			t.Errorf("%v: %d series, want %d; %v", names, n, want, err)
		}
	}
	series(3*maxNamed, "ngit_sync_relay_connected", "ngit_sync_relay_status", "ngit_sync_relay_failures")
	series(2*maxNamed+2, "ngit_sync_connection_attempts_total", "ngit_sync_gap_events_total")
	if n := testutil.ToFloat64(m.gaps.WithLabelValues(otherRelays)); n != 5 {
		t.Errorf("%v gaps of other relays", n)
	}
	if n := metric(t, reg, "ngit_sync_relays_tracked_total"); n != maxNamed+5 {
		t.Errorf("%v relays are counted", n)
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
	series(1, "ngit_sync_relay_connected", "ngit_sync_relay_status", "ngit_sync_relay_failures", "ngit_sync_gap_events_total")
}
