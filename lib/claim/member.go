// Package claim lets the workers of a group share out keys (relays, shards) among them. Heartbeats
// tell who is there. Rendezvous hashing with bounded load says who should work on what. Claims say
// who does: each is taken with a compare-and-set, and its revision fences the holder
// (docs/architecture.md, Claims).
//
// No worker trusts its clock against another's: a dead worker's record expires in the bucket, and
// its claims are free then. A worker that cannot renew its own record in time stops its work before
// that happens.
package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// Options say who joins what. How long a silent worker is believed to live is WorkerTTL of the
// bus's proto.Sizing.
type Options struct {
	// Group is of workers that share the same keys: proto.GroupRelays, proto.GroupShards. It must be
	// set.
	Group string
	// Worker is the name. No other process has it, and no other start of this one. It must be set.
	Worker string
	// Address is host:port of the worker's internal HTTP; empty: no other process must reach it.
	Address string
	// Log is told what goes wrong with the claims. It must be set.
	Log *slog.Logger
}

// Member is a worker that has joined its group.
type Member struct {
	o         Options
	ttl       time.Duration // how long a silent worker is believed to live
	bus       *bus.Bus
	workers   jetstream.KeyValue
	claims    jetstream.KeyValue
	directory *Directory
	stop      context.CancelFunc
	beating   sync.WaitGroup

	recording sync.Mutex // held while the own record is written
	working   bool       // as the record says or is about to say
	revision  uint64     // of the record; 0: none

	mu    sync.Mutex
	lease *lease
}

// lease is a time in which this worker may work by its claims. It ends when the own record may be
// about to expire, and with it the work, which runs under its context. A heartbeat that gets
// through makes it longer; after its end the next one begins a new lease.
type lease struct {
	ctx   context.Context
	end   context.CancelFunc
	lapse *time.Timer
}

type leaseKey struct{}

// Lease returns the lease's own context from that which Work gives to do. It ends when the lease
// ends: from then on nothing may be written. The context that do gets ends with it, and also when
// the claim is to pass to another worker: then what was begun may be finished.
func Lease(ctx context.Context) context.Context {
	if l, ok := ctx.Value(leaseKey{}).(context.Context); ok {
		return l
	}
	return ctx
}

// Join writes the worker's record, and keeps it alive until Leave: the end of ctx ends the joining
// only, because work on claims may outlast it. While the bus is away it waits. The worker gets no
// keys before Work has been told which are wanted.
func Join(ctx context.Context, b *bus.Bus, o Options) (*Member, error) {
	m := &Member{o: o, ttl: b.Sizing().WorkerTTL, bus: b}
	var err error
	if m.workers, err = b.Bucket(ctx, proto.BucketWorkers); err != nil {
		return nil, err
	}
	if m.claims, err = b.Bucket(ctx, proto.BucketClaims); err != nil {
		return nil, err
	}
	if m.directory, err = Watch(ctx, b, o.Group, o.Log); err != nil {
		return nil, fmt.Errorf("join the workers: %w", err)
	}
	for err = m.beat(); err != nil && ctx.Err() == nil && (bus.IsTransient(err) || bus.IsConflict(err)); err = m.beat() {
		o.Log.Warn("the worker's record cannot be written yet", "group", o.Group, "error", err)
		select {
		case <-time.After(m.ttl / 10):
		case <-ctx.Done():
		}
	}
	if err != nil {
		m.directory.Close()
		return nil, fmt.Errorf("join the workers: %w", err)
	}
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = stop
	m.beating.Go(func() {
		tick := time.NewTicker(m.ttl / 3)
		defer tick.Stop()
		for {
			select {
			case <-beating.Done():
				return
			case <-tick.C:
				m.tryBeat()
			}
		}
	})
	return m, nil
}

// Directory tells who holds which key of the worker's group, until Leave.
func (m *Member) Directory() *Directory { return m.directory }

