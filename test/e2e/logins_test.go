package e2e

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/logins"
	"tendril.dev/test/world"
)

// TestPasswordsAreRotated: all services get new passwords and lose the old ones while users work.
// No event is lost or refused, and every service goes on in the same process.
func TestPasswordsAreRotated(t *testing.T) {
	t.Parallel()
	bus, volume := world.GuardedNATS(t), world.Folder(t)
	replicas := bus.StartAs(volume, map[string]string{"TENDRIL_TEST_EVENT_TIMEOUT": "3m"}, world.Services...)
	door := replicas[len(replicas)-1].Door()
	old := map[string]logins.Login{}
	for _, name := range world.Services {
		old[name] = login(t, bus, name)
	}

	users := work(t, door)
	must(t, logins.Rotate(bus.Folder))
	bus.Reload()
	users.goOn(2)
	for _, name := range world.Services {
		if bus.Connections(name) == 0 {
			t.Errorf("%s has lost its connection when passwords were added", name)
		}
	}
	must(t, logins.Retire(bus.Folder))
	bus.Reload()
	for _, name := range world.Services {
		await(t, name+" has come back with its new password", func() bool { return bus.Connections(name+"-2") == 1 })
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
	users.goOn(2)
	for what, tally := range users.end() {
		if tally.GaveUp > 0 || what == "publish" && tally.Failed > 0 {
			t.Errorf("%s: %+v", what, tally)
		}
	}
	users.users.CheckPushes(t)
	world.Stop(t, replicas)
}

func login(t *testing.T, bus *world.Guarded, user string) logins.Login {
	t.Helper()
	l, err := logins.Read(logins.LoginFile(bus.Folder, user))
	must(t, err)
	return l
}
