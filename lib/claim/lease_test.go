package claim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// napping is a timer of a machine that can be suspended: its clock goes on meanwhile, and it rings
// as soon as the machine goes on.
type napping struct {
	timer
	slept time.Duration
	at    time.Duration
}

func (n *napping) now() time.Duration   { return n.timer.now() + n.slept }
func (n *napping) set(at time.Duration) { n.at = at; n.timer.set(at - n.slept) }
func (n *napping) nap(d time.Duration)  { n.slept += d; n.set(n.at) }

func testLeases(t *testing.T) (*leases, *napping) {
	l, err := newLeases(9*time.Second, Options{Group: "test", Log: quiet}, func(ring func()) (alarm, error) {
		a, err := newTimer(ring)
		return &napping{timer: a.(timer)}, err
	})
	must(t, err)
	return l, l.alarm.(*napping)
}

// TestALeaseEndsBeforeTheRecordExpires: heartbeats make a lease longer; without them it ends before
// a TTL has passed since the last one began, and the next heartbeat begins another.
func TestALeaseEndsBeforeTheRecordExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, clock := testLeases(t)
		if l.now().Err() == nil {
			t.Error("there is a lease before the first heartbeat")
		}
		l.renew(clock.now(), 1)
		first := l.now()
		for n := range 5 {
			time.Sleep(3 * time.Second)
			l.renew(clock.now(), uint64(n+2))
		}
		if l.now() != first || first.Err() != nil {
			t.Errorf("with heartbeats: the lease ended: %v", first.Err())
		}
		time.Sleep(8200 * time.Millisecond)
		synctest.Wait()
		if first.Err() == nil {
			t.Error("the lease goes on without heartbeats")
		}
		l.renew(clock.now(), 10)
		if l.now() == first || l.now().Err() != nil {
			t.Error("the next heartbeat began no lease")
		}
		l.close()
	})
}

// TestASuspendedMachineCountsTheTime: others see the record expire while the machine is suspended.
func TestASuspendedMachineCountsTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, clock := testLeases(t)
		l.renew(clock.now(), 1)
		lease := l.now()
		clock.nap(5 * time.Second)
		synctest.Wait()
		if lease.Err() != nil {
			t.Error("a short nap ended the lease")
		}
		clock.nap(4 * time.Second)
		synctest.Wait()
		if lease.Err() == nil {
			t.Error("the lease outlasted a long nap")
		}
		l.close()
	})
}

// TestALeaseAsksTheClock: a lease whose time is over has ended although its alarm comes late.
func TestALeaseAsksTheClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, clock := testLeases(t)
		l.renew(clock.now(), 1)
		lease := l.now()
		clock.slept += 9 * time.Second // and it does not ring
		if lease.Err() == nil {
			t.Error("the lease goes on after its time")
		}
		l.close()
	})
}

// fakeBucket is a bucket of which nothing but the writing of a key is asked.
type fakeBucket struct {
	jetstream.KeyValue
	write func() (uint64, error)
}

func (b fakeBucket) Create(context.Context, string, []byte, ...jetstream.KVCreateOpt) (uint64, error) {
	return b.write()
}

func (b fakeBucket) Update(context.Context, string, []byte, uint64) (uint64, error) { return b.write() }

// TestALeaseCountsFromBeforeTheWrite: the bucket's clock for a record may begin as soon as the
// heartbeat is on its way, however late the answer comes.
func TestALeaseCountsFromBeforeTheWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, clock := testLeases(t)
		m := newMember(&bus.Bus{}, Options{Group: "test", Worker: "a", Log: quiet}, fakeBucket{write: func() (uint64, error) {
			clock.slept += 8200 * time.Millisecond
			return 1, nil
		}}, nil)
		m.ttl, m.leases, m.directory = 9*time.Second, l, &Directory{changed: make(chan struct{}, 1)}
		must(t, m.beat())
		if l.now().Err() == nil {
			t.Error("a heartbeat whose answer took nine tenths of a TTL began a lease")
		}
		l.close()
	})
}

// TestAClaimIsNotedBeforeItIsWritten: a heartbeat in between would say that this worker works by
// nothing that has vanished.
func TestAClaimIsNotedBeforeItIsWritten(t *testing.T) {
	t.Parallel()
	l, clock := testLeases(t)
	defer l.close()
	l.renew(clock.now(), 1)
	var m *Member
	noted := false
	m = newMember(&bus.Bus{}, Options{Group: "test", Worker: "a", Log: quiet}, nil, fakeBucket{write: func() (uint64, error) {
		m.workingMu.Lock()
		defer m.workingMu.Unlock()
		_, noted = m.workingOn["key"]
		return 0, errors.New("it cannot be written")
	}})
	m.leases = l
	m.directory = &Directory{self: "a", changed: make(chan struct{}, 1),
		claims: map[string]claimed{"key": {Claim: proto.Claim{Worker: "a"}, revision: 3}}}
	w := &work{Member: m, wanted: map[string]bool{"key": true}}
	w.share(t.Context())
	if !noted {
		t.Error("the claim was written before it was noted")
	}
	if len(m.workingOn) > 0 {
		t.Error("a claim that could not be written is worked on")
	}
}

// TestAHeartbeatBegunBeforeANapBeginsNoLongLease: the record that it wrote is as old as the nap.
func TestAHeartbeatBegunBeforeANapBeginsNoLongLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, clock := testLeases(t)
		began := clock.now()
		clock.slept += time.Hour
		l.renew(began, 1)
		synctest.Wait()
		if l.now().Err() == nil {
			t.Error("a heartbeat of an hour ago began a lease")
		}
		l.close()
	})
}

// TestNewsOfAGoneRecord: the lease ends with the record, whichever comes first, the news of it or
// the answer to the write before. News of a record that was written again since say nothing.
func TestNewsOfAGoneRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, clock := testLeases(t)
		l.renew(clock.now(), 5)
		first := l.now()
		l.recordGone(4)
		if first.Err() != nil {
			t.Error("old news ended the lease")
		}
		l.recordGone(7)
		l.renew(clock.now(), 6) // it was written before it was removed
		if first.Err() == nil || l.now().Err() == nil {
			t.Error("the lease outlasted its record")
		}
		l.renew(clock.now(), 8)
		if l.now().Err() != nil || first.Err() == nil {
			t.Error("the next heartbeat began no lease of its own")
		}
		l.close()
	})
}

// TestTheAlarmOfThisSystem rings, and not before its time.
func TestTheAlarmOfThisSystem(t *testing.T) {
	t.Parallel()
	rang := make(chan struct{}, 10)
	a, err := newAlarm(func() { rang <- struct{}{} })
	must(t, err)
	at := a.now() + 30*time.Millisecond
	a.set(a.now() + time.Hour)
	a.set(at)
	<-rang
	if now := a.now(); now < at {
		t.Errorf("it rang %s early", at-now)
	}
	a.set(at) // a time that is over
	<-rang
	a.close()
	a.set(at)
}
