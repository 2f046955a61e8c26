package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/nettest"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/world"
)

// cluster is two processes of each service behind a balancer, and users who do not stop using it.
type cluster struct {
	t        *testing.T
	nats     string
	volume   string
	settings map[string]string
	balancer *world.Balancer
	replicas map[string][]*world.Replica // oldest first
	started  int
	workers  map[*world.Replica]string // their names in claims

	users sync.WaitGroup
	stop  chan struct{}

	mu     sync.Mutex
	failed []string
	done   map[string]int // what succeeded, by what it is
}

func newCluster(t *testing.T, settings map[string]string) *cluster {
	c := &cluster{
		t: t, nats: nettest.NewNATS(t, "").URL, volume: world.Folder(t), settings: settings, balancer: world.NewBalancer(t),
		replicas: map[string][]*world.Replica{}, workers: map[*world.Replica]string{}, stop: make(chan struct{}), done: map[string]int{},
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
	settings["NGIT_WORKER_NAME"] = fmt.Sprint(name, c.started)
	r := world.StartReplica(c.t, name, c.nats, c.volume, settings)
	r.AwaitReady()
	if name == "gateway" {
		c.balancer.Add(r.URL())
	}
	c.replicas[name] = append(c.replicas[name], r)
	c.workers[r] = settings["NGIT_WORKER_NAME"]
}

// replace is what a rolling update does: one more is started, and when it is ready another is asked
// to stop, and does so well. before is called in between, and says which.
func (c *cluster) replace(name string, before func() *world.Replica) {
	c.t.Helper()
	c.start(name)
	leaving := before()
	c.remove(leaving)
	if name == "gateway" {
		c.balancer.Remove(leaving.URL())
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
	claims, err := js.KeyValue(c.t.Context(), proto.BucketClaims)
	if err != nil {
		c.t.Fatal(err)
	}
	world.Await(c.t, "a worker holds "+identifier, func() bool {
		entry, err := claims.Get(c.t.Context(), proto.ClaimKey(proto.GroupShards, proto.ShardName(proto.ShardOf(identifier))))
		if err != nil {
			return false
		}
		var claim proto.Claim
		if err := json.Unmarshal(entry.Value(), &claim); err != nil {
			c.t.Fatal(err)
		}
		for _, r := range c.replicas["purgatory"] {
			if c.workers[r] == claim.Worker {
				holder = r
			}
		}
		return holder != nil
	})
	return holder
}

// thinking is the time of a user between two requests.
const thinking = 50 * time.Millisecond

// keep lets a user do something again and again until the end. what names it; an error is a failure
// of it.
func (c *cluster) keep(what string, do func(n int) error) {
	c.users.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-c.stop:
				return
			case <-time.After(thinking):
			}
			began := time.Now()
			c.note(what, began, do(n))
		}
	})
}

func (c *cluster) note(what string, began time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failed = append(c.failed, fmt.Sprintf("%s after %v: %v", what, time.Since(began).Round(time.Millisecond), err))
		return
	}
	c.done[what]++
}

// end lets all users come to their end, and gives what failed.
func (c *cluster) end() (failed []string) {
	c.t.Helper()
	close(c.stop)
	c.users.Wait()
	c.t.Logf("done: %v", c.done)
	return c.failed
}

// await waits until users have done something so often since it was called.
func (c *cluster) await(times int, whats ...string) {
	c.t.Helper()
	count := func(what string) int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.done[what]
	}
	before := map[string]int{}
	for _, what := range whats {
		before[what] = count(what)
	}
	for _, what := range whats {
		world.Await(c.t, what+" goes on", func() bool { return count(what) >= before[what]+times })
	}
}

// git runs git, and returns what it printed if it fails.
func (c *cluster) git(dir string, args ...string) error {
	out, err := world.TryGit(c.t, dir, args...)
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(out))
	}
	return nil
}

// repo is a person's repository, on this machine and on the cluster.
type repo struct {
	c      *cluster
	owner  *world.Person
	name   string
	tree   *world.WorkTree
	states int
	relay  *client
}

