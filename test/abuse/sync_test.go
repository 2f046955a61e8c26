package abuse

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// trickle is a git server that answers everything with one byte a second, for ever. It gives its
// port.
func trickle(t *testing.T) (port int, asked *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fixture.Must(t, err)
	asked = &atomic.Int64{}
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended); listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			go func() {
				defer c.Close()
				c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\r\n" +
					"001e# service=git-upload-pack\n0000fff0")) // a line of 65,516 bytes begins
				tick := time.NewTicker(time.Second)
				defer tick.Stop()
				for {
					select {
					case <-ended:
						return
					case <-tick.C:
						if _, err := c.Write([]byte("x")); err != nil {
							return
						}
					}
				}
			}()
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port, asked
}

// TestHuntFlood: identifiers whose git servers trickle do not keep the hunt from others.
func TestHuntFlood(t *testing.T) {
	t.Parallel()
	var ports []int
	var asked []*atomic.Int64
	for range 4 {
		port, count := trickle(t)
		ports, asked = append(ports, port), append(asked, count)
	}
	var flood []*nostr.Event
	bad := world.NewRelay(t) // the announcements list it: only such a relay is asked for states
	for i := range 110 {
		who, identifier := fixture.NewPerson(), fmt.Sprintf("trickle-%d", i)
		url := fmt.Sprintf("http://127.0.0.1:%d/%s.git", ports[i%4], identifier)
		flood = append(flood, who.Announce(identifier, url, bad.URL),
			who.State(identifier, map[string]string{"refs/heads/main": randomHex(20)}))
	}
	bad.Publish(flood...)
	p := start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": bad.URL})
	bus := world.Listen(t, p.NATS)
	fixture.Await(t, "all of the flood is held", func() bool {
		return world.HeldEvents(t, p) >= len(flood)
	})
	fixture.Await(t, "the trickling servers are asked", func() bool { return asked[0].Load() > 0 })

	// Another person's repository has to be fetched from a server with another name.
	ann, work, git := fixture.NewPerson(), world.NewWorkTree(t), world.NewGitServer(t)
	url := strings.Replace(git.Host("ann", work), "127.0.0.1", "localhost", 1)
	announcement, state := ann.Announce("hers", url, bad.URL), ann.State("hers", work.Refs())
	began := time.Now()
	bad.Publish(announcement, state)
	p.Serves(state)
	t.Logf("beside 110 trickling identifiers, a repository was found after %v", time.Since(began).Round(time.Millisecond))
	if !bus.Heard("grasp.git.hers.fetched", "localhost") {
		t.Error("it was not fetched")
	}
}

// TestOneAnnouncementStopsDiscovery: an enormous recursive maintainer set does not keep other
// relays from being synced.
func TestOneAnnouncementStopsDiscovery(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"NGIT_EVENTS_PER_MINUTE": "10000", "NGIT_EVENTS_PER_MINUTE_PER_IP": "10000"})
	elsewhere, later := world.NewRelay(t), world.NewRelay(t)
	if later.URL < elsewhere.URL { // what came later in their order got nothing
		elsewhere, later = later, elsewhere
	}
	people := make([]*fixture.Person, 42)
	for i := range people {
		people[i] = fixture.NewPerson()
	}
	// Each of them names the next, and hundreds more: together more than a message on the bus
	// holds.
	names := func(next int) []string {
		list := []string{elsewhere.URL}
		if next < len(people) {
			list = append(list, people[next].PubKey)
		}
		for len(list) < 480 {
			list = append(list, randomHex(32))
		}
		return list
	}
	s := world.DialFrom(t, p.Relay(), stranger(1))
	for i, who := range people {
		if ok, message := s.Submit(who.Announce("vast", names(i+1)...)); !ok {
			t.Fatal(message)
		}
	}
	n := moveIn(t, p)
	issue := fixture.NewPerson().Sign(1621, "from elsewhere", n.who.Repo(home))
	later.Publish(issue)
	n.submit(n.who.At(nostr.Now()+1).Announce(home, later.URL), "")
	p.Serves(issue)
	n.unhurt(1)
}

// TestSyncFillsTheQueue: what comes from other relays does not keep users' events waiting, even
// if it fills all the room that there is for it.
func TestSyncFillsTheQueue(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"TENDRIL_TEST_CANDIDATE_QUEUE_BYTES": "2097152"})
	n := moveIn(t, p)
	mallory := fixture.NewPerson()
	filling := strings.Repeat("x", 30_000)
	var relays []string
	for range 4 {
		var flood []*nostr.Event
		for range 400 {
			flood = append(flood, mallory.Sign(1621, filling, n.who.Repo(home), nostr.Tag{"r", randomHex(8)}))
		}
		relays = append(relays, world.NewRelay(t, flood...).URL)
	}
	n.submit(n.who.At(nostr.Now()+1).Announce(home, relays...), "")
	n.unhurt(3)
	fixture.Await(t, "the flood has come too", func() bool {
		return p.Count(nostr.Filter{Authors: []string{mallory.PubKey}}) == 1600
	})
}
