package purgatory

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/fetch"
	"tendril.dev/services/purgatory/hunt"
)

// maxDomains bounds the domains that are labels; the rest are counted together.
const maxDomains = 200

// metrics are what is counted of purgatory.
type metrics struct {
	worker *worker

	attempts, requests, released, expired *prometheus.CounterVec
	objects                               prometheus.Counter
	waited                                prometheus.Histogram

	mu      sync.Mutex
	domains map[string]bool
}

var (
	queueDesc    = prometheus.NewDesc("purgatory_sync_queue_size", "Identifiers that are hunted for.", nil, nil)
	heldDesc     = prometheus.NewDesc("purgatory_held", "Events that wait for git data.", []string{"kind"}, nil)
	inFlightDesc = prometheus.NewDesc("purgatory_domain_in_flight", "Requests to a git server under way.", []string{"domain"}, nil)
	shardsDesc   = prometheus.NewDesc("purgatory_shards_held", "Shards that this worker holds.", nil, nil)
)

func newMetrics(reg prometheus.Registerer, w *worker) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		worker: w, domains: map[string]bool{},
		attempts: counter("purgatory_sync_attempts_total", "Fetches from git servers.", "result"),
		requests: counter("purgatory_domain_requests_total", "Fetches by git server.", "domain", "result"),
		released: counter("purgatory_released_total", "Events that left purgatory and are served.", "kind"),
		expired:  counter("purgatory_expired_total", "Events that left purgatory unserved.", "kind"),
		objects:  prometheus.NewCounter(prometheus.CounterOpts{Name: "purgatory_sync_oids_fetched_total", Help: "Wanted objects that fetches brought."}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "purgatory_wait_seconds", Help: "Time that released events spent in purgatory.",
			Buckets: []float64{0.1, 0.5, 1, 2, 5, 10, 30, 60, 180, 600, 1800, 86400}}),
	}
	for _, c := range []prometheus.Collector{m.attempts, m.requests, m.released, m.expired, m.objects, m.waited, m} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// left counts an event that left purgatory.
func (m *metrics) left(kind int, how string, since time.Time) {
	if how != "released" {
		m.expired.WithLabelValues(strconv.Itoa(kind)).Inc()
		return
	}
	m.released.WithLabelValues(strconv.Itoa(kind)).Inc()
	if !since.IsZero() {
		m.waited.Observe(time.Since(since).Seconds())
	}
}

// fetched counts a fetch.
func (m *metrics) fetched(url string, r fetch.Result, err error) {
	result := "ok"
	var failed *fetch.Error
	if errors.As(err, &failed) {
		result = string(failed.Cause)
	} else if err != nil {
		result = "error"
	}
	m.attempts.WithLabelValues(result).Inc()
	m.requests.WithLabelValues(m.domain(hunt.HostOf(url)), result).Inc()
	if err == nil {
		m.objects.Add(float64(len(r.Got)))
	}
}

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

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{queueDesc, heldDesc, inFlightDesc, shardsDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	gauge(queueDesc, m.worker.hunter.Len())
	gauge(shardsDesc, m.worker.shards.Count())
	for _, kind := range []int{nostr.KindAnnouncement, nostr.KindState, nostr.KindPR, nostr.KindPRUpdate} {
		gauge(heldDesc, m.worker.holdings.Count(kind), strconv.Itoa(kind))
	}
	inFlight := map[string]int{} // 0 too: a domain that was asked before does not vanish
	m.mu.Lock()
	for name := range m.domains {
		inFlight[name] = 0
	}
	m.mu.Unlock()
	for name, n := range m.worker.hunter.InFlight() {
		inFlight[m.domain(name)] += n
	}
	for name, n := range inFlight {
		gauge(inFlightDesc, n, name)
	}
}
