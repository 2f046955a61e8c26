package obs

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Rejections is the counter of rejected events by kind and reason, which the gateway and ingest
// share where they run in one process.
func Rejections(r prometheus.Registerer) (*prometheus.CounterVec, error) {
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ngit_events_rejected_total", Help: "Events rejected."}, []string{"kind", "reason"})
	err := r.Register(counter)
	if known := new(prometheus.AlreadyRegisteredError); errors.As(err, known) {
		if counter, ok := known.ExistingCollector.(*prometheus.CounterVec); ok {
			return counter, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return counter, nil
}
