package relayconn

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// oddities are the ways in which a relay is odd in TestOddRelaysDisturbed, any of which may come
// together.
var oddities = []struct {
	name string
	make func(o *odd)
}{
	{"reconciles not", func(o *odd) { o.noNIP77 = true }},
	{"pages of 5", func(o *odd) { o.page = 5 }},
	{"until excludes", func(o *odd) { o.exclusive = true }},
	{"EOSE 3 s early", func(o *odd) { o.early = 3 * time.Second }},
	{"EOSE 20 s early", func(o *odd) { o.early = 20 * time.Second }},
	{"reconciles the newest 20", func(o *odd) { o.newest = 20 }},
	{"reconciles the newest 3", func(o *odd) { o.newest = 3 }},
	{"says by NIP-77 that it has nothing", func(o *odd) { o.newest = -1 }},
	{"takes 4 subscriptions", func(o *odd) { o.room = 4 }},
	{"hides q beside others", func(o *odd) {
		o.hides = func(f nostr.Filter, n int) int {
			if n > 1 && len(f.Tags["q"]) > 0 {
				return 0
			}
			return f.Limit
		}
	}},
	{"3 values at most", func(o *odd) {
		o.refuses = func(filters []nostr.Filter) string {
			return reasonIf(filters, "invalid: too many values", func(f nostr.Filter) bool { return longest(f) > 3 })
		}
	}},
	{"2 ids at most", func(o *odd) {
		o.refuses = func(filters []nostr.Filter) string {
			return reasonIf(filters, "error: filter item too large", func(f nostr.Filter) bool { return len(f.IDs) > 2 })
		}
	}},
	{"limits of 4 at most", func(o *odd) {
		o.refuses = func(filters []nostr.Filter) string {
			return reasonIf(filters, "invalid: filter limit too large", func(f nostr.Filter) bool { return f.Limit > 4 })
		}
	}},
}

// TestOddRelaysDisturbed: relays that are odd in one or two ways are disturbed at random messages,
// and publish something late. Twenty minutes later all that the relay has is here, or hours later if it
// is slow. A few are played, or as many as there is time for in `make chaos`.
func TestOddRelaysDisturbed(t *testing.T) {
	t.Parallel()
	long, runs := time.Duration(0), 0
	if os.Getenv("TENDRIL_CHAOS") != "" {
		long = chaosTime(t)
	}
	seed := uint64(time.Now().UnixNano())
	rnd, kinds := rand.New(rand.NewPCG(seed, 3)), []fault{cut, handover, kill}
	for begin := time.Now(); runs < len(oddities)+6 || time.Since(begin) < long; runs++ {
		var is odd
		names := []string{oddities[runs%len(oddities)].name}
		oddities[runs%len(oddities)].make(&is)
		if runs >= len(oddities) {
			other := oddities[rnd.IntN(len(oddities))]
			other.make(&is)
			names = append(names, other.name)
		}
		faults := map[int]fault{1 + rnd.IntN(150): kinds[rnd.IntN(len(kinds))]}
		half := rnd.IntN(2) == 0
		simulate(t, is, simulated, func(m *simulation) {
			m.faults = faults
			m.begin()
			m.mu.Lock()
			for n, ev := range simulated {
				if half && n%2 == 0 && m.belongs(ev) {
					m.take(ev)
				}
			}
			m.mu.Unlock()
			time.Sleep(10 * time.Minute)
			announcement := simulated[0]
			ref := fmt.Sprintf("30617:%s:%s", announcement.PubKey, announcement.Tags.GetD())
			late := fixture.NewPerson().At(nostr.Now()-40*60).Sign(nostr.KindIssue, "late", nostr.Tag{"a", ref})
			m.mu.Lock()
			m.hangUp()
			m.stored = append(m.stored, late)
			m.sort()
			m.mu.Unlock()
			time.Sleep(20 * time.Minute)
			if len(m.missing()) > 0 { // where each page of few events takes half a minute
				time.Sleep(3 * time.Hour)
			}
			if missing := m.missing(); len(missing) > 0 {
				t.Errorf("a relay that %s, half known: %v, disturbed by %v (seed %d): %d events are missing: %q …",
					strings.Join(names, " and "), half, faults, seed, len(missing), missing[:min(3, len(missing))])
			}
		})
	}
	t.Logf("%d runs", runs)
}
