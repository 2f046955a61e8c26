package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestRestartKeepsEverything: events, what is held, repositories; and a relay that was synced is
// not asked for its whole past again.
func TestRestartKeepsEverything(t *testing.T) {
	t.Parallel()
	s := world.NewScene(t)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.First.URL})
	bus := world.Listen(t, p.NATS)
	p.Serves(s.Events()...)
	ann, work := fixture.NewPerson(), world.NewWorkTree(t)
	p.Holds(ann.Announce("waits"), ann.State("waits", work.Refs()))
	synced(t, s, bus)
	must(t, p.Stop())

	missed := s.Guest.At(nostr.Now()-5).Sign(1621, "while you were down", s.Owner.Repo(world.Project))
	s.Second.Publish(missed)
	before := len(s.Second.Asked())
	p.Restart()
	p.Serves(append(s.Events(), missed)...)
	for _, f := range s.Second.Asked()[before:] {
		if f.Since == nil && !f.LimitZero && len(f.Tags["a"])+len(f.Tags["A"])+len(f.Tags["q"]) > 0 && len(f.Tags["e"])+len(f.Tags["E"]) == 0 && f.Tags["q"] == nil {
			t.Errorf("after a short absence the relay was asked for the whole past: %v", f)
		}
	}
	s.CheckClone(t, p.Door)
	work.Git("push", "-q", p.Repo(ann, "waits"), "main")
	if got := p.Fetch(nostr.Filter{Authors: []string{ann.PubKey}}); len(got) != 2 {
		t.Errorf("%d events are served after the push, want what was held before the restart", len(got))
	}
}

// synced waits until everything is confirmed that the second relay was asked for, so that the next
// connection is a quick one.
func synced(t *testing.T, s *world.Scene, bus *world.Listener) {
	t.Helper()
	await(t, "the second relay is synced", func() bool {
		return slices.ContainsFunc(bus.Said(), func(said world.Said) bool {
			var state proto.RelayState
			return strings.HasPrefix(said.Subject, "grasp.relay.") && json.Unmarshal([]byte(said.Data), &state) == nil &&
				gonostr.NormalizeURL(state.URL) == gonostr.NormalizeURL(s.Second.URL) && !state.CompleteUntil.IsZero() && state.Repos == 1 && state.Roots == 3
		})
	})
}

// TestKillNineLosesNothing: the process is killed at any moment while users send events and push.
// What was acknowledged is there afterwards: an event with OK is served or held, a pushed
// repository can be cloned.
func TestKillNineLosesNothing(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	mine := p.Host("mine", world.Hosting{})
	ann, work := mine.Owner, mine.Work
	var served, held []*nostr.Event // acknowledged
	var pushed []string             // repositories
	var mu sync.Mutex
	const rounds = 3
	for round := range rounds {
		var killed atomic.Bool
		var writers sync.WaitGroup
		for n := range 3 {
			writers.Go(func() { // issues, as fast as one connection can
				door := p.Door // that of this process
				for i := range 10_000 {
					ev := ann.Sign(1621, fmt.Sprint(round, n, i), ann.Repo("mine"))
					if err := door.TrySubmit(ev); err == world.ErrHungUp {
						return
					} else if err != nil {
						t.Errorf("issue refused: %v", err)
						return
					}
					mu.Lock()
					served = append(served, ev)
					mu.Unlock()
				}
			})
		}
		writers.Go(func() { // repositories
			door := p.Door
			for i := range 1000 {
				name := fmt.Sprintf("repo-%d-%d", round, i)
				for _, ev := range []*nostr.Event{ann.Announce(name), ann.State(name, work.Refs())} {
					if err := door.TrySubmit(ev); err == world.ErrHungUp {
						return
					} else if err != nil {
						t.Errorf("kind %d refused: %v", ev.Kind, err)
						return
					}
					mu.Lock()
					held = append(held, ev)
					mu.Unlock()
				}
				if out, err := work.TryGit("push", "-q", door.Repo(ann, name), "main"); err != nil {
					if !killed.Load() {
						t.Errorf("push refused: %v\n%s", err, out)
					}
					return
				}
				mu.Lock()
				pushed = append(pushed, name)
				mu.Unlock()
			}
		})
		time.Sleep(time.Duration(300+rand.IntN(900)) * time.Millisecond) // any moment
		if round == rounds-1 {
			await(t, "something of every kind is acknowledged", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return t.Failed() || len(served) > 0 && len(held) > 0 && len(pushed) > 0
			})
		}
		killed.Store(true)
		p.Kill()
		writers.Wait()
		p.Restart()
	}
	t.Logf("%d issues, %d announcements and states, %d pushes were acknowledged", len(served), len(held), len(pushed))
	c := p.Dial()
	for _, ev := range served {
		if got, err := c.Query(nostr.Filter{IDs: []string{ev.ID}}); err != nil || len(got) != 1 {
			t.Fatalf("an acknowledged issue is lost (%v): %s", err, ev)
		}
	}
	for _, ev := range held {
		// Known means: served, or still held. Anything else would be accepted as new.
		ok, message := p.Submit(ev)
		if got, err := c.Query(nostr.Filter{IDs: []string{ev.ID}}); err != nil || !ok || len(got) == 0 && message != world.Waits {
			t.Fatalf("an acknowledged event of kind %d is lost: %v %q, %v", ev.Kind, ok, message, err)
		}
	}
	for _, name := range pushed {
		world.Git(t, t.TempDir(), "clone", "-q", p.Repo(ann, name), filepath.Join(t.TempDir(), "copy"))
		if got := p.Fetch(nostr.Filter{Tags: nostr.TagMap{"d": {name}}}); len(got) != 2 {
			t.Fatalf("after the push of %s only %d of its events are served", name, len(got))
		}
	}
}
