package known

import (
	"maps"
	"sync"
	"time"

	"tendril.dev/lib/reconcile"
)

const (
	// forgetAfter is how long gathered sets are used again: for the next steps of a session, and of
	// sessions with other relays that are asked the same.
	forgetAfter = 30 * time.Second
	// keptBytes bounds what is kept.
	keptBytes = 32 << 20
)

// gathered is what had to be read for a filter at a sequence of the log.
type gathered struct {
	items reconcile.Packed // accepted, held and rejected
	seq   uint64
	at    time.Time
}

func (g gathered) bytes() int { return cap(g.items) * reconcile.ItemBytes }

// memory keeps gathered sets for a while, within a bound. It is safe for concurrent use.
type memory struct {
	mu       sync.Mutex
	byFilter map[string]gathered
}

// get returns what is kept of a filter, of seq or later, or gathers it.
func (m *memory) get(filter string, seq uint64, gather func() (gathered, error)) (gathered, error) {
	m.mu.Lock()
	g, kept := m.byFilter[filter]
	m.mu.Unlock()
	if kept && g.seq >= seq && time.Since(g.at) < forgetAfter {
		return g, nil
	}
	g, err := gather()
	if err != nil || g.bytes() > keptBytes/4 {
		return g, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byFilter[filter] = g
	bytes := 0
	maps.DeleteFunc(m.byFilter, func(f string, o gathered) bool {
		bytes += o.bytes() + len(f)
		return f != filter && (bytes > keptBytes || time.Since(o.at) >= forgetAfter)
	})
	return g, nil
}
