package smarthttp

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/nostr"
)

// Operations, results, states and directions as labels. There are no others. Requests are counted
// as what they ask git for, and what their user does once more in the user's words, as dashboards
// of GRASP servers have it.
const (
	operationRefs  = "info_refs"
	operationFetch = "upload_pack"
	operationPush  = "receive_pack"

	userClones  = "clone" // a pack is fetched by someone who has nothing
	userFetches = "fetch" // a pack is fetched by someone who has something
	userPushes  = "push"  // references are pushed

	resultOK      = "ok"
	resultError   = "error"   // git failed, ours or for what the client sent
	resultRefused = "refused" // not authorised, or not acceptable
	resultBusy    = "busy"    // no free git process, or no room for one more request
	resultLimited = "limited" // the client has its share already
	resultSlow    = "slow"    // the client sent or took too slowly
	resultGone    = "gone"    // the client went away
	resultMoved   = "moved"   // passed on to the worker that holds the repository by now

	statusSuccess = "success" // result ok
	statusError   = "error"   // any other

	authorized    = "allowed"
	authorRefused = "denied"
	authorError   = "error"

	sent     = "out"
	received = "in"
)

// Metrics are what is counted of git requests.
type Metrics struct {
	operations *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	bytes      *prometheus.CounterVec
	pushes     *prometheus.CounterVec
	traffic    *traffic
}

func newMetrics(topRepos int) *Metrics {
	return &Metrics{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ngit_git_operations_total",
			Help: "Git requests answered, and what users did by them."}, []string{"operation", "result", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "ngit_git_operation_duration_seconds",
			Help: "Time of a git request.", Buckets: prometheus.ExponentialBuckets(0.005, 2.5, 13)}, []string{"operation"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ngit_git_bytes_total",
			Help: "Bytes of bodies exchanged with git clients."}, []string{"direction"}),
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ngit_git_push_authorization_total",
			Help: "Pushes by whether they were authorised."}, []string{"result"}),
		traffic: newTraffic(topRepos),
	}
}

// NewMetrics makes and registers the metrics. The topRepos repositories with the most traffic are
// named.
func NewMetrics(r prometheus.Registerer, topRepos int) (*Metrics, error) {
	m := newMetrics(topRepos)
	for _, c := range []prometheus.Collector{m.operations, m.duration, m.bytes, m.pushes, m.traffic} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register git metrics: %w", err)
		}
	}
	return m, nil
}

// operation counts a request, or what a user did by one.
func (m *Metrics) operation(name, result string, took time.Duration) {
	status := statusError
	if result == resultOK {
		status = statusSuccess
	}
	m.operations.WithLabelValues(name, result, status).Inc()
	m.duration.WithLabelValues(name).Observe(took.Seconds())
}

// transferred counts bytes exchanged over a repository that there is. Those of the zero reference
// are nobody's in particular.
func (m *Metrics) transferred(ref nostr.RepoRef, direction string, n int) {
	m.bytes.WithLabelValues(direction).Add(float64(n))
	m.traffic.add(ref, n)
}
