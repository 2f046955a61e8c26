package e2e

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/logins"
	"tendril.dev/test/world"
)

// TestPasswordsAreRotated: all services get new passwords and lose the old ones while clients send
// events. No event is lost, and every service goes on in the same process.
func TestPasswordsAreRotated(t *testing.T) {
	t.Parallel()
	bus, volume := world.GuardedNATS(t), world.Folder(t)
	settings := map[string]string{"NGIT_EVENT_TIMEOUT": "3m", "NGIT_EVENTS_PER_MINUTE": "10000", "NGIT_EVENTS_PER_MINUTE_PER_IP": "10000"}
	var replicas []*world.Replica
	for _, name := range world.Services {
		replicas = append(replicas, world.StartReplica(t, name, bus.URL, volume, bus.As(name, settings)))
	}
	door := world.RelayAt(replicas[len(replicas)-1].URL())
	old := map[string]logins.Login{}
	for _, name := range world.Services {
		old[name] = login(t, bus, name)
	}

	var sent atomic.Int64
	var longest time.Duration // that an event waited for its answer
	ctx, enough := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			author, began := world.NewPerson(), time.Now()
			if ok, message := world.Submit(t, door, author.Announce("mine", "mine", nil, nil)); !ok || message != waits {
				t.Errorf("event %d was answered %t %q", sent.Load()+1, ok, message)
			}
			longest = max(longest, time.Since(began))
			sent.Add(1)
		}
	}()
	defer func() { enough(); <-ended }()
	more := func() {
		t.Helper()
		until := sent.Load() + 5
		world.Await(t, "events go through", func() bool { return sent.Load() >= until })
	}
	more()

	if err := logins.Rotate(bus.Folder); err != nil {
		t.Fatal(err)
	}
	bus.Reload()
	more()
	for _, name := range world.Services {
		if bus.Connections(name) == 0 {
			t.Errorf("%s has lost its connection when passwords were added", name)
		}
	}
	if err := logins.Retire(bus.Folder); err != nil {
		t.Fatal(err)
	}
	bus.Reload()
	for _, name := range world.Services {
		world.Await(t, name+" has come back with its new password", func() bool { return bus.Connections(name+"-2") == 1 })
		if n := bus.Connections(name); n != 0 {
			t.Errorf("%d connections with the old password of %s", n, name)
		}
		conn, err := nats.Connect(bus.URL, nats.Timeout(time.Minute), nats.UserInfo(old[name].User, old[name].Password))
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("the old password of %s: %v", name, err)
		}
		if err == nil {
			conn.Close()
		}
	}
	more()
	enough()
	<-ended
	for i := len(replicas) - 1; i >= 0; i-- {
		if err := replicas[i].Stop(); err != nil {
			t.Errorf("%s ends with %v", replicas[i].Name, err)
		}
	}
	t.Logf("%d events; the longest answer took %v", sent.Load(), longest.Round(time.Millisecond))
}

func login(t *testing.T, bus *world.Guarded, user string) logins.Login {
	t.Helper()
	l, err := logins.Read(logins.LoginFile(bus.Folder, user))
	if err != nil {
		t.Fatal(err)
	}
	return l
}
