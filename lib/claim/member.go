package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// Member is a worker that has joined its group.
type Member struct {
	o       Options
	workers jetstream.KeyValue
	claims  jetstream.KeyValue
	roster  *roster
	stop    context.CancelFunc
	failed  chan error
	beating sync.WaitGroup

	mu       sync.Mutex
	revision uint64 // of the own record; 0: none
	held     map[string]bool
	// lease ends when the own record may be about to expire, and with it all work on claims. The next heartbeat that gets through begins a new one.
	lease    context.Context
	endLease context.CancelFunc
	lapse    *time.Timer
}

// Join makes the worker known to its group and keeps its record alive until Leave, or until ctx ends. Its errors say what was done, but not in which
// group: groups are named for the services, and whose error it is stands before it already.
func Join(ctx context.Context, b *bus.Bus, o Options) (*Member, error) {
	o = o.withDefaults()
	m := &Member{o: o, failed: make(chan error, 2), held: map[string]bool{}}
	m.lease, m.endLease = context.WithCancel(context.Background())
	m.endLease()
	var err error
	if m.workers, err = b.Bucket(ctx, proto.BucketWorkers); err != nil {
		return nil, err
	}
	if m.claims, err = b.Bucket(ctx, proto.BucketClaims); err != nil {
		return nil, err
	}
	if err := m.enter(ctx); err != nil {
		return nil, fmt.Errorf("join the workers: %w", err)
	}
	ctx, m.stop = context.WithCancel(ctx)
	if m.roster, err = watchRoster(ctx, b, o.Group, o.Log, func(err error) { m.failed <- err }); err != nil {
		m.stop()
		return nil, err
	}
	m.beating.Go(func() { m.keepBeating(ctx) })
	return m, nil
}

// enter writes the first record. One that is there already may be of an earlier process of this name that ended without a word: then it expires,
// and only a living one writes it anew.
func (m *Member) enter(ctx context.Context) error {
	expired := time.NewTimer(m.o.TTL + m.o.TTL/2)
	defer expired.Stop()
	for told := false; ; told = true {
		err := m.beat(ctx)
		if !errors.Is(err, ErrNameTaken) {
			return err
		}
		if !told {
			m.o.Log.Info("waiting for the record of an earlier process of this name to expire", "group", m.o.Group, "worker", m.o.Worker)
		}
		select {
		case <-time.After(m.o.TTL / 10):
		case <-expired.C:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Leave takes the worker's record away, so that nobody waits for it to expire. Call it after Work has returned.
func (m *Member) Leave(ctx context.Context) error {
	m.stop()
	m.beating.Wait()
	m.mu.Lock()
	revision := m.revision
	m.lapse.Stop()
	m.endLease()
	m.mu.Unlock()
	err := m.workers.Delete(ctx, m.key(), jetstream.LastRevision(revision))
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return fmt.Errorf("leave the workers: %w", err)
	}
	return nil
}

// Held are the keys that this worker holds now, sorted.
func (m *Member) Held() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := make([]string, 0, len(m.held))
	for k := range m.held {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (m *Member) key() string { return proto.ClaimKey(m.o.Group, m.o.Worker) }

// renew notes a heartbeat that got through and was begun at that time. A tenth of the time is kept for stopping what runs on the claims.
func (m *Member) renew(revision uint64, began time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.revision = revision
	if m.lease.Err() != nil {
		m.lease, m.endLease = context.WithCancel(context.Background())
	} else {
		m.lapse.Stop()
	}
	end := m.endLease
	m.lapse = time.AfterFunc(time.Until(began.Add(m.o.TTL-m.o.TTL/10)), func() {
		m.o.Log.Warn("the heartbeat did not get through in time; work on claims stops", "group", m.o.Group)
		end()
	})
}

func (m *Member) currentLease() context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lease
}

func (m *Member) keepBeating(ctx context.Context) {
	tick := time.NewTicker(m.o.TTL / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		beat, cancel := context.WithTimeout(ctx, m.o.TTL/3)
		err := m.beat(beat)
		cancel()
		switch {
		case err == nil, ctx.Err() != nil:
		case errors.Is(err, ErrNameTaken):
			m.failed <- err
			return
		default:
			m.o.Log.Warn("heartbeat failed", "group", m.o.Group, "error", err)
		}
	}
}

// beat writes the own record anew. The time from before the write counts: the bucket's clock for it cannot have begun earlier.
func (m *Member) beat(ctx context.Context) error {
	value, err := json.Marshal(proto.Worker{Name: m.o.Worker, Group: m.o.Group, Incarnation: m.o.Incarnation, Address: m.o.Address})
	if err != nil {
		return fmt.Errorf("encode worker: %w", err)
	}
	m.mu.Lock()
	revision := m.revision
	m.mu.Unlock()
	began := time.Now()
	var next uint64
	if revision == 0 {
		next, err = m.workers.Create(ctx, m.key(), value)
	} else {
		next, err = m.workers.Update(ctx, m.key(), value, revision)
	}
	if bus.IsConflict(err) {
		next, err = m.reclaim(ctx, value)
	}
	if err != nil {
		return err
	}
	m.renew(next, began)
	return nil
}

// reclaim looks at who wrote the own record meanwhile: this process (a write whose answer was lost), its expiry, or a stranger of the same name.
func (m *Member) reclaim(ctx context.Context, value []byte) (uint64, error) {
	entry, err := m.workers.Get(ctx, m.key())
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return m.workers.Create(ctx, m.key(), value)
	}
	if err != nil {
		return 0, err
	}
	var w proto.Worker
	if err := json.Unmarshal(entry.Value(), &w); err == nil && w.Incarnation != m.o.Incarnation {
		return 0, ErrNameTaken
	}
	return m.workers.Update(ctx, m.key(), value, entry.Revision())
}
