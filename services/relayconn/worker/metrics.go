package worker

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/session"
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
	attempts, gaps *prometheus.CounterVec
	synced         prometheus.Counter

	mu     sync.Mutex
	relays map[string]snapshot // by name
	labels map[string]string   // by name
	named  int                 // labels that are not otherRelays
}

// snapshot is how a relay stands.
type snapshot struct {
	connection session.Connection
	health     health.State
	failures   int
	naughty    bool
}

var (
	connectedDesc = prometheus.NewDesc("ngit_sync_relay_connected", "0 disconnected, 1 connecting, 2 syncing, 3 connected, 4 connected with failures of historic sync.", []string{"relay"}, nil)
	statusDesc    = prometheus.NewDesc("ngit_sync_relay_status", "1 healthy, 2 disconnected, 3 degraded, 4 dead, 5 rate limited.", []string{"relay"}, nil)
	failuresDesc  = prometheus.NewDesc("ngit_sync_relay_failures", "Failed connections in a row.", []string{"relay"}, nil)
	trackedDesc   = prometheus.NewDesc("ngit_sync_relays_tracked_total", "Relays that this worker keeps.", nil, nil)
	totalDesc     = prometheus.NewDesc("ngit_sync_relays_connected_total", "Relays that are connected.", nil, nil)
	deadDesc      = prometheus.NewDesc("ngit_sync_relays_dead_total", "Relays that have been failing for a day.", nil, nil)
	naughtyDesc   = prometheus.NewDesc("ngit_sync_naughty_relays_total", "Relays with name, TLS or protocol errors of their own.", nil, nil)
)

// NewMetrics makes and registers the metrics.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ngit_sync_connection_attempts_total", Help: "Attempts to connect to relays."}, []string{"relay", "result"}),
		gaps:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ngit_sync_gap_events_total", Help: "Events that should have come live but were found later."}, []string{"relay"}),
		synced:   prometheus.NewCounter(prometheus.CounterOpts{Name: "ngit_sync_events_synced_total", Help: "Events from relays that are served now and were not before."}),
		relays:   map[string]snapshot{},
		labels:   map[string]string{},
	}
	for _, c := range []prometheus.Collector{m.attempts, m.gaps, m.synced, m} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// set says how the relay stands that has this name and URL.
func (m *Metrics) set(name, url string, s snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.relays[name] = s
	before, had := m.labels[name]
	switch {
	case before == url || had && before == otherRelays:
	case had:
		m.drop(before)
		m.labels[name] = url
	case m.named == maxNamed:
		m.labels[name] = otherRelays
	default:
		m.named++
		m.labels[name] = url
	}
}

// attempt counts an attempt to connect, after set.
func (m *Metrics) attempt(name, result string) { m.count(name, m.attempts, result) }

// gap counts an event that should have come live.
func (m *Metrics) gap(name string) { m.count(name, m.gaps) }

// count counts for a relay. A verdict may come when the relay is no longer ours: then it is not
// counted, because nobody would take the label away again.
func (m *Metrics) count(name string, counter *prometheus.CounterVec, more ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if label, ours := m.labels[name]; ours {
		counter.WithLabelValues(append([]string{label}, more...)...).Inc()
	}
}

func (m *Metrics) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if label, ours := m.labels[name]; ours && label != otherRelays {
		m.named--
		m.drop(label)
	}
	delete(m.relays, name)
	delete(m.labels, name)
}

// drop takes away what was counted under a label.
func (m *Metrics) drop(label string) {
	m.attempts.DeletePartialMatch(prometheus.Labels{"relay": label})
	m.gaps.DeletePartialMatch(prometheus.Labels{"relay": label})
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connectedDesc, statusDesc, failuresDesc, trackedDesc, totalDesc, deadDesc, naughtyDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	connected, dead, naughty := 0, 0, 0
	for name, s := range m.relays {
		if label := m.labels[name]; label != otherRelays {
			gauge(connectedDesc, int(s.connection), label)
			gauge(statusDesc, int(s.health), label)
			gauge(failuresDesc, s.failures, label)
		}
		if s.connection >= session.Syncing {
			connected++
		}
		if s.health == health.Dead {
			dead++
		}
		if s.naughty {
			naughty++
		}
	}
	gauge(trackedDesc, len(m.relays))
	gauge(totalDesc, connected)
	gauge(deadDesc, dead)
	gauge(naughtyDesc, naughty)
}
