package claim

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/bus"
)

// TestOnlyAMissedHeartbeatIsCalledOne: the lease of an era before ends in its own time, though
// heartbeats get through; nobody may be told that they do not.
func TestOnlyAMissedHeartbeatIsCalledOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log messages
		before, now := bus.Era{Claims: time.Unix(1, 0)}, bus.Era{Claims: time.Unix(2, 0)}
		m := &Member{
			o:        Options{Group: "test", TTL: 9 * time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))},
			register: &register{changed: make(chan struct{}, 1)}, lease: newLease(before),
		}
		m.lease.lapse = time.AfterFunc(time.Hour, func() {})
		m.renew(before, 1, time.Now(), true)
		old := m.currentLease()
		for revision := range uint64(5) {
			time.Sleep(3 * time.Second)
			m.renew(now, revision+2, time.Now(), true)
		}
		synctest.Wait()
		if old.ctx.Err() == nil || m.currentLease().ctx.Err() != nil || strings.Contains(log.String(), "heartbeat") {
			t.Errorf("the old lease: %v; the new one: %v; log: %s", old.ctx.Err(), m.currentLease().ctx.Err(), log.String())
		}
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if m.currentLease().ctx.Err() == nil || !strings.Contains(log.String(), "the heartbeat did not get through in time") {
			t.Errorf("the lease without heartbeats: %v; log: %s", m.currentLease().ctx.Err(), log.String())
		}
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
