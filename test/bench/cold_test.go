package bench

import (
	"fmt"
	"testing"
)

// coldSync measures how fast a Tendril that has nothing syncs from one fast relay.
func coldSync(t *testing.T, s *stage) {
	p, r := s.cold(t, *eventCount, "cold")
	rate := r.rate(p.total)
	s.add(fmt.Sprintf("cold sync of %d events from one fast relay", p.total), fmt.Sprintf("%.0f events/s (%.1f s, the first after %.1f s)", rate, r.took.Seconds(), r.began.Seconds()),
		"≥ 12,000/s", s.limits.String())
	s.add("… beside one core's verification", fmt.Sprintf("%.2f", rate/s.limits.verified), "≥ 0.35", "the source used "+fmt.Sprint(r.source.Round(1e7)))
	s.add("… CPU an event", fmt.Sprintf("%.0f µs", float64(r.each(p.total).Nanoseconds())/1e3), "≤ 100 µs",
		fmt.Sprintf("verification alone: %.0f µs", 1e6/s.limits.verified))
	s.add("… most resident memory", mib(r.peak), "≤ 256 MiB", "")
	s.add("… bytes from the relay", mib(r.in), "", "")
	s.synced = p
}

// cold starts a source and a Tendril and waits for the sync. Both last as long as the table.
func (s *stage) cold(t *testing.T, events int, name string) (*play, result) {
	spec := s.spec(events)
	p := s.start(s.t, s.source(s.t, spec, 1), spec, map[string]string{"NGIT_SYNC_RECONNECT_WINDOW": "0s"})
	return p, p.sync(t, s, name)
}

// play returns the Tendril that the cold sync left, or makes it now.
func (s *stage) played(t *testing.T) *play {
	if s.synced == nil {
		s.say("first something must be there")
		s.synced, _ = s.cold(t, *eventCount, "cold")
	}
	return s.synced
}
