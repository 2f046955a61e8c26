package smarthttp

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Operations, results and directions as labels. There are no others.
const (
	operationRefs  = "info_refs"
	operationFetch = "upload_pack"
	operationPush  = "receive_pack"

	resultOK      = "ok"
	resultError   = "error"   // git failed, ours or for what the client sent
	resultRefused = "refused" // not authorised, or not acceptable
	resultBusy    = "busy"    // no free git process, or no room for one more request
	resultLimited = "limited" // the client has its share already
	resultSlow    = "slow"    // the client sent or took too slowly
	resultGone    = "gone"    // the client went away

	authorized    = "authorized"
	authorRefused = "refused"
	authorError   = "error"

	sent     = "sent"
	received = "received"
)

// Metrics are what is counted of git requests (spec/operations.md).
type Metrics struct {
	operations *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	bytes      *prometheus.CounterVec
	pushes     *prometheus.CounterVec
}

func newMetrics() *Metrics {
	return &Metrics{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ngit_git_operations_total",
			Help: "Git requests answered."}, []string{"operation", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "ngit_git_operation_duration_seconds",
			Help: "Time of a git request.", Buckets: prometheus.ExponentialBuckets(0.005, 2.5, 13)}, []string{"operation"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ngit_git_bytes_total",
			Help: "Bytes of bodies exchanged with git clients."}, []string{"direction"}),
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ngit_git_push_authorization_total",
			Help: "Pushes by whether they were authorised."}, []string{"result"}),
	}
}

// NewMetrics makes and registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := newMetrics()
	for _, c := range []prometheus.Collector{m.operations, m.duration, m.bytes, m.pushes} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register git metrics: %w", err)
		}
	}
	return m, nil
}
