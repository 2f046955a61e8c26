package writer

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/obs"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// Metrics are what the writer counts. A stranger chooses the kinds of events, so that only known
// ones are labels.
type Metrics struct {
	writer        prometheus.Gauge
	fenced        prometheus.Counter
	stored        *prometheus.CounterVec
	rejections    *prometheus.CounterVec
	evicted       *prometheus.CounterVec
	synced        *prometheus.CounterVec
	hot, cold     prometheus.Gauge
	invalidated   prometheus.Counter
	batchSize     prometheus.Histogram
	batchDuration prometheus.Histogram
	queue         *prometheus.GaugeVec
	served        prometheus.Histogram
}

// NewMetrics makes and registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	rejections, err := obs.Rejections(r)
	if err != nil {
		return nil, err
	}
	m := &Metrics{
		writer: gauge("ngit_ingest_writer", "1 if this replica writes the log, 0 if it stands by."),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{Name: "ngit_ingest_fenced_total",
			Help: "Commits that were refused because another writer had moved the head."}),
		stored:     counter("ngit_events_stored_total", "Events accepted into the log.", "kind"),
		rejections: rejections,
		evicted:    counter("ngit_ingest_evicted_total", "Held events dropped to make room for others.", "kind"),
		synced:     counter("ngit_sync_events_total", "New events, accepted or held, by where they came from.", "source"),
		hot:        gauge("ngit_sync_rejected_hot_cache_current", "Rejected events that are kept whole for a moment, in case what they miss arrives."),
		cold:       gauge("ngit_sync_rejected_cold_index_current", "Ids of rejected events that are remembered."),
		invalidated: prometheus.NewCounter(prometheus.CounterOpts{Name: "ngit_sync_rejected_invalidated_total",
			Help: "Remembered rejections taken back because what they missed has arrived."}),
		batchSize: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "ngit_ingest_commit_events",
			Help: "Candidates decided in one commit.", Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}}),
		batchDuration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "ngit_ingest_commit_duration_seconds",
			Help: "Time of one commit.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		queue: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "ngit_ingest_candidates_pending",
			Help: "Packs of candidates that wait behind the last one fetched."}, []string{"lane"}),
		served: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "ngit_ingest_event_to_served_seconds",
			Help: "Time from an event's arrival on the bus to its being served, its time in purgatory included.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 25)}),
	}
	for _, c := range []prometheus.Collector{m.writer, m.fenced, m.stored, m.evicted, m.synced, m.hot, m.cold, m.invalidated,
		m.batchSize, m.batchDuration, m.queue, m.served} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) decided(x *decided, now time.Time) {
	kind := x.candidate.Event.Kind
	switch x.decision.Outcome {
	case proto.Accepted:
		m.stored.WithLabelValues(obs.KindLabel(kind)).Inc()
		if !x.arrived.IsZero() {
			m.served.Observe(now.Sub(x.arrived).Seconds())
		}
	case proto.Rejected:
		m.rejected(kind, x.decision.Reason)
		return
	case proto.HeldBack:
	default:
		return
	}
	if x.candidate.Source != proto.SourceRelease {
		m.synced.WithLabelValues(string(x.candidate.Source)).Inc()
	}
}

func (m *Metrics) rejected(kind int, reason policy.Reason) {
	m.rejections.WithLabelValues(obs.KindLabel(kind), string(reason)).Inc()
}

func (m *Metrics) commits(candidates int, took time.Duration) {
	m.batchSize.Observe(float64(candidates))
	m.batchDuration.Observe(took.Seconds())
}

func (m *Metrics) pending(lane string, n uint64) { m.queue.WithLabelValues(lane).Set(float64(n)) }

func (m *Metrics) observeMemory(hot, cold int) {
	m.hot.Set(float64(hot))
	m.cold.Set(float64(cold))
}
