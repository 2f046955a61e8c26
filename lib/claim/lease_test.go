package claim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestALeaseEndsBeforeTheRecordExpires: heartbeats make a lease longer; without them it ends before
// a TTL has passed since the last one began, and the next heartbeat begins another. So does a
// record that was gone in between.
func TestALeaseEndsBeforeTheRecordExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &Member{
			o:         Options{Group: "test", Log: quiet},
			ttl:       9 * time.Second,
			directory: &Directory{changed: make(chan struct{}, 1)},
		}
		m.renew(time.Now(), true)
		first := m.currentLease()
		for range 5 {
			time.Sleep(3 * time.Second)
			m.renew(time.Now(), true)
		}
		job, cancel := context.WithCancel(first)
		cancel()
		if m.currentLease() != first || Lease(job).Err() != nil {
			t.Errorf("with heartbeats: the lease ended: %v", first.Err())
		}
		time.Sleep(8200 * time.Millisecond)
		synctest.Wait()
		if Lease(job).Err() == nil || m.Alive() == nil {
			t.Error("the lease goes on without heartbeats")
		}
		m.renew(time.Now(), true)
		second := m.currentLease()
		m.renew(time.Now(), false)
		if second == first || second.Err() == nil || m.Alive() != nil {
			t.Errorf("after a record that was gone: the lease before %v, the one now %v", second.Err(), m.currentLease().Err())
		}
		m.endLease()
	})
}
