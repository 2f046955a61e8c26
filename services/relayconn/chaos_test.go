package relayconn

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/bus"
)

const (
	chaosRelays = 50
	// disturbances is how many there are at least, on a slow machine too.
	disturbances = 15
	// chaosTTL is how long a killed worker is believed to live. A slow machine must get a heartbeat
	// through in two thirds of it.
	chaosTTL = 4 * time.Second
)

// chaosTime is how long workers come and go: a few seconds, or what TENDRIL_CHAOS says.
func chaosTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("TENDRIL_CHAOS")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("TENDRIL_CHAOS: %v", err)
	}
	return d
}

// TestChaos: 50 relays, among workers that are killed, stop, lose the bus for a moment and join at
// random, while relays hang up and tell new events. The workers have no index and ask two processes
// that have one, which are killed too. When it is over every relay has one worker and one
// connection, no worker has more than a quarter over the mean, nothing moves any more, and every
// event has come.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("50 relays")
	}
	t.Parallel()
	for _, workers := range []int{1, 5} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			t.Parallel()
			c := newChaos(t, workers)
			for range 2 {
				c.indexes = append(c.indexes, newIndex(t, c.bus))
			}
			for range workers {
				c.join()
			}
			end := time.Now().Add(chaosTime(t))
			for n := 0; n < disturbances || time.Now().Before(end); n++ {
				c.disturb()
				time.Sleep(time.Duration(c.rnd.IntN(300)) * time.Millisecond)
			}
			for len(c.workers) < workers {
				c.join()
			}
			c.calm()
		})
	}
}

// chaos is the relays, those who share them, and what there is to sync.
type chaos struct {
	t        *testing.T
	rnd      *rand.Rand
	bus      *bus.Bus
	judge    *ingest
	relays   []*foreign
	most     int // workers
	workers  []process
	indexes  []process // that answer which events are accepted
	joined   int
	contents []string // of all events
}

func newChaos(t *testing.T, workers int) *chaos {
	t.Helper()
	b := openBusFor(t, chaosTTL)
	c := &chaos{t: t, rnd: rand.New(rand.NewPCG(uint64(workers), 1)), bus: b, judge: newIngest(t, b), most: workers}
	for range chaosRelays {
		r := newForeign(t)
		c.relays = append(c.relays, r)
		c.tell(r, time.Hour)
		c.tell(r, time.Minute)
		aim(t, b, r.URL, wanting(r.URL, "30617:aa:x"))
	}
	return c
}

// tell gives a relay one more event.
func (c *chaos) tell(r *foreign, ago time.Duration) {
	content := fmt.Sprint("event-", len(c.contents))
	c.contents = append(c.contents, content)
	r.publish(event(30617, content, ago))
}

func (c *chaos) join() {
	c.joined++
	c.workers = append(c.workers, startWorker(c.t, c.bus, fmt.Sprint("worker-", c.joined), byRules(true), "--worker-ttl="+chaosTTL.String(),
		// A relay that hangs up twice is left alone for a while, which is not to be longer than the
		// test waits.
		"--sync-base-backoff-secs=15", "--sync-max-backoff-secs=15"))
}

// disturb does one unexpected thing.
func (c *chaos) disturb() {
	r, workers := c.relays[c.rnd.IntN(len(c.relays))], len(c.workers)
	switch what := c.rnd.IntN(9); {
	case workers == 0 || what < 2 && workers < c.most:
		c.join()
	case what < 4:
		c.tell(r, 0)
	case what == 4:
		r.drop()
	case what == 5:
		i := c.rnd.IntN(len(c.indexes))
		c.indexes[i].kill()
		c.indexes[i] = newIndex(c.t, c.bus)
	case what == 6:
		if err := c.workers[c.rnd.IntN(workers)].Bus.Conn.ForceReconnect(); err != nil {
			c.t.Error(err)
		}
	default:
		i := c.rnd.IntN(workers)
		gone := c.workers[i]
		c.workers = slices.Delete(c.workers, i, i+1)
		if what == 7 {
			gone.kill()
		} else {
			gone.stop()
		}
	}
}

// calm waits until all is as it should be, and looks whether it stays so once those are back that a
// slow machine took for dead.
func (c *chaos) calm() {
	c.t.Helper()
	eventually(c.t, "every event is taken", func() bool {
		taken := map[string]bool{}
		for _, what := range c.judge.all() {
			taken[what[strings.LastIndexByte(what, ' ')+1:]] = true
		}
		return !slices.ContainsFunc(c.contents, func(content string) bool { return !taken[content] })
	})
	wrong := ""
	defer func() { c.t.Log(wrong) }()
	eventually(c.t, "all stays as it is", func() bool {
		before := c.dials()
		if wrong = c.wrong(); wrong == "" {
			time.Sleep(chaosTTL + chaosTTL/2)
			wrong = c.wrong()
		}
		return wrong == "" && c.dials() == before
	})
}

// wrong is what is not as it should be.
func (c *chaos) wrong() string {
	names := map[string]bool{}
	for _, w := range c.workers {
		names[w.Worker] = true
	}
	share := map[string]int{}
	for _, r := range c.relays {
		worker := holder(c.t, c.bus, r.Name)
		if !names[worker] {
			return fmt.Sprintf("%s is claimed by %q", r.Name, worker)
		}
		share[worker]++
		open := 0
		r.look(func() { open = len(r.open) })
		if open != 1 {
			return fmt.Sprintf("%s has %d connections", r.Name, open)
		}
	}
	for w, n := range share {
		if n*len(c.workers)*4 > chaosRelays*5 {
			return fmt.Sprintf("%s has %d relays of %d, among %d workers", w, n, chaosRelays, len(c.workers))
		}
	}
	return ""
}

func (c *chaos) dials() (n int) {
	for _, r := range c.relays {
		r.look(func() { n += r.dials })
	}
	return n
}
