package purgatory

import (
	"cmp"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/fetch"
)

// maxDomains bounds the domains that are labels; the rest are counted together.
const maxDomains = 200

// metrics are what is counted of purgatory.
type metrics struct {
	attempts, requests, released, expired *prometheus.CounterVec
	objects                               prometheus.Counter
	waited                                prometheus.Histogram
	inFlight                              *prometheus.GaugeVec

	mu      sync.Mutex
	domains map[string]bool
}

func newMetrics(reg prometheus.Registerer, w *worker) *metrics {
	made := promauto.With(reg)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return made.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels prometheus.Labels, value func() int) {
		made.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value()) })
	}
	gauge("purgatory_sync_queue_size", "Identifiers that are hunted for.", nil, w.schedule.hunter.Len)
	gauge("purgatory_shards_held", "Shards that this worker holds.", nil, w.shards.Count)
	for _, kind := range nostr.KindsThat(func(k nostr.Kind) bool { return k.Waits }) {
		gauge("purgatory_held", "Events that wait for git data.", prometheus.Labels{"kind": strconv.Itoa(kind)},
			func() int { return w.knowledge.holdings.Count(kind) })
	}
	return &metrics{
		domains:  map[string]bool{},
		attempts: counter("purgatory_sync_attempts_total", "Fetches from git servers.", "result"),
		requests: counter("purgatory_domain_requests_total", "Fetches by git server.", "domain", "result"),
		released: counter("purgatory_released_total", "Events that left purgatory and are served.", "kind"),
		expired:  counter("purgatory_expired_total", "Events that left purgatory unserved.", "kind"),
		objects: made.NewCounter(prometheus.CounterOpts{Name: "purgatory_sync_oids_fetched_total",
			Help: "Wanted objects that fetches brought."}),
		waited: made.NewHistogram(prometheus.HistogramOpts{Name: "purgatory_wait_seconds",
			Help:    "Time that released events spent in purgatory.",
			Buckets: []float64{0.1, 0.5, 1, 2, 5, 10, 30, 60, 180, 600, 1800, 86400}}),
		inFlight: made.NewGaugeVec(prometheus.GaugeOpts{Name: "purgatory_domain_in_flight",
			Help: "Requests to a git server under way."}, []string{"domain"}),
	}
}

// fetched counts a fetch.
func (m *metrics) fetched(domain string, r fetch.Result, err error) {
	result := cmp.Or(string(fetch.Classify(err)), "ok")
	m.attempts.WithLabelValues(result).Inc()
	m.requests.WithLabelValues(domain, result).Inc()
	if err == nil {
		m.objects.Add(float64(len(r.Got)))
	}
}

// domain is the label for a git server.
func (m *metrics) domain(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.domains[name] {
		if len(m.domains) == maxDomains {
			return "other"
		}
		m.domains[name] = true
	}
	return name
}
