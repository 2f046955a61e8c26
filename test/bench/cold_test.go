package bench

import (
	"fmt"
	"testing"
	"time"
)

// coldSync measures how fast a Tendril that has nothing syncs from one fast relay.
func coldSync(t *testing.T, s *stage) {
	p, r := s.cold(t, *eventCount, "cold")
	rate := r.rate(p.total)
	s.add(fmt.Sprintf("cold sync of %d events from one fast relay", p.total), fmt.Sprintf("%.0f events/s (%.1f s, the first after %.1f s)", rate, r.took.Seconds(), r.began.Seconds()),
		"", s.limits.String())
	s.add("… beside one core's verification", fmt.Sprintf("%.2f", rate/s.limits.verified), "≥ 0.35", "the source used "+fmt.Sprint(r.source.Round(1e7)))
	s.add("… CPU an event", fmt.Sprintf("%.0f µs, %.1f verifications", micros(r.each(p.total)), r.each(p.total).Seconds()*s.limits.verified), "≤ 3.6 verifications", "")
	s.add("… most resident memory", mib(r.peak), "≤ 320 MiB", "")
	s.add("… bytes from the relay", mib(int64(r.in)), "", "")
	s.synced = p
}

// cold starts a source and a Tendril and waits for the sync. Both last as long as the table.
func (s *stage) cold(t *testing.T, events int, name string) (*play, result) {
	spec := s.spec(events)
	p := s.start(s.t, s.source(s.t, spec, 1), spec, map[string]string{"TENDRIL_TEST_SYNC_RECONNECT_WINDOW": "0s"})
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

// restart measures how long a Tendril that has everything takes from its start until it is ready.
func restart(t *testing.T, s *stage) {
	p := s.played(t)
	must(t, p.Stop())
	began := time.Now()
	p.Restart()
	s.add(fmt.Sprintf("restart with %d events, until ready", p.total), fmt.Sprintf("%.2f s", time.Since(began).Seconds()), "≤ 1.5 s", s.limits.String())
}
