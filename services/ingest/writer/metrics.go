package writer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"tendril.dev/lib/obs"
	"tendril.dev/proto"
)

// metrics are what the writer counts. A stranger chooses the kinds of events, so that only known
// ones are labels.
type metrics struct {
	writer        prometheus.Gauge
	fenced        prometheus.Counter
	stored        *prometheus.CounterVec
	rejections    *prometheus.CounterVec
	passedOn      *prometheus.CounterVec
	evicted       *prometheus.CounterVec
	synced        *prometheus.CounterVec
	parked        parkMetrics
	invalidated   *prometheus.CounterVec
	batchSize     prometheus.Histogram
	batchDuration prometheus.Histogram
	queue         *prometheus.GaugeVec
	served        prometheus.Histogram
}

// newMetrics makes and registers the metrics.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	rejections, err := obs.Rejections(r)
	if err != nil {
		return nil, err
	}
	with := promauto.With(r)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &metrics{
		rejections: rejections,
		writer: with.NewGauge(prometheus.GaugeOpts{Name: "ngit_ingest_writer",
			Help: "1 if this replica writes the log, 0 if it stands by."}),
		fenced: counter("ngit_ingest_fenced_total",
			"Commits that were refused because another writer had moved the head.").WithLabelValues(),
		stored: counter("ngit_events_stored_total", "Events accepted into the log.", "kind"),
		passedOn: counter("ngit_events_passed_on_total",
			"Ephemeral events that subscribers were told of, and that are not stored.", "kind"),
		evicted: counter("ngit_ingest_evicted_total", "Held events dropped to make room for others.", "kind"),
		synced:  counter("ngit_sync_events_total", "New events, accepted or held, by where they came from.", "source"),
		parked:  newParkMetrics(r),
		invalidated: counter("ngit_sync_rejected_invalidated_total",
			"Remembered rejections taken back because what they missed has arrived.", "event_type"),
		batchSize: with.NewHistogram(prometheus.HistogramOpts{Name: "ngit_ingest_commit_events",
			Help: "Candidates decided in one commit.", Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}}),
		batchDuration: with.NewHistogram(prometheus.HistogramOpts{Name: "ngit_ingest_commit_duration_seconds",
			Help: "Time of one commit.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		queue: with.NewGaugeVec(prometheus.GaugeOpts{Name: "ngit_ingest_candidates_pending",
			Help: "Packs of candidates that wait behind the last one fetched."}, []string{"lane"}),
		served: with.NewHistogram(prometheus.HistogramOpts{Name: "ngit_ingest_event_to_served_seconds",
			Help:    "Time from an event's arrival on the bus to its being served, its time in purgatory included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 25)}),
	}, nil
}

func (m *metrics) decided(x *decided, now time.Time) {
	kind := obs.KindLabel(x.candidate.Event.Kind)
	switch x.decision.Outcome {
	case proto.Accepted:
		m.stored.WithLabelValues(kind).Inc()
		if !x.arrived.IsZero() {
			m.served.Observe(now.Sub(x.arrived).Seconds())
		}
	case proto.Rejected:
		m.rejections.WithLabelValues(kind, x.decision.Reason).Inc()
		return
	case proto.PassedOn:
		m.passedOn.WithLabelValues(kind).Inc()
		return
	case proto.HeldBack:
	default:
		return
	}
	if x.candidate.Source != proto.SourceRelease {
		m.synced.WithLabelValues(string(x.candidate.Source)).Inc()
	}
}
