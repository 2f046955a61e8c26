package world

import (
	"context"
	"io"
	"log"
	"maps"
	"math"
	"net"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/fiatjaf/eventstore/slicestore"
	"github.com/fiatjaf/khatru"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/outside"
)

// Relay is a foreign relay on this machine.
type Relay struct {
	URL string
	*outside.Relay
	t testing.TB
}

// NewRelay starts a relay that holds events and does not speak NIP-77.
func NewRelay(t testing.TB, events ...*nostr.Event) *Relay {
	t.Helper()
	return NewRelayThat(t, outside.Behaviour{NoNegentropy: true}, events...)
}

// NewRelayThat starts a relay that behaves in a way.
func NewRelayThat(t testing.TB, is outside.Behaviour, events ...*nostr.Event) *Relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	r := RelayOf(t, "ws://"+l.Addr().String(), outside.NewRelay(is))
	done := make(chan error, 1)
	go func() { done <- r.Serve(l) }()
	t.Cleanup(func() {
		l.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	r.Publish(events...)
	return r
}

// RelayOf is a relay that is served elsewhere.
func RelayOf(t testing.TB, url string, relay *outside.Relay) *Relay { return &Relay{url, relay, t} }

// Publish gives events to the relay, which tells them to its subscribers.
func (r *Relay) Publish(events ...*nostr.Event) {
	r.t.Helper()
	if err := r.Relay.Publish(events...); err != nil {
		r.t.Error(err)
	}
}

// HangUp closes all connections, and waits until the relay has forgotten who listened there.
func (r *Relay) HangUp() {
	r.t.Helper()
	r.Relay.HangUp()
	await(r.t, "no client listens", func() bool { return r.Listening() == 0 })
}

// Khatru is a relay of which nothing but the address is ours.
type Khatru struct {
	URL   string
	relay *khatru.Relay
	t     testing.TB

	mu      sync.Mutex // of the store too, which has none
	readers map[string]bool
}

// NewKhatru starts a khatru, with or without NIP-77, that holds events.
func NewKhatru(t testing.TB, negentropy bool, events ...*nostr.Event) *Khatru {
	t.Helper()
	store := &slicestore.SliceStore{MaxLimit: math.MaxInt}
	must(t, store.Init())
	k := &Khatru{relay: khatru.NewRelay(), t: t, readers: map[string]bool{}}
	k.relay.Negentropy, k.relay.Log = negentropy, log.New(io.Discard, "", 0)
	locked := func(do func(context.Context, *nostr.Event) error) func(context.Context, *nostr.Event) error {
		return func(ctx context.Context, ev *nostr.Event) error {
			k.mu.Lock()
			defer k.mu.Unlock()
			return do(ctx, ev)
		}
	}
	k.relay.StoreEvent = append(k.relay.StoreEvent, locked(store.SaveEvent))
	k.relay.ReplaceEvent = append(k.relay.ReplaceEvent, locked(store.ReplaceEvent))
	k.relay.QueryEvents = append(k.relay.QueryEvents, func(_ context.Context, f nostr.Filter) (chan *nostr.Event, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		answer := make(chan *nostr.Event, 10_000)
		defer close(answer)
		if f.LimitZero {
			return answer, nil
		}
		found, err := store.QueryEvents(context.Background(), f)
		if err != nil {
			return nil, err
		}
		for ev := range found {
			answer <- ev
		}
		return answer, nil
	})
	server := httptest.NewServer(k.relay)
	t.Cleanup(server.Close)
	k.URL = RelayAt(server.URL)
	k.Publish(events...)
	return k
}

// Publish gives events to the relay, which tells them to its subscribers.
func (k *Khatru) Publish(events ...*nostr.Event) {
	k.t.Helper()
	for _, ev := range events {
		if _, err := k.relay.AddEvent(context.Background(), ev); err != nil {
			k.t.Fatal(err)
		}
		k.relay.BroadcastEvent(ev)
	}
}

// Guard lets only clients read that have authenticated (NIP-42), with any key.
func (k *Khatru) Guard() {
	k.relay.RejectFilter = append(k.relay.RejectFilter, func(ctx context.Context, _ nostr.Filter) (bool, string) {
		reader := khatru.GetAuthed(ctx)
		if reader == "" {
			return true, "auth-required: this relay wants to know who reads"
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.readers[reader] = true
		return false, ""
	})
}

// Readers are the public keys of those who have authenticated and read.
func (k *Khatru) Readers() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.readers))
}