// Leave removes the worker's record, so that the others need not wait for it to expire. Call it
// after Work has returned.
func (m *Member) Leave() {
	m.stop()
	m.beating.Wait()
	m.directory.Close()
	m.mu.Lock()
	m.endLease()
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), casTimeout)
	defer cancel()
	err := m.workers.Delete(ctx, m.key(), jetstream.LastRevision(m.revision))
	if err != nil && !bus.IsConflict(err) { // a conflict: it has expired
		m.o.Log.Warn("the worker's record stays until it expires", "group", m.o.Group, "error", err)
	}
}

func (m *Member) key() string { return proto.ClaimKey(m.o.Group, m.o.Worker) }

// announce tells the others whether this worker takes keys from now on. If it fails, the next
// heartbeat tells them.
func (m *Member) announce(working bool) {
	m.recording.Lock()
	m.working = working
	m.recording.Unlock()
	m.tryBeat()
}

func (m *Member) tryBeat() {
	if err := m.beat(); err != nil {
		m.o.Log.Warn("heartbeat failed", "group", m.o.Group, "error", err)
	}
}

// beat writes the own record again. The lease counts from before the write: the bucket's clock for
// the record cannot have begun earlier.
func (m *Member) beat() error {
	ctx, cancel := context.WithTimeout(context.Background(), m.ttl/3)
	defer cancel()
	m.recording.Lock()
	defer m.recording.Unlock()
	record := proto.Worker{Name: m.o.Worker, Group: m.o.Group, Address: m.o.Address, Working: m.working}
	began, unbroken := time.Now(), true
	revision, err := put(ctx, m.workers, m.key(), record, m.revision)
	if bus.IsConflict(err) { // the record has expired, or the answer to a write was lost
		entry, missing := m.workers.Get(ctx, m.key())
		switch {
		case missing == nil:
			m.revision = entry.Revision()
		case errors.Is(missing, jetstream.ErrKeyNotFound):
			m.revision, unbroken = 0, false
		default:
			return missing
		}
		revision, err = put(ctx, m.workers, m.key(), record, m.revision)
	}
	if err != nil {
		return err
	}
	m.revision = revision
	m.renew(began, unbroken)
	return nil
}

// put writes a value at the revision that its key has; 0: there must be none.
func put(ctx context.Context, bucket jetstream.KeyValue, key string, value any, revision uint64) (uint64, error) {
	data, err := json.Marshal(value)
	switch {
	case err != nil:
		return 0, fmt.Errorf("encode %s: %w", key, err)
	case revision == 0:
		return bucket.Create(ctx, key, data)
	}
	return bucket.Update(ctx, key, data, revision)
}

// renew notes a heartbeat that got through and was begun at that time. unbroken: the record was
// there all the time since the heartbeat before. A tenth of the time is kept for stopping what runs
// on the claims.
func (m *Member) renew(began time.Time, unbroken bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lease == nil || !unbroken || !m.lease.lapse.Stop() {
		m.endLease()
		l := &lease{}
		l.ctx, l.end = context.WithCancel(context.Background())
		l.ctx = context.WithValue(l.ctx, leaseKey{}, l.ctx)
		l.lapse = time.AfterFunc(m.ttl, func() {
			m.o.Log.Warn("the heartbeat did not get through in time; work on claims stops", "group", m.o.Group)
			l.end()
		})
		m.lease = l
	}
	m.lease.lapse.Reset(time.Until(began.Add(m.ttl - m.ttl/10)))
	m.directory.tell()
}

// endLease ends the lease if there is one. m.mu is held.
func (m *Member) endLease() {
	if m.lease != nil {
		m.lease.lapse.Stop()
		m.lease.end()
	}
}

// Alive is an error while the heartbeat does not get through: then no work on claims goes on.
func (m *Member) Alive() error {
	if m.currentLease().Err() != nil {
		return errors.New("the worker's heartbeat does not get through; it works on no claims")
	}
	return nil
}

func (m *Member) currentLease() context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lease.ctx
}
