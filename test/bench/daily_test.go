package bench

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"tendril.dev/proto"
	"tendril.dev/test/corpus"
	"tendril.dev/test/outside"
	"tendril.dev/test/world"
)

// settled is for how long a source and a Tendril say nothing to each other when a sync is over.
const settled = 2 * time.Second

// dailySync measures what it takes to ask a relay of which all is known for everything again, as is
// done once a day: here because the process is new and was told to remember no connection.
func dailySync(t *testing.T, s *stage) {
	p := s.played(t)
	s.say("daily: by REQ, for comparison")
	byREQ, cpu := p.again(t, map[string]string{"NGIT_SYNC_DISABLE_NEGENTROPY": "true"})
	s.add(fmt.Sprintf("daily sync, all %d known, by REQ", p.total), sum(byREQ, cpu), "", s.limits.String())

	known, cpu := p.again(t, map[string]string{"NGIT_SYNC_DISABLE_NEGENTROPY": "false"})
	s.add("… by NIP-77", sum(known, cpu)+part(known, byREQ), "≤ 2 s, ≤ 2% of the bytes of REQ", "")

	const missing = 100
	more := corpus.Threads(s.spec(*eventCount), *eventCount/2, missing/2)
	must(t, p.feed.Load(more...))
	p.total += len(more)
	found, cpu := p.again(t, nil)
	if n := p.served(t); n != p.total+p.own {
		t.Errorf("%d events are served, want %d", n, p.total+p.own)
	}
	s.add(fmt.Sprintf("… %d missing", len(more)), sum(found, cpu)+part(found, byREQ), "≤ 3 s, ≤ 2% of the bytes of REQ", "")
}

// again restarts the process and waits until it has asked the relay for everything.
func (p *play) again(t *testing.T, more map[string]string) (outside.Traffic, time.Duration) {
	t.Helper()
	must(t, p.Stop())
	must(t, p.feed.Reset())
	p.Change(more)
	p.Restart()
	deadline := time.Now().Add(longest)
	for {
		time.Sleep(50 * time.Millisecond)
		r := report(t, p.feed)
		if sum := r.Total(); !sum.Last.IsZero() && time.Since(sum.Last) > settled && p.confirmed(t) {
			return sum, used(t, p.PID()).cpu
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v it is still going on: %+v", longest, r.Total())
		}
	}
}

// confirmed reports whether nothing is missing any more of what the relay is asked for, as the
// worker has written it down.
func (p *play) confirmed(t *testing.T) bool {
	t.Helper()
	js, done := world.JetStream(t, p.NATS)
	defer done()
	relays, err := js.KeyValue(world.Context(t), proto.BucketRelays)
	must(t, err)
	keys, err := relays.Keys(world.Context(t))
	must(t, err)
	for _, key := range keys {
		entry, err := relays.Get(world.Context(t), key)
		must(t, err)
		var state proto.RelayState
		must(t, json.Unmarshal(entry.Value(), &state))
		if state.URL == p.feed.Relays[0] {
			return state.Connection == allSynced && state.Repos == repositories && state.Roots == p.total/2+p.own
		}
	}
	return false
}

// allSynced is the state of a connection on which no batch is pending or failed.
const allSynced = 3

// sum shows what a sync took.
func sum(r outside.Traffic, cpu time.Duration) string {
	return fmt.Sprintf("%.2f s, %d bytes up, %d down, and %d up of live subscriptions; %d REQ, %d NEG-OPEN, %d events; CPU with the start %.1f s",
		r.Last.Sub(r.Connected).Seconds(), r.In-r.Live, r.Out, r.Live, r.Requests, r.Reconciled, r.Sent, cpu.Seconds())
}

// part shows how much of the bytes of another sync that was. Live subscriptions, which a process
// that has just begun opens either way, do not count.
func part(r, other outside.Traffic) string {
	past := func(r outside.Traffic) float64 { return float64(r.In - r.Live + r.Out) }
	return fmt.Sprintf(" (%.2f%% of the bytes of REQ)", 100*past(r)/past(other))
}
