package intake_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
)

// elsewhere is a store that others keep.
type elsewhere struct {
	mu        sync.Mutex
	stored    map[string]bool
	questions []int         // how many events each was about
	under     int           // way
	most      int           // of them at once
	away      chan struct{} // nil: it answers at once; else when this is closed
}

func (s *elsewhere) Has(ctx context.Context, ids [][32]byte) ([]bool, error) {
	s.mu.Lock()
	s.questions = append(s.questions, len(ids))
	s.under++
	s.most = max(s.most, s.under)
	away := s.away
	s.mu.Unlock()
	if away != nil {
		select {
		case <-away:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.under--
	var has []bool
	for _, id := range ids {
		has = append(has, s.stored[hex.EncodeToString(id[:])])
	}
	return has, nil
}

// asking is a play whose intake asks that store.
func asking(t testing.TB, s *elsewhere) *play {
	return newPlay(t, func(o *intake.Options) { o.Stored = s })
}

func known(r intake.Result) bool { return r.Known }

// TestWhatIsStoredElsewhereIsNotVerified: it is asked about a page at a time; what is stored ends
// so for all who bring it, the rest is offered, and what was found stored is not asked
// about again.
func TestWhatIsStoredElsewhereIsNotVerified(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const events = 1000
		s := &elsewhere{stored: map[string]bool{}}
		p := asking(t, s)
		var want []string
		var e ends
		streams := []*intake.Stream{p.Open("wss://a"), p.Open("wss://b")}
		for n := range events {
			ev := event20(t, n)
			if n%3 > 0 {
				s.stored[ev.ID] = true
			} else {
				want = append(want, ev.Content)
			}
			for _, stream := range streams {
				take(t, stream, historic(copyOf(ev), e.done))
			}
		}
		p.run(t)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := p.contents(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
			t.Errorf("%d were offered, want %d", len(got), len(want))
		}
		if len(p.checked) != len(want) {
			t.Errorf("%d signatures were checked, want %d", len(p.checked), len(want))
		}
		if n := e.count(known); n != 2*(events-len(want)) {
			t.Errorf("%d were said to be known", n)
		}
		if len(s.questions) > events/100+1 || s.most > 4 {
			t.Errorf("questions of %v events, %d at once", s.questions, s.most)
		}
		asked := len(s.questions)
		if !p.Known(event20(t, 1).ID) || p.Known(event20(t, 0).ID) {
			t.Error("what was found stored is not remembered, or what was not")
		}
		take(t, streams[0], historic(event20(t, 1), e.done))
		synctest.Wait()
		if len(s.questions) != asked {
			t.Error("it was asked about again")
		}
	})
}

// TestAStoreThatIsAway: what is brought waits for it within bounds, nothing is verified or lost
// meanwhile, and what is live waits behind nothing else when it is back.
func TestAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &elsewhere{away: make(chan struct{}), stored: map[string]bool{}}
		p := newPlay(t, func(o *intake.Options) {
			o.Stored, o.Signed = s, func(*nostr.Event) bool { return true }
		})
		p.run(t)
		var e ends
		var mu sync.Mutex
		taken, stopped := 0, 0
		const large = 100 << 10
		for c := range 8 {
			go func() {
				stream := p.Open(fmt.Sprint("wss://", c))
				for n := range 40 {
					ev := &nostr.Event{Kind: 1, PubKey: fmt.Sprintf("%064x", n), Sig: fmt.Sprintf("%0128x", n), Content: fmt.Sprint(c) + strings.Repeat("x", large)}
					ev.ID = ev.GetID()
					if _, err := stream.Take(t.Context(), historic(ev, e.done)); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					taken++
					mu.Unlock()
				}
				mu.Lock()
				stopped++
				mu.Unlock()
			}()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		if taken == 0 || taken*large > 16<<20 || stopped > 0 {
			t.Errorf("%d events of %d bytes wait, of %d all have been brought", taken, large, stopped)
		}
		mu.Unlock()
		if len(p.contents()) > 0 || len(e.all) > 0 || s.most > 4 {
			t.Errorf("%d were offered, %d have ended, %d questions at once", len(p.contents()), len(e.all), s.most)
		}
		before := s.under
		take(t, p.Open("wss://live"), alive(event20(t, 1), e.done))
		synctest.Wait()
		if s.under != before+1 {
			t.Errorf("%d questions under way: what is live is not asked about", s.under)
		}
		s.mu.Lock()
		close(s.away)
		s.away = nil
		s.mu.Unlock()
		for offered := 0; offered < 8*40+1; {
			time.Sleep(time.Second)
			synctest.Wait()
			offered += len(p.contents())
			p.decide(proto.Accepted, nil)
		}
		synctest.Wait()
		if n := e.count(accepted); n != 8*40+1 {
			t.Errorf("%d were accepted in the end", n)
		}
	})
}
