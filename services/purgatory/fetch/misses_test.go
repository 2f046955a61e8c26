package fetch

import (
	"fmt"
	"testing"
	"time"
)

// TestMissesAreBounded: what is remembered of all URLs together has a bound, however much each of them
// lacks, and the oldest goes first.
func TestMissesAreBounded(t *testing.T) {
	t.Parallel()
	m, now := NewMisses(), time.Now()
	var lacks []string
	for n := range maxMisses + 1 {
		lacks = append(lacks, fmt.Sprint(n))
	}
	const urls = 2 * maxOfAll / maxMisses
	for n := range urls {
		m.add(fmt.Sprint(n), 1, lacks, now)
	}
	known := 0
	for n := range urls {
		missing, is := m.of(fmt.Sprint(n), now)
		if known += len(missing.objects); is != (n >= urls/2) {
			t.Errorf("%d is remembered: %t", n, is)
		}
	}
	if known != maxOfAll || m.objects != known {
		t.Errorf("%d objects are remembered and %d counted, want %d", known, m.objects, maxOfAll)
	}
}
