package intake

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count what is verified. A nil *Metrics counts nothing.
type Metrics struct {
	verified *prometheus.CounterVec
	copies   prometheus.Counter
	stored   prometheus.Counter
}

// NewMetrics makes and registers the metrics.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		verified: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ngit_sync_events_verified_total", Help: "Events from relays that were verified, and how: genuine, or with a wrong id or signature.",
		}, []string{"result"}),
		copies: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ngit_sync_event_copies_total", Help: "Events from relays that were on their way from another relay already, and were not verified and offered again.",
		}),
		stored: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ngit_sync_events_known_total", Help: "Events from relays of which another process said that they are accepted already; they were not verified and offered again.",
		}),
	}
	for _, c := range []prometheus.Collector{m.verified, m.copies, m.stored} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) checked(result string) {
	if m != nil {
		m.verified.WithLabelValues(result).Inc()
	}
}

func (m *Metrics) copied() {
	if m != nil {
		m.copies.Inc()
	}
}

func (m *Metrics) known() {
	if m != nil {
		m.stored.Inc()
	}
}
