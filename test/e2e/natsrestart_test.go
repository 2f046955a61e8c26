package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/world"
)

// TestNATSRestarts: the single NATS server is ended and started again, while a foreign relay has
// new events and users work. No service ends; nothing is lost; every relay and shard has one owner;
// a subscription that was open before goes on.
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
	s := world.NewScene(t)
	bus, volume := world.StartNATS(t), world.Folder(t)
	settings := map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.First.URL, "NGIT_WORKER_TTL": "15s", "TENDRIL_TEST_CANDIDATE_ACK_WAIT": "2s"}
	var replicas []*world.Replica
	for _, name := range []string{"gateway", "discovery", "relayconn", "purgatory", "ingest"} { // the others wait for ingest
		replicas = append(replicas, world.StartReplica(t, name, bus.URL, volume, settings))
	}
	door := replicas[0].Door()
	door.Serves(s.Announcement, s.State, s.Issue)
	idle := door.Dial()
	last := s.NewIssue("the last one")
	idle.Send("REQ", "idle", map[string]any{"ids": []string{last.ID}})
	if m := idle.Next(); m[0] != "EOSE" {
		t.Fatalf("answered %v", m)
	}

	users := work(t, door)
	var stop atomic.Bool
	var publishing sync.WaitGroup
	var synced []*nostr.Event
	publishing.Go(func() {
		for i := 0; !stop.Load(); i++ {
			ev := s.NewIssue(fmt.Sprint("by sync ", i))
			s.Second.Publish(ev)
			synced = append(synced, ev)
			time.Sleep(20 * time.Millisecond)
		}
	})
	for range 2 {
		time.Sleep(time.Second) // some traffic before and between
		bus.End(by)
		bus.Start()
	}
	users.goOn(2)
	stop.Store(true)
	publishing.Wait()
	for what, tally := range users.end() {
		if tally.GaveUp > 0 {
			t.Errorf("%s: %d never succeeded", what, tally.GaveUp)
		}
		for text := range tally.Errors {
			// An event may be refused, and is sent again. Reading goes on, but for a repository that is
			// between two workers.
			moved := strings.Contains(text, "moving to another worker") || strings.Contains(text, "error: 503")
			if !(what == "push" || what == "publish" && strings.HasPrefix(text, "refused: ") || (what == "clone" || what == "fetch") && moved) {
				t.Errorf("%s: %s", what, text)
			}
		}
	}
	users.users.CheckPushes(t)
	door.Serves(synced...)
	for ids := range slices.Chunk(users.users.Acked(), 100) {
		if n := door.Count(nostr.Filter{IDs: ids}); n != len(ids) {
			t.Errorf("of %d events that were acknowledged %d are served", len(ids), n)
		}
	}
	s.Second.Publish(last)
	if m := idle.Next(); m[0] != "EVENT" || world.EventID(m) != last.ID {
		t.Errorf("the idle subscription is told %v", m)
	}
	wantOwners(t, bus.URL, 2)
	for _, r := range replicas {
		if !r.Running() {
			t.Errorf("%s has ended:\n%s", r.Name, r.Output())
		}
	}
}

// wantOwners checks that so many relays and all shards are claimed, each by a worker that lives.
func wantOwners(t *testing.T, url string, relays int) {
	t.Helper()
	js, done := world.JetStream(t, url)
	defer done()
	ctx := world.Context(t)
	workers, err := js.KeyValue(ctx, proto.BucketWorkers)
	must(t, err)
	for group, want := range map[string]int{proto.GroupRelays: relays, proto.GroupShards: proto.Shards} {
		await(t, "every one of "+group+" has an owner that lives", func() bool {
			claims, err := world.Claims(ctx, js, group)
			for _, c := range claims {
				var w proto.Worker
				record, missing := workers.Get(ctx, proto.ClaimKey(group, c.Worker))
				if missing != nil || json.Unmarshal(record.Value(), &w) != nil || w.Name != c.Worker {
					return false
				}
			}
			return err == nil && len(claims) == want
		})
	}
}
