package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/outside"
	"tendril.dev/test/world"
)

const (
	chaosPast = 400                   // events that relays have at the beginning
	chaosPace = 10 * time.Millisecond // between two new ones
	// chaosDown is how long a process is away at most: longer than chaosTTL, after which others
	// take what it had.
	chaosDown = 5 * time.Second
	chaosTTL  = "3s"
	// chaosPatience is how long a gateway may take in the end to have everything.
	chaosPatience = 3 * time.Minute
	// chaosLimit is more events than there are.
	chaosLimit = 100_000
)

// chaosTime is how long processes come and go: a moment, or what TENDRIL_CHAOS says.
func chaosTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("TENDRIL_CHAOS")
	if text == "" {
		return 4 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("TENDRIL_CHAOS: %v", err)
	}
	return d
}

// TestChaos: four relay workers and two gateways are killed, terminated and stopped for a while at
// random, while six relays have partly the same events and are told new ones, the same by several
// of them a moment apart. No subscriber gets an event twice, or misses one that stands in the log
// before another that it got. In the end both gateways have all that any relay has.
func TestChaos(t *testing.T) {
	t.Parallel()
	c := newChaos(t)
	began := time.Now()
	var publishing sync.WaitGroup
	publishing.Go(c.publish)
	t.Cleanup(func() {
		c.over.Store(true)
		publishing.Wait()
	})
	for end := began.Add(chaosTime(t)); time.Now().Before(end); {
		c.disturb()
		time.Sleep(500*time.Millisecond + rand.N(time.Second))
	}
	c.over.Store(true)
	publishing.Wait()
	c.logf("the end of the disturbances")
	for _, v := range c.victims {
		c.back(v)
	}
	c.served()
	c.audit()
}

// chaos is the system, the relays, and who watches.
type chaos struct {
	t        *testing.T
	began    time.Time
	nats     string
	volume   string
	settings map[string]string
	owner    *fixture.Person
	relays   []*world.Relay
	js       jetstream.JetStream
	over     atomic.Bool // no more events are published

	victims     []*victim
	round       []*victim // those whose turn is still to come
	did         map[string]int
	subscribers []*subscriber

	events []*nostr.Event // that relays have
	copies int            // how often they have them together
}

// victim is a process that comes and goes.
type victim struct {
	name, service string
	settings      map[string]string
	process       atomic.Pointer[world.Replica]
	since         time.Time // the process runs
	stopped       bool      // by SIGSTOP
	dead          bool
	due           time.Time // to come back
}

func newChaos(t *testing.T) *chaos {
	work, git, bus := world.NewWorkTree(t), world.NewGitServer(t), world.StartNATS(t)
	c := &chaos{t: t, began: time.Now(), nats: bus.URL, volume: world.Folder(t), owner: fixture.NewPerson(), did: map[string]int{}}
	var urls []string
	for n := range 6 {
		r := world.NewRelayThat(t, outside.Behaviour{Page: 100, NoNegentropy: n%2 == 0})
		c.relays, urls = append(c.relays, r), append(urls, r.URL)
	}
	announcement, state := c.owner.Announce("mine", append(urls, git.Host("mine", work))...), c.owner.State("mine", work.Refs())
	c.give(0, announcement, state)
	for n := range chaosPast {
		ev := c.issue(nostr.Now() - nostr.Timestamp(100_000-50*n))
		for _, relay := range rand.Perm(len(c.relays))[:1+rand.N(3)] {
			c.give(relay, ev)
		}
	}
	c.settings = map[string]string{
		"NGIT_SYNC_BOOTSTRAP_RELAY_URL": urls[0], "NGIT_WORKER_TTL": chaosTTL, "TENDRIL_TEST_CANDIDATE_ACK_WAIT": chaosTTL, "NGIT_LOG_LEVEL": "info",
		"NGIT_RELAY_FILTER_LIMIT": strconv.Itoa(chaosLimit),
	}
	var done func()
	c.js, done = world.JetStream(t, c.nats)
	t.Cleanup(done)
	for _, service := range []string{"ingest", "purgatory", "discovery"} {
		c.start(service, c.settings)
	}
	for n, service := range []string{"relayconn", "relayconn", "relayconn", "relayconn", "gateway", "gateway"} {
		v := &victim{name: fmt.Sprint(service, " ", n), service: service, settings: maps.Clone(c.settings)}
		v.settings["NGIT_RELAY_DATA_PATH"] = world.Folder(t)
		c.victims = append(c.victims, v)
		c.run(v)
	}
	for _, v := range c.gateways() {
		door := v.process.Load().Door()
		door.Serves(announcement, state)
		s := subscribe(t, v.name, nostr.Filter{Kinds: []int{1621}, Limit: chaosLimit}, func() (string, bool) { return v.process.Load().Listens() })
		t.Cleanup(func() { s.end() })
		c.subscribers = append(c.subscribers, s)
	}
	return c
}

// issue makes a new issue, which no relay has yet.
func (c *chaos) issue(at nostr.Timestamp) *nostr.Event {
	c.t.Helper()
	ev := c.owner.At(at).Sign(1621, fmt.Sprint("issue ", len(c.events)), c.owner.Repo("mine"))
	c.events = append(c.events, ev)
	return ev
}

// give publishes events at a relay.
func (c *chaos) give(relay int, events ...*nostr.Event) {
	c.relays[relay].Publish(events...)
	c.copies += len(events)
}

