package intake_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
)

// TestPushBack: when ingest takes nothing, a connection's events wait up to a bound in bytes, all
// connections' together up to another, and what is live has room of its own.
func TestPushBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, func(o *intake.Options) { o.Signed = func(*nostr.Event) bool { return true } })
		p.full = make(chan struct{})
		p.run(t)
		var e ends
		const large = 100 << 10
		ctx, stop := context.WithCancel(t.Context())
		var mu sync.Mutex
		taken := map[string]int{}
		bring := func(name string) {
			s := p.Open(name)
			for n := 0; ; n++ {
				ev := &nostr.Event{Kind: 1, PubKey: fmt.Sprintf("%064x", n), Sig: fmt.Sprintf("%0128x", n), Content: name + strings.Repeat("x", large)}
				ev.ID = ev.GetID()
				if _, err := s.Take(ctx, historic(ev, e.done)); err != nil {
					return
				}
				mu.Lock()
				taken[name]++
				mu.Unlock()
			}
		}
		go bring("wss://first")
		synctest.Wait()
		if n := taken["wss://first"]; n == 0 || n*large > 4<<20 {
			t.Fatalf("%d events of %d bytes of one connection wait", n, large)
		}
		for n := range 50 {
			go bring(fmt.Sprint("wss://", n))
		}
		synctest.Wait()
		all := 0
		for _, n := range taken {
			all += n
		}
		if all*large > 16<<20 || all == 0 {
			t.Fatalf("%d events of %d bytes wait", all, large)
		}
		// One that waits in vain takes nothing with it.
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.Open("wss://late").Take(over, historic(event(t, "late"), e.done)); !errors.Is(err, context.Canceled) {
			t.Fatalf("taken without room: %v", err)
		}
		take(t, p.Open("wss://lively"), alive(event(t, "live"), e.done))
		synctest.Wait()
		if got := p.contents(); !slices.Equal(got, []string{"live"}) {
			t.Fatalf("offered %d, want what is live", len(got))
		}
		// With room at ingest everybody gets on. The first has one turn of its 51, not more.
		before := taken["wss://first"]
		for range 51 * 8 {
			p.full <- struct{}{}
		}
		synctest.Wait()
		mu.Lock()
		for n := range 50 {
			if name := fmt.Sprint("wss://", n); taken[name] < 4 {
				t.Errorf("%s brought %d", name, taken[name])
			}
		}
		if n := taken["wss://first"] - before; n > 16 {
			t.Errorf("the first brought %d meanwhile", n)
		}
		mu.Unlock()
		stop()
		synctest.Wait()
		close(p.full)
		synctest.Wait()
		p.decide(proto.Accepted, nil)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		total := 1 // the live one
		for _, n := range taken {
			total += n
		}
		if n := e.count(accepted); n != total {
			t.Errorf("%d verdicts on %d events", n, total)
		}
	})
}
