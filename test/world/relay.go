package world

import (
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/outside"
	"tendril.dev/test/outside/hostile"
	"tendril.dev/test/outside/strfry"
)

// Relay is a foreign relay on this machine.
type Relay struct {
	URL string
	*outside.Relay
	t testing.TB
}

// NewRelay starts a relay that holds events.
func NewRelay(t testing.TB, events ...*nostr.Event) *Relay {
	t.Helper()
	return newRelay(t, outside.NewRelay, events)
}

// NewReconcilingRelay starts a relay that holds events and speaks NIP-77.
func NewReconcilingRelay(t testing.TB, events ...*nostr.Event) *Relay {
	t.Helper()
	return newRelay(t, outside.NewReconcilingRelay, events)
}

func newRelay(t testing.TB, make func() (*outside.Relay, error), events []*nostr.Event) *Relay {
	t.Helper()
	relay, err := make()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(relay)
	server.Config.ConnState = relay.Connection
	server.Start()
	t.Cleanup(server.Close)
	r := &Relay{"ws" + strings.TrimPrefix(server.URL, "http"), relay, t}
	r.Publish(events...)
	return r
}

// Publish gives events to the relay, which tells them to its subscribers.
func (r *Relay) Publish(events ...*nostr.Event) {
	r.t.Helper()
	if err := r.Relay.Publish(events...); err != nil {
		r.t.Fatal(err)
	}
}

// HangUp closes all connections, and waits until the relay has forgotten who listened there.
func (r *Relay) HangUp() {
	r.t.Helper()
	r.Relay.HangUp()
	Await(r.t, "no client listens", func() bool { return r.Listening() == 0 })
}

// Strfry is a foreign relay on this machine that treats clients as strfry does.
type Strfry struct {
	URL string
	*strfry.Relay
	t testing.TB
}

// NewStrfry starts such a relay, which holds events.
func NewStrfry(t testing.TB, limits strfry.Limits, events ...*nostr.Event) *Strfry {
	t.Helper()
	relay := strfry.New(limits)
	s := &Strfry{serve(t, relay.Serve), relay, t}
	s.Publish(events...)
	return s
}

// Publish gives events to the relay, which tells them to its subscribers.
func (s *Strfry) Publish(events ...*nostr.Event) {
	s.t.Helper()
	if err := s.Relay.Publish(events...); err != nil {
		s.t.Fatal(err)
	}
}

// Hostile is a relay on this machine that means harm.
type Hostile struct {
	URL string
	*hostile.Relay
}

// NewHostile starts a relay with a trick; it has events that look good.
func NewHostile(t testing.TB, trick hostile.Trick, events ...*nostr.Event) *Hostile {
	t.Helper()
	relay, err := hostile.New(trick, events...)
	if err != nil {
		t.Fatal(err)
	}
	return &Hostile{serve(t, relay.Serve), relay}
}

// serve runs what serves on a listener until the end of the test, and gives its WebSocket URL.
func serve(t testing.TB, run func(net.Listener) error) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- run(l) }()
	t.Cleanup(func() {
		l.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "ws://" + l.Addr().String()
}
