package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril.dev/proto"
	"tendril.dev/test/fixture/nettest"
	"tendril.dev/test/world"
)

// working is users who do not stop.
type working struct {
	t     *testing.T
	users *world.Users
	meter world.Meter
	stop  chan struct{}
	ended chan error
}

// work lets users of a new repository work at a front door.
func work(t *testing.T, door world.Door) *working {
	t.Helper()
	shared := door.Host("shared", world.Hosting{Noise: 200_000})
	w := &working{t: t, users: world.NewUsers(t, shared, world.Hosting{Noise: 100_000}), stop: make(chan struct{}), ended: make(chan error, 1)}
	go func() { w.ended <- w.users.Run(t, &w.meter, 60*time.Millisecond, w.stop) }()
	w.goOn(2)
	return w
}

// goOn waits until users have done everything so often since it was called.
func (w *working) goOn(times int) {
	w.t.Helper()
	before := w.meter.Tallies()
	for _, what := range world.UsersDo {
		await(w.t, what+" goes on", func() bool { return w.meter.Tallies()[what].Requests >= before[what].Requests+times })
	}
}

// end lets all users come to their end, and says how their requests went.
func (w *working) end() map[string]world.Tally {
	w.t.Helper()
	close(w.stop)
	if err := <-w.ended; err != nil {
		w.t.Error(err)
	}
	tallies := w.meter.Tallies()
	w.t.Log(strings.Join(world.Lines(tallies), "\n"))
	return tallies
}

// cluster is two processes of each service behind a balancer.
type cluster struct {
	t        *testing.T
	nats     string
	volume   string
	settings map[string]string
	balancer *world.Balancer
	replicas map[string][]*world.Replica // oldest first
	started  int
	workers  map[*world.Replica]string // their names in claims
}

func newCluster(t *testing.T, settings map[string]string) *cluster {
	c := &cluster{
		t: t, nats: nettest.NewNATS(t, "").URL, volume: world.Folder(t), settings: settings, balancer: world.NewBalancer(t),
		replicas: map[string][]*world.Replica{}, workers: map[*world.Replica]string{},
	}
	for _, name := range world.Services {
		for range 2 {
			c.start(name)
		}
	}
	return c
}

// start starts one more of a service, and waits until it is ready.
func (c *cluster) start(name string) {
	c.t.Helper()
	settings := maps.Clone(c.settings)
	c.started++
	settings["TENDRIL_TEST_WORKER_NAME"] = fmt.Sprint(name, c.started)
	r := world.StartReplica(c.t, name, c.nats, c.volume, settings)
	r.AwaitReady()
	if name == "gateway" {
		c.balancer.Add(r.Door().URL)
	}
	c.replicas[name] = append(c.replicas[name], r)
	c.workers[r] = settings["TENDRIL_TEST_WORKER_NAME"]
}

// replace is what a rolling update does: one more is started, and when it is ready another is asked
// to stop, and does so well. before is called in between, and says which.
func (c *cluster) replace(name string, before func() *world.Replica) {
	c.t.Helper()
	c.start(name)
	leaving := before()
	c.remove(leaving)
	if name == "gateway" {
		c.balancer.Remove(leaving.Door().URL)
	}
	began := time.Now()
	if err := leaving.Stop(); err != nil {
		c.t.Errorf("%s ends with %v", name, err)
	}
	c.t.Logf("%s stopped after %v", name, time.Since(began).Round(time.Millisecond))
}

func (c *cluster) oldest(name string) *world.Replica { return c.replicas[name][0] }

// remove takes a process out of those that are there.
func (c *cluster) remove(r *world.Replica) {
	c.replicas[r.Name] = slices.DeleteFunc(c.replicas[r.Name], func(other *world.Replica) bool { return other == r })
}

