package smarthttp

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nbd-wtf/go-nostr/nip19"
	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/nostr"
)

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

func newTraffic(top int) *traffic {
	return &traffic{top: top, bytes: map[nostr.RepoRef]uint64{}}
}

func (t *traffic) add(ref nostr.RepoRef, n int) {
	if t.top == 0 || n <= 0 || ref == (nostr.RepoRef{}) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, counted := t.bytes[ref]; !counted && len(t.bytes) == maxCounted {
		// The half with the least is forgotten: whoever has much comes to the top again.
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
		npub, err := nip19.EncodePublicKey(ref.PubKey)
		if err != nil {
			continue // not reached: there is such a repository
		}
		label := strings.ToValidUTF8(npub+"/"+ref.Identifier, "\uFFFD")
		ch <- prometheus.MustNewConstMetric(trafficDesc, prometheus.GaugeValue, float64(t.bytes[ref]), label)
	}
}
