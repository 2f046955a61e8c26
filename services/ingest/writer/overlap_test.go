package writer

import (
	"sync"
	"sync/atomic"
	"testing"

	"tendril.dev/services/ingest/policy"
)

// witness is a policy that says which events were decided.
type witness struct {
	Policy
	mu      sync.Mutex
	decided map[string]int
}

func newWitness() *witness { return &witness{decided: map[string]int{}} }

func (p *witness) Decide(k policy.Knowledge, c *policy.Candidate) (policy.Decision, error) {
	d, err := p.Policy.Decide(k, c)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decided[c.Event.ID]++
	return d, err
}

func (p *witness) count(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.decided[id]
}

// wait waits until an event was decided.
func (p *witness) wait(t testing.TB, id string) {
	t.Helper()
	eventually(t, "event "+id[:8]+" is decided", func() bool { return p.count(id) > 0 })
}

// gate holds commits: of each it says that it is about to begin, and waits until it may.
type gate struct {
	begun, may chan struct{}
	open       atomic.Bool
}

// heldAtGate starts a writer whose commits wait at a gate, and whose decisions have a witness.
func heldAtGate(t *testing.T, batch int, prepare func(*Writer)) (*replica, *gate, *witness, *sender) {
	t.Helper()
	b := openBus(t, t.TempDir())
	g, seen := &gate{begun: make(chan struct{}, 1), may: make(chan struct{})}, newWitness()
	r := startWith(t, b, "one", batch, func(w *Writer) {
		seen.Policy, w.Policy = w.Policy, seen
		w.beforeCommit = func() {
			if !g.open.Load() {
				g.begun <- struct{}{}
				<-g.may
			}
		}
		if prepare != nil {
			prepare(w)
		}
	})
	t.Cleanup(g.release)
	return r, g, seen, newSender(t, b, "overlap")
}

// release lets this commit and all later ones go on.
func (g *gate) release() {
	if g.open.CompareAndSwap(false, true) {
		close(g.may)
	}
}
