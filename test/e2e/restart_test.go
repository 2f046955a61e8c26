package e2e

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestRestartKeepsEverything: events, what is held, repositories; and a relay that was synced is
// not asked for its whole past again.
func TestRestartKeepsEverything(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.First.URL})
	bus := world.Listen(t, p.NATS)
	all := []*nostr.Event{s.Announcement, s.State, s.Issue, s.Patch, s.Comment, s.OnComment, s.Pull}
	world.Serves(t, p.Relay(), all...)
	ann, work := fixture.NewPerson(), world.NewWorkTree(t)
	wantHeld(t, p, ann.Announce("waits"), ann.State("waits", work.Refs()))
	s.synced(t, bus)
	if err := p.Stop(); err != nil {
		t.Fatalf("the stop: %v", err)
	}

	missed := s.Guest.At(nostr.Now()-5).Sign(1621, "while you were down", s.Owner.Repo(world.Project))
	s.Second.Publish(missed)
	before := len(s.Second.Asked())
	p.Restart()
	world.Serves(t, p.Relay(), all...)
	world.Serves(t, p.Relay(), missed)
	s.checkQuick(t, before)
	s.CheckClone(t, p.URL)
	world.Git(t, work.Dir, "push", "-q", p.URL+"/"+ann.Npub+"/waits.git", "main")
	if got := world.Fetch(t, p.Relay(), nostr.Filter{Authors: []string{ann.PubKey}}); len(got) != 2 {
		t.Errorf("%d events are served after the push, want what was held before the restart", len(got))
	}
}

// TestKillNineLosesNothing: the process is killed at any moment while users send events and push.
// What was acknowledged is there afterwards: an event with OK is served or held, a pushed
// repository can be cloned.
func TestKillNineLosesNothing(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	mine := world.Host(t, p.URL, "mine", world.Hosting{})
	ann, work := mine.Owner, mine.Work
	var served, held []*nostr.Event // acknowledged
	var pushed []string             // repositories
	var mu sync.Mutex
	const rounds = 4
	for round := range rounds {
		var killed atomic.Bool
		var writers sync.WaitGroup
		for n := range 3 {
			writers.Go(func() { // issues, as fast as one connection can
				url := p.Relay()
				for i := range 10_000 {
					ev := ann.Sign(1621, fmt.Sprint(round, n, i), ann.Repo("mine"))
					if err := world.TrySubmit(t, url, ev); err == world.ErrHungUp {
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
			url, front := p.Relay(), p.URL
			for i := range 1000 {
				name := fmt.Sprintf("repo-%d-%d", round, i)
				for _, ev := range []*nostr.Event{ann.Announce(name), ann.State(name, work.Refs())} {
					if err := world.TrySubmit(t, url, ev); err == world.ErrHungUp {
						return
					} else if err != nil {
						t.Errorf("kind %d refused: %v", ev.Kind, err)
						return
					}
					mu.Lock()
					held = append(held, ev)
					mu.Unlock()
				}
				if out, err := world.TryGit(t, work.Dir, "push", "-q", front+"/"+ann.Npub+"/"+name+".git", "main"); err != nil {
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
			fixture.Await(t, "something of every kind is acknowledged", func() bool {
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
	c := world.Dial(t, p.Relay())
	for _, ev := range served {
		if got, err := c.Query(nostr.Filter{IDs: []string{ev.ID}}); err != nil || len(got) != 1 {
			t.Fatalf("an acknowledged issue is lost (%v): %s", err, ev)
		}
	}
	for _, ev := range held {
		// Known means: served, or still held. Anything else would be accepted as new.
		ok, message := submit(t, p, ev)
		if got, err := c.Query(nostr.Filter{IDs: []string{ev.ID}}); err != nil || !ok || len(got) == 0 && message != waits {
			t.Fatalf("an acknowledged event of kind %d is lost: %v %q, %v", ev.Kind, ok, message, err)
		}
	}
	for _, name := range pushed {
		world.Git(t, t.TempDir(), "clone", "-q", p.URL+"/"+ann.Npub+"/"+name+".git", filepath.Join(t.TempDir(), "copy"))
		if got := world.Fetch(t, p.Relay(), nostr.Filter{Tags: nostr.TagMap{"d": {name}}}); len(got) != 2 {
			t.Fatalf("after the push of %s only %d of its events are served", name, len(got))
		}
	}
}
