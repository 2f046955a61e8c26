package e2e

import (
	"fmt"
	"io"
	"log"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fiatjaf/eventstore/slicestore"
	"github.com/fiatjaf/khatru"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/test/world"
)

// reconcilingRelay is khatru with NIP-77, of which nothing but the address is ours.
func reconcilingRelay(t *testing.T) (url string, publish func(...*nostr.Event)) {
	t.Helper()
	store := &slicestore.SliceStore{MaxLimit: math.MaxInt}
	if err := store.Init(); err != nil {
		t.Fatal(err)
	}
	relay := khatru.NewRelay()
	relay.Negentropy = true
	relay.Log = log.New(io.Discard, "", 0)
	relay.StoreEvent = append(relay.StoreEvent, store.SaveEvent)
	relay.ReplaceEvent = append(relay.ReplaceEvent, store.ReplaceEvent)
	relay.QueryEvents = append(relay.QueryEvents, store.QueryEvents)
	server := httptest.NewServer(relay)
	t.Cleanup(server.Close)
	return server.URL, func(events ...*nostr.Event) {
		for _, ev := range events {
			if _, err := relay.AddEvent(t.Context(), ev); err != nil {
				t.Fatal(err)
			}
			relay.BroadcastEvent(ev)
		}
	}
}

// TestReconcile: what a relay has and what is known here is compared by NIP-77 when all is asked for
// again. That takes a fiftieth of the bytes that REQ takes, with khatru and with another Tendril.
func TestReconcile(t *testing.T) {
	t.Parallel()
	const many, few = 10_000, 100
	owner, guest, work, git := world.NewPerson(t), world.NewPerson(t), world.NewWorkTree(t), world.NewGitServer(t)
	khatruURL, publish := reconcilingRelay(t)
	between := func(url string) (through string, moved func() int64) {
		b := world.NewBalancer(t)
		b.Add(url)
		through, moved = b.Slow(t, 64, 0)
		return "ws" + strings.TrimPrefix(through, "http"), moved
	}
	publish(owner.Announce("mine", "mine", []string{git.Host("mine", work)}, nil),
		owner.State("mine", work.Refs(), "refs/heads/main"))
	first := nostr.Now() - many - 2*few
	var issues []*nostr.Event
	for n := range 10 {
		issues = append(issues, guest.SignAt(first, 1621, fmt.Sprint("issue ", n), nostr.Tag{"a", owner.Address("mine")}))
	}
	publish(issues...)
	written := 0
	comment := func() *nostr.Event {
		written++
		root := issues[written%len(issues)].ID
		return guest.SignAt(first+nostr.Timestamp(written), 1111, fmt.Sprint("comment ", written),
			nostr.Tag{"E", root}, nostr.Tag{"K", "1621"}, nostr.Tag{"e", root}, nostr.Tag{"k", "1621"})
	}
	for range many {
		publish(comment())
	}

	other := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": world.RelayAt(khatruURL)})
	served := func(p *world.Tendril) {
		t.Helper()
		world.Await(t, fmt.Sprintf("%d comments are served", written), func() bool {
			return world.Count(t, p.Relay(), nostr.Filter{Kinds: []int{1111}}) == written
		})
	}
	served(other)
	type follower struct {
		*world.Tendril
		moved func() int64
		byREQ int64
	}
	followers := map[string]*follower{}
	for name, url := range map[string]string{"khatru": khatruURL, "Tendril": other.URL} {
		through, moved := between(url)
		f := &follower{moved: moved, Tendril: world.Start(t, map[string]string{
			"NGIT_SYNC_BOOTSTRAP_RELAY_URL": through, "NGIT_SYNC_RECONNECT_WINDOW": "0s", "NGIT_SYNC_DISABLE_NEGENTROPY": "true",
			"NGIT_SYNC_BATCH_WINDOW_MS": "1000",
		})}
		followers[name] = f
		served(f.Tendril)
		f.byREQ = settled(f.moved)
		if err := f.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	for range few {
		publish(comment())
	}
	served(other)
	for name, f := range followers {
		before := f.moved()
		f.Change(map[string]string{"NGIT_SYNC_DISABLE_NEGENTROPY": "false"})
		f.Restart()
		served(f.Tendril)
		moved := settled(f.moved) - before
		t.Logf("%s: %d bytes by REQ, %d bytes by NIP-77 (%.2f%%)", name, f.byREQ, moved, 100*float64(moved)/float64(f.byREQ))
		if moved*50 > f.byREQ {
			t.Errorf("%s: %d missing events of %d moved %d bytes, all by REQ %d: more than 2%%", name, few, written, moved, f.byREQ)
		}
	}
}

// settled is how many bytes have been moved when for a while no more are.
func settled(moved func() int64) (n int64) {
	for last := int64(-1); n != last; n = moved() {
		last = n
		time.Sleep(3 * time.Second)
	}
	return n
}
