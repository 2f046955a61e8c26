package githttp

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"tendril.dev/lib/nostr"
)

// Results as labels. Requests are counted as what they ask git for (info_refs, upload_pack,
// receive_pack), and what their user does once more in the user's words, as dashboards of GRASP
// servers have it: clone (of all), fetch (of more) and push.
const (
	resultOK      = "ok"
	resultError   = "error"   // git failed, ours or for what the client sent
	resultRefused = "refused" // not authorised, or not acceptable
	resultBusy    = "busy"    // no free git process, or no room for one more request
	resultLimited = "limited" // the client has its share already
	resultSlow    = "slow"    // the client sent or took too slowly
	resultGone    = "gone"    // the client went away
	resultMoved   = "moved"   // passed on to the worker that holds the repository by now
)

// Metrics are what is counted of git requests.
type Metrics struct {
	operations *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	bytes      *prometheus.CounterVec
	pushes     *prometheus.CounterVec
	traffic    *traffic
}

// NewMetrics makes and registers the metrics. The topRepos repositories with the most traffic are
// named.
func NewMetrics(r prometheus.Registerer, topRepos int) *Metrics {
	register := promauto.With(r)
	m := &Metrics{
		operations: register.NewCounterVec(prometheus.CounterOpts{Name: "ngit_git_operations_total",
			Help: "Git requests answered, and what users did by them."}, []string{"operation", "result", "status"}),
		duration: register.NewHistogramVec(prometheus.HistogramOpts{Name: "ngit_git_operation_duration_seconds",
			Help: "Time of a git request.", Buckets: prometheus.ExponentialBuckets(0.005, 2.5, 13)}, []string{"operation"}),
		bytes: register.NewCounterVec(prometheus.CounterOpts{Name: "ngit_git_bytes_total",
			Help: "Bytes of bodies exchanged with git clients."}, []string{"direction"}),
		pushes: register.NewCounterVec(prometheus.CounterOpts{Name: "ngit_git_push_authorization_total",
			Help: "Pushes by whether they were authorised."}, []string{"result"}),
		traffic: &traffic{top: topRepos, bytes: map[nostr.RepoRef]uint64{}},
	}
	r.MustRegister(m.traffic)
	return m
}

// count counts a request as what it asks git for, and as what its user does.
func (x *exchange) count(result string, operations ...string) {
	status := "error"
	if result == resultOK {
		status = "success"
	}
	for _, operation := range operations {
		x.Metrics.operations.WithLabelValues(operation, result, status).Inc()
		x.Metrics.duration.WithLabelValues(operation).Observe(time.Since(x.began).Seconds())
	}
}

// transferred counts bytes that a request exchanged. Of contributors' repositories anybody may name
// any: they would crowd out the others, and are counted together.
func (x *exchange) transferred(direction string, n int) {
	x.Metrics.bytes.WithLabelValues(direction).Add(float64(n))
	if !x.prs {
		x.Metrics.traffic.add(x.ref, n)
	}
}

// maxCounted bounds the repositories whose traffic is counted.
const maxCounted = 10_000

var trafficDesc = prometheus.NewDesc("ngit_git_top_repos_bytes",
	"Bytes exchanged with git clients since the start, of the repositories with the most.", []string{"repo"}, nil)

// traffic counts the bytes of each repository and names those with the most. Of the metrics it is
// the only one that names repositories: which of them take the bandwidth is what it is for.
type traffic struct {
	top int

	mu    sync.Mutex
	bytes map[nostr.RepoRef]uint64
}

func (t *traffic) add(ref nostr.RepoRef, n int) {
	if t.top == 0 || n <= 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, counted := t.bytes[ref]; !counted && len(t.bytes) == maxCounted {
		for _, quiet := range t.most()[maxCounted/2:] {
			delete(t.bytes, quiet)
		}
	}
	t.bytes[ref] += uint64(n)
}

// most is all that is counted, the most first.
func (t *traffic) most() []nostr.RepoRef {
	return slices.SortedFunc(maps.Keys(t.bytes), func(a, b nostr.RepoRef) int {
		return cmp.Or(cmp.Compare(t.bytes[b], t.bytes[a]), strings.Compare(a.String(), b.String()))
	})
}

// Describe implements prometheus.Collector.
func (t *traffic) Describe(ch chan<- *prometheus.Desc) { ch <- trafficDesc }

// Collect implements prometheus.Collector.
func (t *traffic) Collect(ch chan<- prometheus.Metric) {
	t.mu.Lock()
	defer t.mu.Unlock()
	refs := t.most()
	for _, ref := range refs[:min(t.top, len(refs))] {
		label := strings.ToValidUTF8(nostr.Npub(ref.PubKey)+"/"+ref.Identifier, "\uFFFD")
		ch <- prometheus.MustNewConstMetric(trafficDesc, prometheus.GaugeValue, float64(t.bytes[ref]), label)
	}
}
