package relay

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
)

// TestEphemeralEventsAreLive: a subscription hears of one once, however many of its filters it
// matches, whether it comes while the stored part is sent or later, and of none that came before.
// Stored events go on as before.
func TestEphemeralEventsAreLive(t *testing.T) {
	t.Parallel()
	b := connect(t)
	pass := func(n, kind int) {
		ev := &nostr.Event{PubKey: strings.Repeat("a", 64), Kind: kind, CreatedAt: 1, Content: fmt.Sprintf("event %d.", n), Tags: nostr.Tags{}, Sig: strings.Repeat("0", 128)}
		ev.ID = ev.GetID()
		b.relay.feedEphemeral(nostr.Encode(ev))
	}
	pass(1, 20001) // to no client
	b.say(`["REQ","s",{"kinds":[1]},{"kinds":[20001]},{"authors":["` + strings.Repeat("a", 64) + `"]}]`)
	b.want(`["EOSE","s"]`, "")
	pass(2, 20001)
	b.store(1)
	pass(3, 1) // what is stored does not come this way
	pass(4, 29999)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go b.relay.Run(ctx)
	b.want(`["EVENT","s",`, "event 2.")
	b.want(`["EVENT","s",`, "event 1.")
	b.want(`["EVENT","s",`, "event 4.")
	b.store(2)
	b.want(`["EVENT","s",`, "event 2.")
	b.say(`["COUNT","c",{"kinds":[20001,29999]}]`)
	b.want(`["COUNT","c",{"count":0}]`, "")
}

// TestAnEphemeralEventWaitsForEOSE: it comes while the stored part is sent, and behind its end.
func TestAnEphemeralEventWaitsForEOSE(t *testing.T) {
	t.Parallel()
	s := &subscription{}
	s.waiting = []waiting{{seq: 5, delivery: delivery{forget: func() {}}}, {seq: 0}, {seq: 7}}
	s.question = &question{conn: &connection{queued: make(chan struct{}, 1)}}
	s.goLive(5)
	if n := len(s.conn.queue); n != 2 {
		t.Errorf("%d are delivered, want the ephemeral one and that behind the stored part", n)
	}
}
