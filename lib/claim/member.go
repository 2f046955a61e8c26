// Package claim lets the workers of a group share out keys (relays, shards) among them. Heartbeats
// tell who is there. Rendezvous hashing with bounded load says who should work on what. Claims say
// who does: each is taken with a compare-and-set, and its revision fences the holder
// (docs/architecture.md, Claims).
//
// Workers never compare clocks. A dead worker's record expires in the bucket, and its claims are
// free when another worker has heard nothing of it for a TTL by its own clock. A worker stops its
// work earlier: at nine tenths of a TTL after its last heartbeat began, or as soon as it sees that
// its record is gone.
//
// The package does not own what is done by a claim: the worker must let the end of the lease end
// what it writes.
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

	"tendril.dev/lib/backoff"
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

	leases  *leases
	beatNow chan struct{} // of capacity 1: the next heartbeat is due at once

	recording sync.Mutex // held while the own record is written
	working   bool       // as the record says or is about to say
	revision  uint64     // of the record; 0: none

	endsWithin time.Duration // as the constant, but in tests

	workingMu sync.Mutex
	workingOn map[string]uint64 // keys that it works on, see workOn
}

// Held is a key that this worker has claimed, and the lease by which it works on the key.
type Held struct {
	Key string
	// Lease ends when this worker may not work by its claims any more: from then on nothing may be
	// written. Its Err looks at the clock, so it is true although the alarm that closes Done comes
	// late. What must not happen without the lease asks Err before it acts.
	Lease context.Context
}

// Join writes the worker's record, and keeps it alive until Leave: the end of ctx ends the joining
// only, because work on claims may outlast it. While the bus is away it waits. The worker gets no
// keys before Work has been told which are wanted.
func Join(ctx context.Context, b *bus.Bus, o Options) (*Member, error) {
	workers, err := b.Bucket(ctx, proto.BucketWorkers)
	if err != nil {
		return nil, err
	}
	claims, err := b.Bucket(ctx, proto.BucketClaims)
	if err != nil {
		return nil, err
	}
	m := newMember(b, o, workers, claims)
	return m, m.join(ctx)
}

func newMember(b *bus.Bus, o Options, workers, claims jetstream.KeyValue) *Member {
	return &Member{
		o: o, ttl: b.Sizing().WorkerTTL, bus: b, workers: workers, claims: claims,
		beatNow: make(chan struct{}, 1), endsWithin: endsWithin, workingOn: map[string]uint64{},
	}
}

// join does what Join says, with the buckets open.
func (m *Member) join(ctx context.Context) (err error) {
	o, b := m.o, m.bus
	if m.leases, err = newLeases(m.ttl, o, newAlarm); err != nil {
		return fmt.Errorf("join the workers: %w", err)
	}
	if m.directory, err = watch(ctx, b, o, m.hearOwnGone, m.beatSoon); err != nil {
		m.leases.close()
		return fmt.Errorf("join the workers: %w", err)
	}
	for err = m.beat(); err != nil && ctx.Err() == nil && (bus.IsTransient(err) || bus.IsConflict(err)); err = m.beat() {
		o.Log.Warn("the worker's record cannot be written yet", "group", o.Group, "error", err)
		_ = backoff.Sleep(ctx, m.ttl/10) // the loop looks at ctx
	}
	if err != nil {
		m.directory.Close()
		m.leases.close()
		return fmt.Errorf("join the workers: %w", err)
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
			case <-m.beatNow:
			}
			m.tryBeat()
		}
	})
	return nil
}

// Directory tells who holds which key of the worker's group, until Leave.
func (m *Member) Directory() *Directory { return m.directory }

// Leave removes the worker's record, so that the others need not wait for it to expire. Call it
// after Work has returned.
func (m *Member) Leave() {
	m.stop()
	m.beating.Wait()
	m.directory.Close()
	m.leases.close()
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

// beat writes the own record again, and makes the lease longer.
//
// The lease ends as soon as the record is seen to be gone, before it is written again: if the
// answer to that write is lost, the next heartbeat finds a record and cannot know of the gap.
func (m *Member) beat() error {
	ctx, cancel := context.WithTimeout(context.Background(), m.ttl/3)
	defer cancel()
	m.recording.Lock()
	defer m.recording.Unlock()
	record := proto.Worker{
		Name: m.o.Worker, Group: m.o.Group, Address: m.o.Address, Working: m.working, Heard: m.heardClaims(),
	}
	began := m.leases.alarm.now()
	revision, err := put(ctx, m.workers, m.key(), record, m.revision)
	if bus.IsConflict(err) { // the record has expired, or the answer to a write was lost
		entry, missing := m.workers.Get(ctx, m.key())
		switch {
		case missing == nil:
			m.revision = entry.Revision()
		case errors.Is(missing, jetstream.ErrKeyNotFound):
			m.leases.recordGone(m.revision + 1)
			m.revision = 0
		default:
			return missing
		}
		revision, err = put(ctx, m.workers, m.key(), record, m.revision)
	}
	if err != nil {
		return err
	}
	m.revision = revision
	m.leases.renew(began, revision)
	m.directory.tell()
	return nil
}

// workOn notes that this worker works on a key by a claim that is not older than a revision. It is
// noted before the claim is written: otherwise a heartbeat between the two could say that this
// worker works by nothing that has vanished, when it is about to.
func (m *Member) workOn(key string, revision uint64) {
	m.workingMu.Lock()
	defer m.workingMu.Unlock()
	m.workingOn[key] = revision
}

// workEnded notes that this worker does not work on a key any more.
func (m *Member) workEnded(key string) {
	m.workingMu.Lock()
	defer m.workingMu.Unlock()
	delete(m.workingOn, key)
}

func (m *Member) heardClaims() uint64 {
	m.workingMu.Lock()
	defer m.workingMu.Unlock()
	return m.directory.heardClaims(m.workingOn)
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

// hearOwnGone hears from the bucket that the own record is gone. Others hear that at the same time.
func (m *Member) hearOwnGone(revision uint64) {
	m.leases.recordGone(revision)
	m.beatSoon()
}

// beatSoon has the next heartbeat come at once: others wait for what it says.
func (m *Member) beatSoon() {
	select {
	case m.beatNow <- struct{}{}:
	default:
	}
}

// Alive is an error while the heartbeat does not get through: then no work on claims goes on.
func (m *Member) Alive() error {
	if m.leases.now().Err() != nil {
		return errors.New("the worker's heartbeat does not get through; it works on no claims")
	}
	return nil
}
