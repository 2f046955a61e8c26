package candidates

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// TestLargeEventsAreBoundedInBytes: of many events of almost 1 MiB that nobody decides, no more are
// under way than fit, and one that is decided makes room for one.
func TestLargeEventsAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	b := openBus(t, 256<<20)
	s, _ := start(t, b, nil)
	const size, offered = 1_000_000, 24
	const fit = (4 << 20) / size
	live := s.roads[roadLive].room
	ctx, cancel := context.WithCancel(t.Context())
	var offering sync.WaitGroup
	defer offering.Wait()
	defer cancel()
	for n := range offered {
		offering.Go(func() {
			ev := &nostr.Event{PubKey: strings.Repeat("ab", 32), CreatedAt: nostr.Timestamp(n), Content: strings.Repeat("x", size), Sig: strings.Repeat("0", 128)}
			ev.ID = ev.GetID()
			err := s.Offer(ctx, Candidate{Event: ev, Lane: proto.LaneSyncLive, Relay: fmt.Sprint("wss://r", n), Done: func(proto.Verdict, error) {}})
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	wait := func() int {
		live.mu.Lock()
		defer live.mu.Unlock()
		return len(live.line)
	}
	eventually(t, "the window is full", func() bool { return wait() == offered-fit })
	if n, bytes := live.inside(); n != fit || bytes > 4<<20 {
		t.Fatalf("%d events of %d bytes are under way, want %d", n, bytes, fit)
	}
	s.judged(&nats.Msg{Data: []byte(`{"ref":"1","verdicts":[{}]}`)})
	eventually(t, "one more comes in", func() bool { return wait() == offered-fit-1 })
	if n, bytes := live.inside(); n != fit || bytes > 4<<20 {
		t.Fatalf("%d events of %d bytes are under way, want %d", n, bytes, fit)
	}
}

// TestTheLeastComesFirst: a relay that fills the window with large events, and waits with more,
// does not keep a second one out: that one has the next room, and all room until it has as much as
// the first.
func TestTheLeastComesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(100, 1000)
		for range 10 {
			if err := w.enter(t.Context(), nil, "large", 100); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		var came []string
		wait := func(name string, bytes int) {
			go func() {
				if err := w.enter(t.Context(), nil, name, bytes); err != nil {
					t.Error(err)
				}
				mu.Lock()
				came = append(came, name)
				mu.Unlock()
			}()
			synctest.Wait()
		}
		for range 3 {
			wait("large", 100)
		}
		for range 4 {
			wait("small", 50)
		}
		for i, want := range []string{
			"small small", "small small small small", "small small small small large",
		} {
			w.leave("large", 1, 100)
			synctest.Wait()
			if got := strings.Join(came, " "); got != want {
				t.Errorf("after %d have left: %s, want %s", i+1, got, want)
			}
		}
		for range 2 {
			w.leave("large", 1, 100)
		}
		synctest.Wait()
		if len(came) != 7 {
			t.Errorf("in the end %v", came)
		}
	})
}

// TestWhoGivesUpMakesRoomForOthers: one whose time is over stands in nobody's way, and what is
// larger than the window comes in alone.
func TestWhoGivesUpMakesRoomForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(10, 100)
		if err := w.enter(t.Context(), nil, "a", 50); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		gone := make(chan error, 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() { gone <- w.enter(ctx, ended, "b", 1000) }()
		synctest.Wait()
		in := make(chan error, 1)
		go func() { in <- w.enter(t.Context(), ended, "c", 50) }()
		synctest.Wait()
		select {
		case <-in:
			t.Fatal("it overtook one that waited longer")
		default:
		}
		if err := <-gone; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("given up with %v", err)
		}
		if err := <-in; err != nil {
			t.Error(err)
		}
		go func() { gone <- w.enter(t.Context(), ended, "b", 1000) }()
		w.leave("a", 1, 50)
		w.leave("c", 1, 50)
		if err := <-gone; err != nil {
			t.Error(err)
		}
		go func() { gone <- w.enter(t.Context(), ended, "d", 1) }()
		synctest.Wait()
		close(ended)
		if err := <-gone; !errors.Is(err, ErrEnded) {
			t.Errorf("after the end: %v", err)
		}
		w.leave("b", 1, 100)
		if n, bytes := w.inside(); n+bytes+len(w.origins)+len(w.line) != 0 || w.bytes != 100 || w.candidates != 10 {
			t.Errorf("in the end %+v", w)
		}
	})
}

// TestWindowUnderLoad: whatever comes and goes, the bounds hold and nobody is forgotten.
func TestWindowUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWindow(20, 1000)
	var all sync.WaitGroup
	for n := range 16 {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(n), 1))
			name := fmt.Sprint(n % 5)
			for range 300 {
				bytes := rnd.IntN(400)
				ctx, cancel := context.WithCancel(t.Context())
				if rnd.IntN(4) == 0 {
					go cancel()
				}
				if w.enter(ctx, nil, name, bytes) == nil {
					if n, used := w.inside(); n > 20 || used > 1000 {
						t.Errorf("%d candidates, %d bytes", n, used)
					}
					w.leave(name, 1, bytes)
				}
				cancel()
			}
		})
	}
	all.Wait()
	if len(w.origins)+len(w.line) != 0 || w.bytes != 1000 || w.candidates != 20 {
		t.Errorf("in the end %d origins, room for %d and %d bytes", len(w.origins), w.candidates, w.bytes)
	}
}
