package draft_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

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

func by(author int, kind int, at nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
	ev := event(kind, at, tags...)
	ev.PubKey = fmt.Sprintf("%064x", author)
	ev.ID = ev.GetID()
	return ev
}

// BenchmarkCrowdedIdentifier decides events of one identifier that many keys have announced: one
// decision must not walk them all.
func BenchmarkCrowdedIdentifier(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
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
			set, known := held.NewSet(), draft.NewAnnounced()
			announced := func(author int, at nostr.Timestamp) *nostr.Event {
				maintainers := nostr.Tag{"maintainers"}
				for m := range 20 {
					maintainers = append(maintainers, fmt.Sprintf("%064x", (author+m)%n+1))
				}
				npub := npubOf(b, fmt.Sprintf("%064x", author))
				return by(author, 30617, at, nostr.Tag{"d", "x"}, nostr.Tag{"clone", "https://grasp.test/" + npub + "/x.git"}, nostr.Tag{"relays", "wss://grasp.test"}, maintainers)
			}
			var records []eventdb.Record
			for i := range n {
				ev := announced(i+1, 1000)
				if i%2 == 0 {
					records = append(records, eventdb.Record{Seq: uint64(len(records) + 1), Event: ev})
					continue
				}
				entry, err := held.NewEntry(proto.Held{Event: ev, Identifier: "x", Phase: proto.PhaseWaiting, HeldAt: time.Now(), ExpiresAt: time.Now().Add(time.Minute)})
				if err != nil {
					b.Fatal(err)
				}
				set.Apply(held.Change{Key: entry.Key, Entry: entry, Seq: uint64(i + 1)})
			}
			if err := index.Apply(records); err != nil {
				b.Fatal(err)
			}
			main := nostr.Tag{"refs/heads/main", strings.Repeat("a", 40)}
			for name, make := range map[string]func(i int) *nostr.Event{
				"announcement": func(i int) *nostr.Event { return announced(n+1+i, 2000) },
				"elsewhere": func(i int) *nostr.Event {
					return by(i%n+1, 30617, 2000, nostr.Tag{"d", "x"}, nostr.Tag{"t", fmt.Sprint(i)})
				},
				"state":         func(i int) *nostr.Event { return by(i%n+1, 30618, nostr.Timestamp(2000+i), nostr.Tag{"d", "x"}, main) },
				"foreign state": func(i int) *nostr.Event { return by(n+1+i, 30618, 2000, nostr.Tag{"d", "x"}, main) },
				"pull request": func(i int) *nostr.Event {
					return by(n+1+i, 1618, 2000, nostr.Tag{"a", fmt.Sprintf("30617:%064x:x", i%n+1)}, nostr.Tag{"c", strings.Repeat("a", 40)})
				},
			} {
				b.Run(name, func(b *testing.B) {
					view := index.View()
					defer view.Close()
					var d *draft.Draft
					for i := 0; b.Loop(); i++ {
						if i%50 == 0 { // a batch of fifty
							d = draft.New(b.Context(), draft.Base{Log: view, Held: set, Rejected: rejections.NewIndex(time.Hour), Announced: known, Now: time.Now()})
						}
						ev := make(i)
						decision, err := rules.Decide(d, &candidate.Candidate{Event: ev, Lane: proto.LaneUser, Source: proto.SourceUser})
						if err != nil {
							b.Fatal(err)
						}
						for _, dropped := range decision.Drop {
							d.Drop(dropped.Entry)
						}
						for _, entry := range decision.Hold {
							d.Hold(entry)
						}
					}
				})
			}
		})
	}
}

func npubOf(tb testing.TB, pubkey string) string {
	tb.Helper()
	npub, err := nip19.EncodePublicKey(pubkey)
	if err != nil {
		tb.Fatal(err)
	}
	return npub
}
