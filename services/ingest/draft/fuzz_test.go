package draft_test

import (
	"encoding/json"
	"strings"
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

const owner = "00000000000000000000000000000000000000000000000000000000000000aa"

func event(kind int, at nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
	ev := &nostr.Event{PubKey: owner, Kind: kind, CreatedAt: at, Tags: tags, Sig: strings.Repeat("0", 128)}
	ev.ID = ev.GetID()
	return ev
}

func announcement(identifier string) *nostr.Event {
	return event(30617, 1000, nostr.Tag{"d", identifier}, nostr.Tag{"clone", "https://grasp.test/x.git"}, nostr.Tag{"relays", "wss://grasp.test"})
}

// FuzzDecide: whatever tags a stranger writes, on whatever kind, an event is decided over a real
// index, taken in, and applied. An event that was accepted is known from then on.
func FuzzDecide(f *testing.F) {
	served, waiting := announcement("served"), announcement("waiting")
	for _, kind := range []uint16{0, 1, 5, 1111, 1617, 1618, 1619, 1621, 1630, 10317, 30617, 30618} {
		for _, tags := range []string{
			`[["e","zz"]]`, `[["e",""]]`, `[["e"]]`, `[["E","` + strings.Repeat("A", 64) + `"],["q","x"]]`, `[["e","` + served.ID + `"]]`,
			`[["a","30617:` + owner + `:served"]]`, `[["a","30617:zz:served"],["a",":::"],["a","5:` + owner + `:"]]`, `[["A","10317:` + owner + `"]]`,
			`[["d","served"],["c","zz"],["refs/heads/main","zz"]]`, `[["d","waiting"],["HEAD","ref: refs/heads/main"],["refs/heads/main","` + strings.Repeat("a", 40) + `"]]`,
			`[["d",""],["clone",""],["relays",""],["maintainers","zz"]]`, `[["a","30617:` + owner + `:served"],["c","` + strings.Repeat("b", 40) + `"],["E","zz"]]`,
			`[["expiration","-1"]]`, `[[],["-"],["",""],["p","",""]]`,
		} {
			f.Add(kind, tags)
		}
	}
	var settings config.Settings
	settings.Domain, settings.HoldDuration, settings.SilentDuration, settings.MaxFutureSeconds = "grasp.test", time.Minute, time.Hour, 900
	rules, err := policy.New(settings, policy.Bounds{}, time.Now)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, kind uint16, tagsJSON string) {
		var tags nostr.Tags
		if json.Unmarshal([]byte(tagsJSON), &tags) != nil {
			return
		}
		index, err := eventdb.Open("")
		if err != nil {
			t.Fatal(err)
		}
		defer index.Close()
		if err := index.Apply([]eventdb.Record{{Seq: 1, Event: served}}); err != nil {
			t.Fatal(err)
		}
		entry, err := held.NewEntry(proto.Held{Event: waiting, Identifier: "waiting", Phase: proto.PhaseWaiting, HeldAt: time.Now(), ExpiresAt: time.Now().Add(time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		set := held.NewSet()
		set.Apply(held.Change{Key: entry.Key, Entry: entry, Seq: 1})

		ev := event(int(kind), 2000, tags...)
		for seq, again := range []bool{false, true} {
			view := index.View()
			d := draft.New(t.Context(), draft.Base{Log: view, Held: set, Rejected: rejections.NewIndex(time.Hour), Now: time.Now()})
			decision, err := rules.Decide(d, &candidate.Candidate{Event: ev, Lane: proto.LaneUser, Source: proto.SourceUser})
			if err != nil {
				t.Fatal(err)
			}
			if decision.Outcome == proto.Accepted {
				if again {
					t.Fatalf("accepted twice: %s", ev)
				}
				if err := d.Accept(ev); err != nil {
					t.Fatal(err)
				}
				if err := index.Apply([]eventdb.Record{{Seq: uint64(2 + seq), Event: ev}}); err != nil {
					t.Fatal(err)
				}
			}
			if err := view.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
