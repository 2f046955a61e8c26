package relayconn

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

const (
	// maxNamed bounds the relays that are labels: strangers write which relays there are.
	maxNamed = 1000
	// otherRelays is the label under which the others are counted. How each of them stands is not
	// told.
	otherRelays = "other"
)

// Metrics are the metrics of a worker's relays (docs/metrics.md). A relay's label is its URL. It
// is there only while this worker has the relay.
type Metrics struct {
	attempts, gaps              *prometheus.CounterVec
	connected, status, failures *prometheus.GaugeVec
	synced                      prometheus.Counter
	notTaken, refusals          *prometheus.CounterVec

	mu     sync.Mutex
	relays map[string]snapshot // by name
}

// snapshot is how a relay stands.
type snapshot struct {
	label      string
	connection session.Connection
	health     health.State
	failures   int
	naughty    netguard.Cause // why it is on the naughty list; none: it is not
}

// NewMetrics makes and registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: "ngit_sync_" + name, Help: help}, labels)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return with.NewGaugeVec(prometheus.GaugeOpts{Name: "ngit_sync_relay_" + name, Help: help}, []string{"relay"})
	}
	m := &Metrics{
		attempts: counter("connection_attempts_total", "Attempts to connect to relays.", "relay", "result"),
		gaps:     counter("gap_events_total", "Events that should have come live but were found later.", "relay"),
		notTaken: counter("events_not_taken_total", "What relays sent and ingest did not get, or rejected, and why.",
			"reason"),
		refusals: counter("policy_refusals_total", "Requests that relays refused for good.", "category"),
		connected: gauge("connected",
			"0 disconnected, 1 connecting, 2 syncing, 3 connected, 4 connected with failures of historic sync."),
		status:   gauge("status", "1 healthy, 2 disconnected, 3 degraded, 4 dead, 5 rate limited, 6 policy limited."),
		failures: gauge("failures", "Failed connections in a row."),
		synced: with.NewCounter(prometheus.CounterOpts{Name: "ngit_sync_events_synced_total",
			Help: "Events from relays that are served now and were not before."}),
		relays: map[string]snapshot{},
	}
	for _, category := range wire.PolicyCategories {
		m.refusals.WithLabelValues(category)
	}
	sum := func(name, help string, labels prometheus.Labels, counts func(snapshot) bool) {
		opts := prometheus.GaugeOpts{Name: "ngit_sync_" + name, Help: help, ConstLabels: labels}
		with.NewGaugeFunc(opts, func() (n float64) {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, s := range m.relays {
				if counts(s) {
					n++
				}
			}
			return n
		})
	}
	sum("relays_tracked_total", "Relays that this worker keeps.", nil, func(snapshot) bool { return true })
	sum("relays_connected_total", "Relays that are connected.", nil,
		func(s snapshot) bool { return s.connection >= session.Syncing })
	sum("relays_dead_total", "Relays that have been failing for a day.", nil,
		func(s snapshot) bool { return s.health == health.Dead })
	for _, cause := range []netguard.Cause{netguard.CauseDNS, netguard.CauseTLS, netguard.CauseProtocol} {
		sum("naughty_relays_total", "Relays with name, TLS or protocol errors of their own.",
			prometheus.Labels{"category": string(cause)}, func(s snapshot) bool { return s.naughty == cause })
	}
	return m
}

// set says how the relay of that name stands. Its label is the one of the first time.
func (m *Metrics) set(name string, s snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, had := m.relays[name]; had {
		s.label = old.label
	} else if len(m.relays) >= maxNamed {
		s.label = otherRelays
	}
	m.relays[name] = s
	if s.label != otherRelays {
		m.connected.WithLabelValues(s.label).Set(float64(s.connection))
		m.status.WithLabelValues(s.label).Set(float64(s.health))
		m.failures.WithLabelValues(s.label).Set(float64(s.failures))
	}
}

// count counts for a relay. A verdict may come when the relay is no longer ours: then it is not
// counted, because nothing would take the label away again.
func (m *Metrics) count(name string, counter *prometheus.CounterVec, more ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, ours := m.relays[name]; ours {
		counter.WithLabelValues(append([]string{s.label}, more...)...).Inc()
	}
}

func (m *Metrics) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	label := prometheus.Labels{"relay": m.relays[name].label}
	if delete(m.relays, name); label["relay"] == otherRelays {
		return
	}
	for _, v := range []interface{ DeletePartialMatch(prometheus.Labels) int }{m.attempts, m.gaps, m.connected, m.status,
		m.failures} {
		v.DeletePartialMatch(label)
	}
}
