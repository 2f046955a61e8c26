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

// ErrNameTaken: another process that lives calls itself by this worker's name.
var ErrNameTaken = errors.New("another live worker has this name; NGIT_WORKER_NAME must differ")

// Options say who joins what.
type Options struct {
	Group       string        // of workers that share the same keys: proto.GroupRelays, proto.GroupShards
	Worker      string        // name, differs between processes
	Incarnation string        // differs between starts of one process
	Address     string        // host:port of the worker's internal HTTP, if others must reach it
	TTL         time.Duration // how long a silent worker is believed to live: proto.Sizing.WorkerTTL of the bus
	Log         *slog.Logger
}

// Member is a worker that has joined its group.
type Member struct {
	o         Options
	bus       *bus.Bus
	workers   jetstream.KeyValue
	claims    jetstream.KeyValue
	directory *Directory
	stop      context.CancelFunc
	failed    chan error
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
// only, because work on claims may outlast it. The worker gets no keys before Work has been told
// which are wanted.
func Join(ctx context.Context, b *bus.Bus, o Options) (*Member, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m := &Member{o: o, bus: b, failed: make(chan error, 1)}
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
	if err := m.enter(ctx); err != nil {
		m.directory.Close()
		return nil, fmt.Errorf("join the workers: %w", err)
	}
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = stop
	m.beating.Go(func() { m.keepBeating(beating) })
	return m, nil
}

// enter writes the first record. One that is there already may be of an earlier process of this
// name that was killed: then it expires, and only a live one writes it again. While the bus is away
// it is tried again.
func (m *Member) enter(ctx context.Context) error {
	expired := time.Now().Add(m.o.TTL + m.o.TTL/2)
	for tries := 0; ; tries++ {
		err := m.beat()
		taken := errors.Is(err, ErrNameTaken)
		if err == nil || taken && time.Now().After(expired) {
			return err
		}
		if !taken && !bus.IsConflict(err) && !bus.Passes(err) {
			return err
		}
		if tries == 0 {
			m.o.Log.Info("waiting until the worker's record can be written", "group", m.o.Group, "worker", m.o.Worker, "error", err)
		}
		select {
		case <-time.After(m.o.TTL / 10):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Directory tells who holds which key of the worker's group, until Leave.
func (m *Member) Directory() *Directory { return m.directory }

// Leave removes the worker's record, so that the others need not wait for it to expire. Call it
// after Work has returned.
func (m *Member) Leave(ctx context.Context) error {
	m.stop()
	m.beating.Wait()
	m.directory.Close()
	m.mu.Lock()
	m.endLease()
	m.mu.Unlock()
	m.recording.Lock()
	defer m.recording.Unlock()
	err := m.workers.Delete(ctx, m.key(), jetstream.LastRevision(m.revision))
	if err != nil && !bus.IsConflict(err) { // a conflict: it has expired
		return fmt.Errorf("leave the workers: %w", err)
	}
	return nil
}

func (m *Member) key() string { return proto.ClaimKey(m.o.Group, m.o.Worker) }

func (m *Member) keepBeating(ctx context.Context) {
	tick := time.NewTicker(m.o.TTL / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch err := m.beat(); {
		case errors.Is(err, ErrNameTaken):
			m.failed <- err
			return
		case err != nil:
			m.o.Log.Warn("heartbeat failed", "group", m.o.Group, "error", err)
		}
	}
}

// announce tells the others whether this worker takes keys from now on. If it fails, the next
// heartbeat tells them.
func (m *Member) announce(working bool) {
	m.recording.Lock()
	m.working = working
	m.recording.Unlock()
	if err := m.beat(); err != nil {
		m.o.Log.Warn("heartbeat failed", "group", m.o.Group, "error", err)
	}
}

// beat writes the own record again. The lease counts from before the write: the bucket's clock for
// the record cannot have begun earlier.
func (m *Member) beat() error {
	ctx, cancel := context.WithTimeout(context.Background(), m.o.TTL/3)
	defer cancel()
	m.recording.Lock()
	defer m.recording.Unlock()
	value, err := json.Marshal(proto.Worker{
		Name: m.o.Worker, Group: m.o.Group, Incarnation: m.o.Incarnation, Address: m.o.Address, Working: m.working,
	})
	if err != nil {
		return fmt.Errorf("encode worker: %w", err)
	}
	began, unbroken := time.Now(), true
	revision, err := m.write(ctx, value, m.revision)
	if bus.IsConflict(err) {
		if m.revision, err = m.found(ctx); err != nil {
			return err
		}
		unbroken = m.revision > 0
		revision, err = m.write(ctx, value, m.revision)
	}
	if err != nil {
		return err
	}
	m.revision = revision
	m.renew(began, unbroken)
	return nil
}

func (m *Member) write(ctx context.Context, value []byte, revision uint64) (uint64, error) {
	if revision == 0 {
		return m.workers.Create(ctx, m.key(), value)
	}
	return m.workers.Update(ctx, m.key(), value, revision)
}

// found is the revision of the own record where that is not the expected one: 0 if it has expired,
// another after a write whose answer was lost. A record of another process is an error.
func (m *Member) found(ctx context.Context) (uint64, error) {
	entry, err := m.workers.Get(ctx, m.key())
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var w proto.Worker
	if err := json.Unmarshal(entry.Value(), &w); err == nil && w.Incarnation != m.o.Incarnation {
		return 0, ErrNameTaken
	}
	return entry.Revision(), nil
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
		l.lapse = time.AfterFunc(m.o.TTL, func() {
			m.o.Log.Warn("the heartbeat did not get through in time; work on claims stops", "group", m.o.Group)
			l.end()
		})
		m.lease = l
	}
	m.lease.lapse.Reset(time.Until(began.Add(m.o.TTL - m.o.TTL/10)))
	m.directory.tell()
}

// endLease ends the lease if there is one. m.mu is held.
func (m *Member) endLease() {
	if m.lease != nil {
		m.lease.lapse.Stop()
		m.lease.end()
	}
}

func (m *Member) currentLease() context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lease.ctx
}
