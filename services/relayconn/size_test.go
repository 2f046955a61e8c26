package relayconn

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
)

// TestHeapAtEverydaySize: a tenth of the everyday size, 100 repositories with 5,000 root events, each
// on 5 of 20 relays, all connected and confirmed, in less than 7 MiB of live heap. The worker asks
// an index that is there before. What is measured holds the 20 servers' ends of the connections
// too.
func TestHeapAtEverydaySize(t *testing.T) {
	if testing.Short() {
		t.Skip("20 relays")
	}
	const relays, repos, roots, copies = 20, 100, 50, 5
	b := openBus(t)
	newIngest(t, b)
	var all []*foreign
	targets := make([]proto.Target, relays)
	for i := range relays {
		all = append(all, newForeign(t))
		targets[i] = proto.Target{URL: all[i].URL, Repos: map[string]proto.Wanted{}}
	}
	for i := range repos {
		ref := fmt.Sprintf("30617:%064d:repository-%d", i, i)
		var batch []*nats.Msg
		for n := range roots {
			ev := &nostr.Event{Kind: nostr.KindIssue, PubKey: strings.Repeat("a", 64), CreatedAt: nostr.Timestamp(1 + n), Tags: nostr.Tags{{"a", ref}}}
			ev.ID = ev.GetID() // events in the log are not verified
			batch = append(batch, &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: []byte(ev.String())})
		}
		if _, err := b.PublishBatch(t.Context(), batch, nil); err != nil {
			t.Fatal(err)
		}
		for c := range copies {
			targets[(i*copies+c)%relays].Repos[ref] = proto.Wanted{Level: proto.LevelFull}
		}
	}
	for i := range relays {
		aim(t, b, all[i].URL, targets[i])
	}
	targets = nil
	index := newIndex(t, b)
	eventually(t, "the index has all root events", func() bool { return index.Accepted.Seq() >= repos*roots })
	before := liveHeap()
	w := startWorker(t, b, "a", byRules(true, func(r *Rules) { r.Session.PageLimit = 10 }))
	for _, r := range all {
		eventually(t, "it is confirmed", func() bool {
			s := state(t, b, r.Name)
			return s.Connection == int(session.Connected) && s.Roots == repos*roots*copies/relays
		})
		// What the relay keeps to look at is not the worker's.
		r.look(func() {
			r.asked = nil
			for _, subs := range r.open {
				clear(subs)
			}
		})
	}
	heap := liveHeap() - before
	t.Logf("%.1f MiB of live heap", float64(heap)/(1<<20))
	if heap > 7<<20 {
		t.Errorf("%d bytes of live heap", heap)
	}
	runtime.KeepAlive(w)
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
