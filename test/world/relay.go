package world

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/test/outside"
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
	relay, err := outside.NewRelay()
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
	Await(r.t, "nobody listens any more", func() bool { return r.Listening() == 0 })
}