// holder is the purgatory worker that holds a repository.
func (c *cluster) holder(identifier string) (holder *world.Replica) {
	c.t.Helper()
	js, done := world.JetStream(c.t, c.nats)
	defer done()
	await(c.t, "a worker holds "+identifier, func() bool {
		claims, err := world.Claims(world.Context(c.t), js, proto.GroupShards)
		must(c.t, err)
		for _, r := range c.replicas["purgatory"] {
			if c.workers[r] == claims[proto.ShardName(proto.ShardOf(identifier))].Worker {
				holder = r
			}
		}
		return holder != nil
	})
	return holder
}

// slowly begins a clone and a push that take some seconds, and gives what waits for their ends.
func (c *cluster) slowly(p *world.Repo) (wait func()) {
	c.t.Helper()
	pushing, pushed := c.balancer.Slow(c.t, 20_000, 100*time.Millisecond)
	cloning, cloned := c.balancer.Slow(c.t, 20_000, 100*time.Millisecond)
	p.Work.AddNoise(600_000)
	dir := c.t.TempDir()
	var both sync.WaitGroup
	both.Go(func() {
		if err := p.Push(c.t, pushing, 0, c.balancer.TrySubmit); err != nil {
			c.t.Errorf("the slow push: %v", err)
		}
	})
	both.Go(func() {
		if out, err := world.TryGit(c.t, dir, "clone", "-q", p.At(cloning), "slow"); err != nil {
			c.t.Errorf("the slow clone: %v\n%s", err, out)
		}
	})
	await(c.t, "both are under way", func() bool { return pushed() > 100_000 && cloned() > 100_000 })
	return both.Wait
}

// TestRollout: every process of every service is replaced by a new one, while users go on. No
// request of theirs fails: not a clone or a push that lasts longer than the worker or the front
// door that it began at, and no event is read without being answered. Nothing waits for a worker to
// expire.
func TestRollout(t *testing.T) {
	t.Parallel()
	c := newCluster(t, map[string]string{"NGIT_WORKER_TTL": "10m", "TENDRIL_TEST_GIT_HANDOVER_WAIT": "2m"})
	large := c.balancer.Host("large", world.Hosting{Noise: 600_000})
	users := work(t, c.balancer.Door)
	for _, name := range []string{"ingest", "purgatory", "discovery", "relayconn", "gateway"} {
		for range 2 {
			wait := func() {}
			c.replace(name, func() *world.Replica {
				switch name {
				case "purgatory":
					wait = c.slowly(large)
					return c.holder(large.Name)
				case "gateway":
					wait = c.slowly(large)
				}
				return c.oldest(name)
			})
			wait()
		}
		users.goOn(1)
	}
	for what, tally := range users.end() {
		if tally.Failed > 0 {
			t.Errorf("%s: %d of %d failed", what, tally.Failed, tally.Requests)
		}
	}
}

// TestKilledProcesses: a purgatory worker and the ingest writer are killed. What fails is what they
// had under way; everything else waits for the successor.
func TestKilledProcesses(t *testing.T) {
	t.Parallel()
	// So long that no live process is taken for dead on a slow machine: what such a worker had
	// under way would fail too.
	c := newCluster(t, map[string]string{"NGIT_WORKER_TTL": "8s", "TENDRIL_TEST_CANDIDATE_ACK_WAIT": "5s", "TENDRIL_TEST_GIT_HANDOVER_WAIT": "2m"})
	users := work(t, c.balancer.Door)
	for _, name := range []string{"purgatory", "ingest"} { // the oldest ingest is the writer
		victim := c.oldest(name)
		victim.Kill()
		c.remove(victim)
		users.goOn(2)
	}
	git := 0
	for what, tally := range users.end() {
		if slices.Contains([]string{"push", "fetch", "clone"}, what) {
			git += tally.Failed
		} else if tally.Failed > 0 {
			t.Errorf("no relay was killed, and of %s failed %d", what, tally.Failed)
		}
	}
	// Each user does one thing after the other, so no more than one of each can have been under
	// way.
	if git > 5 {
		t.Errorf("%d git commands failed, and 5 were under way", git)
	}
	users.users.CheckPushes(t)
}
