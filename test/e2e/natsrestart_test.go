package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/world"
)

// TestNATSRestarts: the single NATS server is ended and started again, while a foreign relay and a
// user send events and repositories are cloned and pushed to. No service ends; nothing is lost;
// every relay and shard has one owner; a subscription that was open before goes on.
func TestNATSRestarts(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "terminated": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			natsRestarts(t, by)
		})
	}
}

func natsRestarts(t *testing.T, by syscall.Signal) {
	s := newScene(t)
	bus, volume := world.StartNATS(t), world.Folder(t)
	settings := map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.first.URL, "NGIT_WORKER_TTL": "15s", "NGIT_CANDIDATE_ACK_WAIT": "2s"}
	var replicas []*world.Replica
	for _, name := range []string{"gateway", "discovery", "relayconn", "purgatory", "ingest"} { // the others wait for ingest
		replicas = append(replicas, world.StartReplica(t, name, bus.URL, volume, settings))
	}
	door := replicas[0].URL()
	relay := world.RelayAt(door)
	for _, ev := range []*nostr.Event{s.announcement, s.state, s.issue} {
		world.Serves(t, relay, ev)
	}
	ann, work := world.NewPerson(t), world.NewWorkTree(t)
	for _, ev := range []*nostr.Event{ann.Announce("mine", "mine", nil, nil), ann.State("mine", work.Refs(), "refs/heads/main")} {
		if ok, message := world.Submit(t, relay, ev); !ok || message != waits {
			t.Fatalf("answered %v %q", ok, message)
		}
	}
	repository := door + "/" + ann.Npub + "/mine.git"
	onceMoved(t, work.Dir, "push", "-q", repository, "main")
	idle := world.Dial(t, relay)
	last := s.guest.Sign(1621, "the last one", nostr.Tag{"a", s.owner.Address(project)})
	idle.Send("REQ", "idle", map[string]any{"ids": []string{last.ID}})
	if m := idle.Next(); m[0] != "EOSE" {
		t.Fatalf("answered %v", m)
	}

	// The traffic. What the user is refused is sent again, as clients do.
	var stop atomic.Bool
	var traffic sync.WaitGroup
	var mu sync.Mutex
	var sent []*nostr.Event
	note := func(ev *nostr.Event) {
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, ev)
	}
	traffic.Go(func() {
		for i := 0; !stop.Load(); i++ {
			ev := s.guest.Sign(1621, fmt.Sprint("by sync ", i), nostr.Tag{"a", s.owner.Address(project)})
			s.second.Publish(ev)
			note(ev)
			time.Sleep(20 * time.Millisecond)
		}
	})
	traffic.Go(func() {
		for i := 0; !stop.Load(); i++ {
			ev := ann.Sign(1621, fmt.Sprint("by user ", i), nostr.Tag{"a", ann.Address("mine")})
			for ok := false; !ok && !t.Failed(); {
				message := ""
				if ok, message = world.TrySubmit(t, relay, ev); message == world.HungUp {
					t.Error("the front door hung up")
				}
			}
			note(ev)
		}
	})
	traffic.Go(func() {
		for i := 0; !stop.Load() && !t.Failed(); i++ {
			onceMoved(t, work.Dir, "clone", "-q", repository, filepath.Join(work.Dir, ".git", "copies", fmt.Sprint(i)))
		}
	})
	for range 2 {
		time.Sleep(time.Second) // some traffic before and between
		bus.End(by)
		bus.Start()
	}
	time.Sleep(time.Second)
	stop.Store(true)
	traffic.Wait()

	next := work.Commit("after the restarts")
	state := ann.SignAt(nostr.Now()+1, 30618, "", nostr.Tag{"d", "mine"}, nostr.Tag{"HEAD", "ref: refs/heads/main"}, nostr.Tag{"refs/heads/main", next})
	world.Await(t, "a state is taken", func() bool {
		ok, message := world.Submit(t, relay, state)
		return ok && message == waits
	})
	onceMoved(t, work.Dir, "push", "-q", repository, "main")
	world.Serves(t, relay, state)
	for _, ev := range sent {
		world.Serves(t, relay, ev)
	}
	s.second.Publish(last)
	if m := idle.Next(); m[0] != "EVENT" || m[2].(map[string]any)["id"] != last.ID {
		t.Errorf("the idle subscription is told %v", m)
	}
	wantOwners(t, bus.URL, len([]*world.Relay{s.first, s.second}))
	for _, r := range replicas {
		if !r.Running() {
			t.Errorf("%s has ended:\n%s", r.Name, r.Output())
		}
	}
	t.Logf("%d events were sent meanwhile", len(sent))
}

// wantOwners checks that so many relays and all shards are claimed, each by a worker that lives.
func wantOwners(t *testing.T, url string, relays int) {
	t.Helper()
	js, done := world.JetStream(t, url)
	defer done()
	ctx := world.Context(t)
	claims, err := js.KeyValue(ctx, proto.BucketClaims)
	if err != nil {
		t.Fatal(err)
	}
	workers, err := js.KeyValue(ctx, proto.BucketWorkers)
	if err != nil {
		t.Fatal(err)
	}
	world.Await(t, "every relay and shard has an owner that lives", func() bool {
		keys, err := claims.Keys(ctx)
		if err != nil {
			return false
		}
		owned := map[string]int{}
		for _, key := range keys {
			var c proto.Claim
			var w proto.Worker
			group, _, err := proto.ParseClaimKey(key)
			if err != nil {
				t.Fatal(err)
			}
			entry, err := claims.Get(ctx, key)
			if err != nil || json.Unmarshal(entry.Value(), &c) != nil {
				return false
			}
			record, err := workers.Get(ctx, proto.ClaimKey(group, c.Worker))
			if err == nil && json.Unmarshal(record.Value(), &w) == nil && w.Incarnation == c.Incarnation {
				owned[group]++
			}
		}
		return owned[proto.GroupRelays] == relays && owned[proto.GroupShards] == proto.Shards
	})
}
