package draft_test

import (
	"fmt"
	"testing"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/candidate"
	"tendril.dev/services/ingest/draft"
	"tendril.dev/services/ingest/policy"
	"tendril.dev/services/ingest/rejections"
)

// BenchmarkLargeDeletion decides and takes in deletion requests of the largest size.
func BenchmarkLargeDeletion(b *testing.B) {
	var settings config.Settings
	settings.Domain, settings.HoldDuration, settings.SilentDuration, settings.MaxFutureSeconds = "grasp.test", time.Minute, time.Hour, 900
	rules, err := policy.New(settings, policy.Bounds{}, time.Now)
	if err != nil {
		b.Fatal(err)
	}
	index, err := eventdb.Open("")
	if err != nil {
		b.Fatal(err)
	}
	defer index.Close()
	for name, value := range map[string]func(i int) nostr.Tag{
		"e":            func(i int) nostr.Tag { return nostr.Tag{"e", fmt.Sprintf("%064x", i)} },
		"announcement": func(i int) nostr.Tag { return nostr.Tag{"a", fmt.Sprintf("30617:%s:%d", owner, i)} },
		"article":      func(i int) nostr.Tag { return nostr.Tag{"a", fmt.Sprintf("30023:%s:%d", owner, i)} },
	} {
		b.Run(name, func(b *testing.B) {
			var tags nostr.Tags
			for size := 0; size < policy.MaxOtherBytes-1000; size += len(tags[len(tags)-1][1]) + 8 {
				tags = append(tags, value(len(tags)))
			}
			view := index.View()
			defer view.Close()
			ev := event(5, 2000, tags...)
			for b.Loop() {
				d := draft.New(b.Context(), draft.Base{Log: view, Held: held.NewSet(), Rejected: rejections.NewIndex(time.Hour), Now: time.Now()})
				if _, err := rules.Decide(d, &candidate.Candidate{Event: ev, Lane: proto.LaneUser, Source: proto.SourceUser}); err != nil {
					b.Fatal(err)
				}
				if err := d.Accept(ev); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(tags)), "tags")
		})
	}
}
