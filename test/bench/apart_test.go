package bench

import (
	"fmt"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/corpus"
	"tendril.dev/test/world"
)

// apart is a system whose services are processes of their own.
type apart struct {
	nats   *world.NATS
	volume string
	env    map[string]string
	run    []*world.Replica
}

func newApart(t *testing.T, relay string) *apart {
	env := settings(map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": relay, "TENDRIL_TEST_SYNC_RECONNECT_WINDOW": "0s"})
	return &apart{nats: world.StartNATS(t), volume: world.Folder(t), env: env}
}

// start starts a service and returns it with how long it took to be ready.
func (a *apart) start(t *testing.T, service string) (*world.Replica, time.Duration) {
	began := time.Now()
	p := world.StartReplica(t, service, a.nats.Direct(), a.volume, a.env)
	p.AwaitReady()
	a.run = append(a.run, p)
	return p, time.Since(began)
}

// cpu is what all processes have used, NATS too.
func (a *apart) cpu(t *testing.T) (all time.Duration) {
	all = used(t, a.nats.PID()).cpu
	for _, p := range a.run {
		all += used(t, p.PID()).cpu
	}
	return all
}

// servicesApart measures a cold sync with every service in a process of its own, what each of them
// used, and what a further worker costs when the log has all of it. Of two relay workers one has
// the only relay; the other's use is what others' events cost it.
func servicesApart(t *testing.T, s *stage) {
	spec := s.spec(*eventCount)
	f := s.source(t, spec, 1)
	a := newApart(t, f.Relays[0])
	var gateway *world.Replica
	for _, service := range []string{"ingest", "gateway", "purgatory", "relayconn", "relayconn", "discovery"} {
		p, _ := a.start(t, service)
		if service == "gateway" {
			gateway = p
		}
	}
	before := a.cpu(t)
	took := a.synced(t, s, spec, gateway.Door())
	total := a.cpu(t) - before
	s.add(fmt.Sprintf("services apart: cold sync of %d events", spec.Size()), fmt.Sprintf("%.0f events/s", float64(spec.Size())/took.Seconds()), "", s.limits.String())
	s.add("… CPU of all processes", fmt.Sprintf("%.1f s", total.Seconds()), "≤ 20 s for 100,000", "")
	idle := a.run[3]
	for _, p := range a.run {
		if u := used(t, p.PID()); p.Name == "relayconn" && u.cpu < used(t, idle.PID()).cpu {
			idle = p
		}
		s.add("… "+p.Name, usageOf(t, p), "", "")
	}
	s.add("… a relay worker while others' events are accepted", usageOf(t, idle), "", "")
	for _, service := range []string{"relayconn", "discovery"} {
		p, ready := a.start(t, service)
		s.add(fmt.Sprintf("another %s, from start to ready", service), fmt.Sprintf("%.2f s; %s", ready.Seconds(), usageOf(t, p)), "< 1 s", s.limits.String())
	}
}

// synced waits until everything is served.
func (a *apart) synced(t *testing.T, s *stage, spec corpus.Spec, door world.Door) time.Duration {
	js, done := world.JetStream(t, a.nats.Direct())
	defer done()
	began, told := time.Now(), time.Now()
	for n := 0; n < spec.Size(); time.Sleep(50 * time.Millisecond) {
		if logged := length(t, js); int(logged) >= spec.Size() {
			n = door.Count(nostr.Filter{Kinds: kinds})
		} else if time.Since(told) > 2*time.Second {
			told = time.Now()
			s.say("apart: %d of %d in the log", logged, spec.Size())
		}
		if time.Since(began) > 2*longest {
			t.Fatalf("after %v %d events are served, want %d", time.Since(began), n, spec.Size())
		}
	}
	return time.Since(began)
}

// usage says what a process has used.
func usageOf(t *testing.T, p *world.Replica) string {
	t.Helper()
	u := used(t, p.PID())
	return fmt.Sprintf("%.2f s of CPU, %s resident at most, %s of it files", u.cpu.Seconds(), mib(u.peak), mib(u.files))
}
