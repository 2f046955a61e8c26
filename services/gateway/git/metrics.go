package git

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// How waiting for a worker ends, and why a request is sent again, as labels. There are no others.
const (
	waitServed  = "served"  // a worker took the request
	waitLate    = "late"    // there was none in time
	waitCrowded = "crowded" // there was no place to wait
	waitGone    = "gone"    // the client went away, or the request failed

	repeatMoved       = "moved"       // the worker does not hold the shard any more, or not yet
	repeatUnreachable = "unreachable" // the worker has stopped or died
)

// Metrics are what is counted of requests that find no worker at once.
type Metrics struct {
	waiting prometheus.Gauge
	waits   *prometheus.HistogramVec
	repeats *prometheus.CounterVec
}

// NewMetrics makes and registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tendril_gateway_git_waiting",
			Help: "Git requests that wait for a worker that holds their repository."}),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tendril_gateway_git_wait_seconds",
			Help:    "How long git requests waited for a worker, of those that had to.",
			Buckets: prometheus.ExponentialBuckets(0.02, 2.5, 10)}, []string{"result"}),
		repeats: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tendril_gateway_git_repeats_total",
			Help: "Git requests that were sent again, because a worker did not take them."}, []string{"reason"}),
	}
	for _, c := range []prometheus.Collector{m.waiting, m.waits, m.repeats} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// repeated counts a request that is sent again because of err.
func (m *Metrics) repeated(err error) {
	reason := repeatUnreachable
	if errors.Is(err, errNobody) {
		reason = repeatMoved
	}
	m.repeats.WithLabelValues(reason).Inc()
}
