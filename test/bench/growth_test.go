package bench

import (
	"fmt"
	"math"
	"testing"
)

// growth measures what an event of a cold sync costs when there are four and sixteen times as many.
// What every sync costs, like the start, the git data and the first look at a relay, is no part of
// it: the cost is that of the events by which a set is larger than the one before.
func growth(t *testing.T, s *stage) {
	var each, more []float64 // µs an event: of all, and of those by which a set is larger
	var lastCPU, lastEvents float64
	for _, part := range []int{16, 4, 1} {
		p, r := s.cold(t, *eventCount/part, fmt.Sprint("growth-", *eventCount/part))
		cpu, events := float64(r.cpu.Microseconds()), float64(p.total)
		each = append(each, cpu/events)
		if part != 16 {
			more = append(more, (cpu-lastCPU)/(events-lastEvents))
		}
		lastCPU, lastEvents = cpu, events
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	s.add("growth of CPU an event, 1× → 4× → 16×", fmt.Sprintf("%.2f a doubling (of each more: %.0f → %.0f µs; of all: %.0f → %.0f → %.0f µs)",
		math.Sqrt(more[1]/more[0]), more[0], more[1], each[0], each[1], each[2]), "≤ 1.1", s.limits.String())
}