// found announces a repository and pushes for the first time.
func (c *cluster) found(name string, noise int) *repo {
	c.t.Helper()
	p := &repo{c: c, owner: world.NewPerson(c.t), name: name, tree: world.NewWorkTree(c.t), relay: c.client()}
	p.tree.AddNoise(noise)
	p.tree.Commit("with data")
	if err := p.relay.publish(p.owner.Announce(name, name, nil, nil)); err != nil {
		c.t.Fatal(err)
	}
	if err := p.push(c.balancer.URL); err != nil {
		c.t.Fatal(err)
	}
	return p
}

func (p *repo) at(url string) string { return url + "/" + p.owner.Npub + "/" + p.name + ".git" }

// push publishes a state and pushes what it names.
func (p *repo) push(url string) error {
	p.states++
	head := world.Git(p.c.t, p.tree.Dir, "rev-parse", "HEAD")
	state := p.owner.SignAt(nostr.Now()+nostr.Timestamp(p.states), 30618, "", nostr.Tag{"d", p.name},
		nostr.Tag{"HEAD", "ref: refs/heads/main"}, nostr.Tag{"refs/heads/main", head})
	if err := p.relay.publish(state); err != nil {
		return err
	}
	return p.c.git(p.tree.Dir, "push", "-q", p.at(url), "main")
}

// client is a user's connection to the relay, opened again when the relay says goodbye.
type client struct {
	c    *cluster
	open *world.Socket
}

func (c *cluster) client() *client { return &client{c: c} }

func (c *client) socket() (*world.Socket, error) {
	if c.open == nil {
		s, err := world.TryDialFrom(c.c.t, world.RelayAt(c.c.balancer.URL), "")
		if err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		c.open = s
	}
	return c.open, nil
}

// goodbye drops a connection that has ended. An error: it did not end by the relay's saying so.
func (c *client) goodbye(err error) error {
	c.open.Close()
	c.open = nil
	if websocket.CloseStatus(err) != websocket.StatusGoingAway {
		return fmt.Errorf("the connection ended: %w", err)
	}
	return nil
}

// publish sends an event and waits for its OK. Where the relay says goodbye instead, it cannot have
// read the event, which is sent again on a new connection.
func (c *client) publish(ev *nostr.Event) error {
	for again := false; ; again = true {
		s, err := c.socket()
		if err != nil {
			return err
		}
		sending := s.TrySend("EVENT", ev)
		m, err := s.TryNext()
		switch {
		case err == nil && m[0] == "OK" && m[1] == ev.ID && m[2] == true:
			if again && strings.HasPrefix(fmt.Sprint(m[3]), "duplicate:") {
				return errors.New("an event was read and not answered")
			}
			return nil
		case err == nil:
			return fmt.Errorf("answered: %v", m)
		}
		if err := c.goodbye(err); err != nil {
			return errors.Join(err, sending)
		}
	}
}

// ask asks for events and waits until all are there.
func (c *client) ask(filter nostr.Filter) (events int, err error) {
	for {
		s, err := c.socket()
		if err != nil {
			return 0, err
		}
		sending := s.TrySend("REQ", "s", filter)
		events = 0
		var m []any
		for m, err = s.TryNext(); err == nil; m, err = s.TryNext() {
			switch m[0] {
			case "EVENT":
				events++
			case "EOSE":
				return events, s.TrySend("CLOSE", "s")
			default:
				return 0, fmt.Errorf("answered: %v", m)
			}
		}
		if err := c.goodbye(err); err != nil {
			return 0, errors.Join(err, sending)
		}
	}
}

