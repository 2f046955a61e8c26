package bench

import (
	"fmt"
	"math"
	"testing"
)

// growth measures what an event of a cold sync costs when there are four and sixteen times as many.
func growth(t *testing.T, s *stage) {
	var each []float64
	for _, part := range []int{16, 4, 1} {
		events := *eventCount / part
		p, r := s.cold(t, events, fmt.Sprint("growth-", events))
		each = append(each, float64(r.each(p.total).Nanoseconds())/1e3)
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	s.add("growth of CPU an event, 1× → 4× → 16×", fmt.Sprintf("%.2f a doubling (%.0f → %.0f → %.0f µs)",
		math.Pow(each[2]/each[0], 1.0/4), each[0], each[1], each[2]), "≤ 1.1", "")
}