// publish tells relays new events until the end: each event one relay, and others up to two
// seconds later, when it may have been accepted already.
func (c *chaos) publish() {
	type copied struct {
		at    time.Time
		relay int
		*nostr.Event
	}
	var later []copied
	for !c.over.Load() || len(later) > 0 {
		time.Sleep(chaosPace)
		now := time.Now()
		if !c.over.Load() {
			ev := c.issue(nostr.Now())
			for n, relay := range rand.Perm(len(c.relays))[:1+rand.N(4)] {
				at := now
				if n > 0 {
					at = now.Add(rand.N(2 * time.Second))
				}
				later = append(later, copied{at, relay, ev})
			}
		}
		later = slices.DeleteFunc(later, func(l copied) bool {
			if l.at.After(now) {
				return false
			}
			c.give(l.relay, l.Event)
			return true
		})
	}
}

func (c *chaos) logf(format string, args ...any) {
	c.t.Logf("%6.1f s  %s", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}

func (c *chaos) start(service string, settings map[string]string) *world.Replica {
	c.t.Helper()
	return world.StartRun(c.t, []string{service}, c.nats, c.volume, settings)
}

// run starts a victim.
func (c *chaos) run(v *victim) {
	c.t.Helper()
	v.dead, v.since = false, time.Now()
	v.process.Store(c.start(v.service, v.settings))
}

// back lets a victim that is away go on.
func (c *chaos) back(v *victim) {
	c.t.Helper()
	switch {
	case v.stopped:
		c.logf("%s goes on", v.name)
		v.stopped = false
		if err := syscall.Kill(v.process.Load().PID(), syscall.SIGCONT); err != nil {
			c.t.Error(err)
		}
	case v.dead:
		c.logf("%s starts again", v.name)
		c.run(v)
	}
}

// disturb brings back who has been away for long enough, and disturbs one of the others. All have
// their turn before one has it again.
func (c *chaos) disturb() {
	c.t.Helper()
	for _, v := range c.victims {
		if time.Now().After(v.due) {
			c.back(v)
		}
	}
	if len(c.round) == 0 {
		for _, n := range rand.Perm(len(c.victims)) {
			c.round = append(c.round, c.victims[n])
		}
	}
	at := slices.IndexFunc(c.round, func(v *victim) bool { return !v.dead && !v.stopped })
	if at < 0 {
		return
	}
	v := c.round[at]
	c.round = slices.Delete(c.round, at, at+1)
	r := v.process.Load()
	v.due = time.Now()
	switch dice := rand.N(10); {
	case dice < 4 || r.Output() == "": // it does not listen to signals yet
		c.note(v, "killed")
		r.Kill()
		c.run(v)
	case dice < 6:
		c.note(v, "killed, and away for a while")
		v.dead, v.due = true, v.due.Add(rand.N(chaosDown))
		r.Kill()
	case dice < 8:
		c.note(v, "terminated")
		if err := r.Stop(); err != nil {
			c.t.Errorf("%s ends with %v", v.name, err)
		}
		c.run(v)
	default:
		c.note(v, "stopped for a while")
		v.stopped, v.due = true, v.due.Add(rand.N(chaosDown))
		if err := syscall.Kill(r.PID(), syscall.SIGSTOP); err != nil {
			c.t.Error(err)
		}
	}
}

func (c *chaos) note(v *victim, what string) {
	c.logf("%s is %s; it ran for %.1f s", v.name, what, time.Since(v.since).Seconds())
	c.did[what]++
}

func (c *chaos) gateways() (all []*victim) {
	for _, v := range c.victims {
		if v.service == "gateway" {
			all = append(all, v)
		}
	}
	return all
}

// served waits until both gateways serve all that relays have.
func (c *chaos) served() {
	c.t.Helper()
	began := time.Now()
	for _, v := range c.gateways() {
		door := v.process.Load().Door()
		for deadline := time.Now().Add(chaosPatience); ; time.Sleep(100 * time.Millisecond) {
			if door.Count(nostr.Filter{Kinds: []int{1621}}) == len(c.events) || time.Now().After(deadline) {
				break
			}
		}
		once(c.t, v.name+" serves", c.events, door.Fetch(nostr.Filter{Kinds: []int{1621}, Limit: chaosLimit}))
	}
	c.logf("both gateways serve all, %.1f s after the last disturbance", time.Since(began).Seconds())
}

// audit looks at what was served.
func (c *chaos) audit() {
	c.t.Helper()
	var visits []visit
	for _, s := range c.subscribers {
		visits = append(visits, s.end()...)
	}
	log := map[string]entry{}
	events, seqs := readLog(c.t, c.js, proto.AnyEvent)
	for n, ev := range events {
		if _, twice := log[ev.ID]; twice {
			c.t.Errorf("%s stands in the log twice, the second time at %d", ev.ID, seqs[n])
		}
		log[ev.ID] = entry{ev, seqs[n]}
	}
	sent := 0
	var wrong []string
	for _, v := range visits {
		sent += len(v.ids)
		wrong = append(wrong, unfaithful(v, log)...)
	}
	for n, w := range wrong {
		if n == 20 {
			c.t.Errorf("and %d more", len(wrong)-n)
			break
		}
		c.t.Error(w)
	}
	if len(visits) < len(c.subscribers) {
		c.t.Errorf("nothing was tried: there were %d visits", len(visits))
	}
	c.logf("disturbances: %v", c.did)
	c.logf("events: %d, which the relays have %d times together; in the log: %d", len(c.events), c.copies, len(log))
	c.logf("subscriptions: %d, with %d events", len(visits), sent)
}