// use lets users clone, fetch, push, publish and ask for as long as the cluster is up.
func (c *cluster) use() {
	shared := c.found("shared", 200_000)
	for n, name := range []string{"one", "two"} {
		p := c.found(name, 100_000)
		c.keep("push", func(round int) error {
			p.tree.Commit(fmt.Sprint("more ", n, round))
			return p.push(c.balancer.URL)
		})
	}
	copied := filepath.Join(c.t.TempDir(), "copy")
	world.Git(c.t, c.t.TempDir(), "clone", "-q", shared.at(c.balancer.URL), copied)
	c.keep("fetch", func(int) error { return c.git(copied, "fetch", "-q", "--prune") })
	for range 2 {
		dir := c.t.TempDir()
		c.keep("clone", func(n int) error {
			return c.git(dir, "clone", "-q", shared.at(c.balancer.URL), fmt.Sprint("copy", n))
		})
	}
	for n := range 2 {
		guest, relay := world.NewPerson(c.t), c.client()
		c.keep("publish", func(round int) error {
			return relay.publish(guest.Sign(1621, fmt.Sprint(n, round), nostr.Tag{"a", shared.owner.Address("shared")}))
		})
	}
	relay := c.client()
	c.keep("ask", func(int) error {
		events, err := relay.ask(nostr.Filter{Kinds: []int{30617}, Authors: []string{shared.owner.PubKey}})
		if err == nil && events != 1 {
			return fmt.Errorf("%d announcements of one repository", events)
		}
		return err
	})
	c.await(2, users...)
}

var users = []string{"push", "fetch", "clone", "publish", "ask"}

// slowly begins a clone and a push that take some seconds, and gives what waits for their ends.
func (c *cluster) slowly(p *repo, round int) (wait func()) {
	c.t.Helper()
	pushing, pushed := c.balancer.Slow(c.t, 20_000, 100*time.Millisecond)
	cloning, cloned := c.balancer.Slow(c.t, 20_000, 100*time.Millisecond)
	p.tree.AddNoise(600_000)
	p.tree.Commit(fmt.Sprint("a large file ", round))
	dir := c.t.TempDir()
	var both sync.WaitGroup
	began := time.Now()
	both.Go(func() { c.note("slow push", began, p.push(pushing)) })
	both.Go(func() { c.note("slow clone", began, c.git(dir, "clone", "-q", p.at(cloning), "slow")) })
	world.Await(c.t, "both are under way", func() bool { return pushed() > 100_000 && cloned() > 100_000 })
	return both.Wait
}

// TestRollout: every process of every service is replaced by a new one, while users go on. No
// request of theirs fails: not a clone or a push that lasts longer than the worker or the front
// door that it began at, and no event is read without being answered. Nothing waits for a worker to
// expire.
func TestRollout(t *testing.T) {
	t.Parallel()
	c := newCluster(t, map[string]string{"NGIT_WORKER_TTL": "10m", "NGIT_GIT_HANDOVER_WAIT": "2m"})
	large := c.found("large", 600_000)
	c.use()
	for round, name := range []string{"ingest", "purgatory", "discovery", "relayconn", "gateway"} {
		for n := range 2 {
			wait := func() {}
			c.replace(name, func() *world.Replica {
				switch name {
				case "purgatory":
					wait = c.slowly(large, 2*round+n)
					return c.holder(large.name)
				case "gateway":
					wait = c.slowly(large, 2*round+n)
				}
				return c.oldest(name)
			})
			wait()
		}
		c.await(1, users...)
	}
	for _, failure := range c.end() {
		t.Error(failure)
	}
}

// TestKilledProcesses: a purgatory worker and the ingest writer are killed. What fails is what they
// had under way; everything else waits for the successor.
func TestKilledProcesses(t *testing.T) {
	t.Parallel()
	// So long that no live process is taken for dead on a slow machine: what such a worker had
	// under way would fail too.
	c := newCluster(t, map[string]string{"NGIT_WORKER_TTL": "8s", "NGIT_CANDIDATE_ACK_WAIT": "5s", "NGIT_GIT_HANDOVER_WAIT": "2m"})
	c.use()
	for _, name := range []string{"purgatory", "ingest"} { // the oldest ingest is the writer
		victim := c.oldest(name)
		victim.Kill()
		c.remove(victim)
		c.await(2, users...)
	}
	// Each user does one thing after the other, so no more than one of each can have been under
	// way.
	failed := c.end()
	var git int
	for _, failure := range failed {
		t.Log(failure)
		if strings.HasPrefix(failure, "publish") || strings.HasPrefix(failure, "ask") {
			t.Errorf("no relay was killed: %s", failure)
			continue
		}
		git++
	}
	if git > 5 {
		t.Errorf("%d git commands failed, and 5 were under way", git)
	}
	for _, p := range []string{"push", "clone"} {
		if c.done[p] == 0 {
			t.Errorf("no %s", p)
		}
	}
}
