package fetch

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"
)

const (
	// missTime is how long a server is not asked again for what it lacked, while it lists the same.
	missTime = 30 * time.Minute
	// maxMisses bounds the objects that are remembered of one URL, maxOfAll those of all URLs, and
	// maxURLs the URLs.
	maxMisses, maxOfAll, maxURLs = 5000, 250_000, 10_000
)

// Misses remembers what servers were found to lack. It is safe for concurrent use. What it forgets
// is asked for once more, and nothing else is lost.
type Misses struct {
	mu      sync.Mutex
	byURL   map[string]missing
	order   []string // URLs, the oldest first
	objects int      // of all URLs
}

// missing is what one URL lacked while its list of references was the same.
type missing struct {
	references uint64 // hash of the list
	objects    []string
	at         time.Time
}

// NewMisses remembers nothing yet.
func NewMisses() *Misses { return &Misses{byURL: map[string]missing{}} }

// of is what a URL lacked not long ago.
func (m *Misses) of(url string, now time.Time) (known missing, is bool) {
	if m == nil {
		return known, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known, is = m.byURL[url]
	return known, is && now.Sub(known.at) < missTime
}

// add notes what a URL lacks beside what it lacked before, if it lists the same.
func (m *Misses) add(url string, references uint64, objects []string, now time.Time) {
	if m == nil || len(objects) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before, is := m.byURL[url]
	next := missing{references: references, objects: objects, at: now}
	if is && before.references == references && now.Sub(before.at) < missTime {
		next.at = before.at // each is asked for again within half an hour
		next.objects = slices.Concat(before.objects, without(objects, before.objects...))
	}
	next.objects = next.objects[:min(len(next.objects), maxMisses)]
	m.byURL[url] = next
	m.objects += len(next.objects) - len(before.objects)
	if !is {
		m.order = append(m.order, url)
	}
	for len(m.order) > maxURLs || m.objects > maxOfAll {
		m.objects -= len(m.byURL[m.order[0]].objects)
		delete(m.byURL, m.order[0])
		m.order = m.order[1:]
	}
}

var seed = maphash.MakeSeed()
