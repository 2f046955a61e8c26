package bench

import (
	"fmt"
	"strings"
	"testing"
)

// manyRelays measures a cold sync from twenty relays that have the same events.
func manyRelays(t *testing.T, s *stage) {
	const relays = 20
	spec := s.spec(*eventCount)
	f := s.source(t, spec, relays)
	p := s.start(t, f, spec, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": strings.Join(f.Relays, ",")})
	r := p.sync(t, s, "many")
	s.add(fmt.Sprintf("the same from %d relays that have the same events", relays), fmt.Sprintf("%.0f new/s (%.1f s)", r.rate(p.total), r.took.Seconds()),
		"", s.limits.String())
	s.add("… beside one core's verification", fmt.Sprintf("%.2f", r.rate(p.total)/s.limits.verified), "≥ 0.27", fmt.Sprintf("the source used %v", r.source.Round(1e7)))
	s.add("… events received for each served; CPU each", fmt.Sprintf("%.1f; %.0f µs", float64(report(t, f).Total().Sent)/float64(p.total), micros(r.each(p.total))), "≤ 3", "")
	s.add("… most resident memory", mib(r.peak), "≤ 400 MiB", "")
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}
