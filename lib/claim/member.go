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
	bus     *bus.Bus
	workers jetstream.KeyValue
	claims  jetstream.KeyValue
	roster  *roster
	stop    context.CancelFunc
	failed  chan error
	beating sync.WaitGroup

	recording sync.Mutex // held by whoever writes the own record

	mu       sync.Mutex
	leaving  bool
	revision uint64 // of the own record; 0: none
	held     map[string]bool
	lease    *lease // zero before the first heartbeat
}

// lease is a time in which this worker may work by its claims. It ends when the own record may be
// about to expire, and with it the work, which runs under its context. A heartbeat that gets through
// makes it longer; after its end the next one begins a new lease.
type lease struct {
	ctx   context.Context
	end   context.CancelFunc
	lapse *time.Timer
}

type leaseKey struct{}

// Lease returns the lease's own context from that which Work gives to do. It ends when the lease
// ends: from then on nothing may be written. The context that do gets ends with it, and also when
// the claim is to be given up: then what was begun may be finished.
func Lease(ctx context.Context) context.Context {
	if l, ok := ctx.Value(leaseKey{}).(context.Context); ok {
		return l
	}
	return ctx
}

// Join makes the worker known to its group, and keeps its record alive until Leave: the end of ctx
// ends the joining only, because work on claims may outlast it. Its errors say what was done, but
// not in which group: groups are named for the services, and whose error it is stands before it
// already.
func Join(ctx context.Context, b *bus.Bus, o Options) (*Member, error) {
	o = o.withDefaults()
	m := &Member{o: o, bus: b, failed: make(chan error, 1), held: map[string]bool{}}
	m.lease = newLease()
	m.lease.end()
	var err error
	if m.workers, err = b.Bucket(ctx, proto.BucketWorkers); err != nil {
		return nil, err
	}
	if m.claims, err = b.Bucket(ctx, proto.BucketClaims); err != nil {
		return nil, err
	}
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = stop
	if m.roster, err = openRoster(ctx, beating, b, o.Group, o.Log); err == nil {
		err = m.enter(ctx)
	}
	if err != nil {
		m.stop()
		return nil, fmt.Errorf("join the workers: %w", err)
	}
	m.beating.Go(func() { m.keepBeating(beating) })
	return m, nil
}

