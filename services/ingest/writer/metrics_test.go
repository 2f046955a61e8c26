package writer

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/candidate"
	"tendril.dev/services/ingest/policy"
)

// TestServedCountsPurgatory: for a released event the time begins when it was held, for any other
// when it came.
func TestServedCountsPurgatory(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	x := &decided{
		arrived:   now.Add(-2 * time.Second),
		candidate: &candidate.Candidate{Event: &nostr.Event{Kind: 30617}, Source: proto.SourceRelease},
		decision:  policy.Decision{Outcome: proto.Accepted},
	}
	var sum float64
	for _, c := range []struct {
		held time.Time
		want float64 // seconds
	}{
		{time.Time{}, 2}, {now, 2}, {now.Add(-time.Hour), 3600},
	} {
		x.heldSince(c.held)
		m.decided(x, now)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "ngit_ingest_event_to_served_seconds" {
				continue
			}
			served := f.GetMetric()[0].GetHistogram().GetSampleSum()
			if took := served - sum; took != c.want {
				t.Errorf("held at %v: %v seconds, want %v", c.held, took, c.want)
			}
			sum = served
		}
	}
	if sum == 0 {
		t.Error("nothing is told")
	}
}
