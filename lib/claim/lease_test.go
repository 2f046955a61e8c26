package claim

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestALeaseEndsBeforeTheRecordExpires: heartbeats make a lease longer; without them it ends before a
// TTL has passed since the last one began, and the next heartbeat begins another. So does a record
// that was gone in between.
func TestALeaseEndsBeforeTheRecordExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log messages
		m := &Member{
			o:      Options{Group: "test", TTL: 9 * time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))},
			roster: &roster{changed: make(chan struct{}, 1)}, lease: newLease(),
		}
		m.lease.end()
		m.renew(1, time.Now(), true)
		first := m.currentLease()
		for revision := range uint64(5) {
			time.Sleep(3 * time.Second)
			m.renew(revision+2, time.Now(), true)
		}
		if m.currentLease() != first || first.ctx.Err() != nil || log.String() != "" {
			t.Errorf("with heartbeats: the lease %v; log: %s", first.ctx.Err(), log.String())
		}
		if Lease(first.ctx) == nil || Lease(first.ctx).Err() != nil {
			t.Error("the lease's own context has ended")
		}
		time.Sleep(8200 * time.Millisecond)
		synctest.Wait()
		if first.ctx.Err() == nil || !strings.Contains(log.String(), "the heartbeat did not get through in time") {
			t.Errorf("the lease without heartbeats: %v; log: %s", first.ctx.Err(), log.String())
		}
		m.renew(7, time.Now(), true)
		second := m.currentLease()
		m.renew(8, time.Now(), false)
		if second == first || second.ctx.Err() == nil || m.currentLease().ctx.Err() != nil {
			t.Errorf("after a record that was gone: the lease before %v, the one now %v", second.ctx.Err(), m.currentLease().ctx.Err())
		}
		m.lease.lapse.Stop()
	})
}

// messages keeps what several goroutines log.
type messages struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (m *messages) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text.Write(p)
}

func (m *messages) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text.String()
}