// enter writes the first record. One that is there already may be of an earlier process of this
// name that ended without a word: then it expires, and only a living one writes it anew. While the
// bus is away it is tried again.
func (m *Member) enter(ctx context.Context) error {
	expired := time.NewTimer(m.o.TTL + m.o.TTL/2)
	defer expired.Stop()
	for told := false; ; {
		err := m.beatInTime(ctx)
		// A conflict: the record came or went between two looks at it.
		again := bus.Passes(err) || bus.IsConflict(err) ||
			errors.Is(err, ErrNameTaken) || errors.Is(err, jetstream.ErrStreamNotFound)
		if err == nil || !again {
			return err
		}
		over, why := (<-chan time.Time)(nil), "waiting for the bus to take the worker's record"
		if errors.Is(err, ErrNameTaken) {
			over, why = expired.C, "waiting for the record of an earlier process of this name to expire"
		}
		if !told {
			m.o.Log.Info(why, "group", m.o.Group, "worker", m.o.Worker, "error", err)
			told = true
		}
		select {
		case <-time.After(m.o.TTL / 10):
		case <-over:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Directory tells who holds which key of the worker's group, until Leave.
func (m *Member) Directory() *Directory { return &Directory{m.roster, func() {}} }

// Leave takes the worker's record away, so that nobody waits for it to expire. Call it after Work
// has returned.
func (m *Member) Leave(ctx context.Context) error {
	m.stop()
	m.beating.Wait()
	m.mu.Lock()
	revision := m.revision
	m.lease.lapse.Stop()
	m.lease.end()
	m.mu.Unlock()
	err := m.workers.Delete(ctx, m.key(), jetstream.LastRevision(revision))
	for bus.IsConflict(err) { // again where it expires just when it is deleted
		err = m.deleteOwn(ctx)
	}
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return fmt.Errorf("leave the workers: %w", err)
	}
	return nil
}

// deleteOwn deletes the record if this worker wrote it: the stop may have cut a heartbeat short.
func (m *Member) deleteOwn(ctx context.Context) error {
	entry, err := m.workers.Get(ctx, m.key())
	if err != nil {
		return err
	}
	var w proto.Worker
	if err := json.Unmarshal(entry.Value(), &w); err != nil || w.Incarnation != m.o.Incarnation {
		return err
	}
	return m.workers.Delete(ctx, m.key(), jetstream.LastRevision(entry.Revision()))
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

// renew notes a heartbeat that got through and was begun at that time. unbroken: the record was
// there all the time since the heartbeat before. A tenth of the time is kept for stopping what runs
// on the claims.
func (m *Member) renew(revision uint64, began time.Time, unbroken bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.revision = revision
	m.lease.lapse.Stop()
	if !unbroken || m.lease.ctx.Err() != nil {
		m.lease.end()
		m.lease = newLease()
	}
	l := m.lease
	l.lapse = time.AfterFunc(time.Until(began.Add(m.o.TTL-m.o.TTL/10)), func() {
		m.o.Log.Warn("the heartbeat did not get through in time; work on claims stops", "group", m.o.Group)
		l.end()
	})
	tell(m.roster.changed)
}

// newLease is a lease without an end.
func newLease() *lease {
	l := &lease{lapse: time.NewTimer(0)}
	l.ctx, l.end = context.WithCancel(context.Background())
	l.ctx = context.WithValue(l.ctx, leaseKey{}, l.ctx)
	return l
}

func (m *Member) currentLease() *lease {
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
		err := m.beatInTime(ctx)
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

func (m *Member) beatInTime(ctx context.Context) error {
	beat, cancel := context.WithTimeout(ctx, m.o.TTL/3)
	defer cancel()
	return m.beat(beat)
}

// beat writes the own record again. The time from before the write counts: the bucket's clock for
// it cannot have begun earlier.
func (m *Member) beat(ctx context.Context) error {
	m.recording.Lock()
	defer m.recording.Unlock()
	m.mu.Lock()
	revision, leaving := m.revision, m.leaving
	m.mu.Unlock()
	value, err := json.Marshal(proto.Worker{
		Name: m.o.Worker, Group: m.o.Group, Incarnation: m.o.Incarnation, Address: m.o.Address, Leaving: leaving,
	})
	if err != nil {
		return fmt.Errorf("encode worker: %w", err)
	}
	began := time.Now()
	next, unbroken, err := m.write(ctx, value, revision)
	if err != nil {
		return err
	}
	m.renew(next, began, unbroken)
	return nil
}

// leaveSoon tells the others that this worker gets no more keys. It keeps those that it has: each
// is free when the work on it has ended, and then the others do not wait whether it is taken here.
func (m *Member) leaveSoon() {
	m.mu.Lock()
	m.leaving = true
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), m.o.TTL/3)
	defer cancel()
	if err := m.beat(ctx); err != nil {
		m.o.Log.Warn("the others could not be told that this worker stops", "group", m.o.Group, "error", err)
	}
}

// write writes the own record, whose revision is the one given (0: there should be none). unbroken:
// it was there all the time, as this worker wrote it last.
func (m *Member) write(ctx context.Context, value []byte, revision uint64) (next uint64, unbroken bool, err error) {
	if revision == 0 {
		next, err = m.workers.Create(ctx, m.key(), value)
	} else {
		next, err = m.workers.Update(ctx, m.key(), value, revision)
	}
	if !bus.IsConflict(err) {
		return next, true, err
	}
	// Somebody wrote it meanwhile: this process (a write whose answer was lost), its expiry, or a
	// stranger of the same name.
	entry, err := m.workers.Get(ctx, m.key())
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		next, err = m.workers.Create(ctx, m.key(), value)
		return next, false, err
	}
	if err != nil {
		return 0, false, err
	}
	var w proto.Worker
	if err := json.Unmarshal(entry.Value(), &w); err == nil && w.Incarnation != m.o.Incarnation {
		return 0, false, ErrNameTaken
	}
	next, err = m.workers.Update(ctx, m.key(), value, entry.Revision())
	return next, true, err
}
