package claim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

const (
	// retryAfter is the pause before work that ended by itself is begun again.
	retryAfter = time.Second
	// casTimeout bounds one compare-and-set.
	casTimeout = 5 * time.Second
	// takeAtOnce is how many claims are written side by side.
	takeAtOnce = 64
	// gather is how long to wait after a change for what else changes: where many keys move, each
	// of their claims is one, and each decision looks at all keys.
	gather = 10 * time.Millisecond
)

// Work claims its share of the keys that wanted names (each value is the whole list) and runs do
// for every claim until the claim is given up, which ends do's context; the claim goes to another
// only after do has returned. It returns when ctx has ended and everything is let go.
//
// When NATS has lost the claims (a new era, see [bus.Era]), do runs on, and the claims are made
// again under it. Two workers never work on one key:
//   - In an era, a claim is taken by compare-and-set, from nobody or from a worker whose record has
//     expired. Whoever holds it works at most until nine tenths of a TTL after a heartbeat began, and
//     at the end of that heartbeat the era lasted.
//   - So one TTL after the next era has begun, no work by a claim of the one before goes on, unless
//     its worker has made that claim again before its lease ended. Until then nobody takes a free key
//     ([standing.rests]); only who still works on a key claims it.
//   - A write may meet the buckets of the next era. Therefore after each the bus is asked whether the
//     era lasts, and what was claimed counts only then.
func (m *Member) Work(ctx context.Context, wanted <-chan []string, do func(ctx context.Context, key string) error) error {
	w := &work{
		Member: m, do: do,
		wanted: map[string]bool{}, jobs: map[string]*job{}, ended: make(chan *job),
		freeSince: map[string]time.Time{}, passedOver: map[string]proto.Claim{}, deadSince: map[string]time.Time{},
	}
	defer w.finish()
	for {
		next, err := w.step(ctx)
		if err != nil {
			return err
		}
		wake := time.NewTimer(next)
		select {
		case <-ctx.Done():
			wake.Stop()
			return nil
		case err := <-m.failed:
			wake.Stop()
			return err
		case keys, open := <-wanted:
			if !open {
				wanted = nil
				break
			}
			w.listed = true
			clear(w.wanted)
			for _, k := range keys {
				w.wanted[k] = true
			}
			w.sharing.owners = nil
		case j := <-w.ended:
			w.release(ctx, w.alsoEnded(j))
		case <-m.register.changed:
			select {
			case <-time.After(gather):
			case <-ctx.Done():
			}
		case <-wake.C:
		}
		wake.Stop()
	}
}

// work is the state of Work, touched by its goroutine only.
type work struct {
	*Member
	do         func(ctx context.Context, key string) error
	wanted     map[string]bool
	listed     bool // what is wanted has been told
	jobs       map[string]*job
	ended      chan *job
	freeSince  map[string]time.Time
	passedOver map[string]proto.Claim
	deadSince  map[string]time.Time
	sharing    sharing
	running    sync.WaitGroup
}

// job is one claim at work.
type job struct {
	key      string
	era      bus.Era // of the claim
	revision uint64  // of the claim in that era
	cancel   context.CancelFunc
	endLease context.CancelFunc
	unbind   func() bool // from the lease whose end ends the work; false: it has ended
	leaving  bool
}

// bind makes the work end with a lease, and no longer with the one before.
func (j *job) bind(l *lease) {
	if j.unbind != nil {
		j.unbind()
	}
	j.unbind = context.AfterFunc(l.ctx, func() {
		j.endLease()
		j.cancel()
	})
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

// step does what the situation asks for, and says after what time to look again at the latest.
func (w *work) step(ctx context.Context) (time.Duration, error) {
	lease, now := w.currentLease(), w.register.current()
	if lease.ctx.Err() != nil || lease.era != now.era {
		return w.o.TTL / 10, nil
	}
	workers, claims := now.roster.snapshot()
	if err := w.claimAgain(ctx, lease, claims); err != nil {
		return 0, err
	}
	if at := time.Now(); now.rests(at, w.o.TTL) {
		// When it is over, each key waits for the worker that it prefers as if it had just become
		// free.
		clear(w.freeSince)
		for key, j := range w.jobs {
			if !w.wanted[key] {
				w.leave(j, "nobody wants it")
			}
		}
		return min(w.o.TTL/10, now.seen.Add(w.o.TTL).Sub(at)+time.Millisecond), nil
	}
	return w.share(ctx, lease, workers, claims)
}

// share takes and leaves keys so that each worker has its share of them.
func (w *work) share(ctx context.Context, lease *lease, workers map[string]proto.Worker, claims map[string]claimed) (time.Duration, error) {
	now := time.Now()
	// The own record counts from the moment it is written, not from when the watch tells of it.
	workers[w.o.Worker] = proto.Worker{Name: w.o.Worker, Group: w.o.Group, Incarnation: w.o.Incarnation}
	s := situation{
		self: w.o.Worker, workers: workers, wanted: w.wanted, claims: map[string]proto.Claim{}, mine: map[string]bool{},
		freeSince: w.freeSince, passedOver: w.passedOver, deadSince: w.deadSince, grace: w.o.TTL, max: w.o.Max, yields: w.o.Yields,
	}
	s.owners = w.sharing.among(workers, w.wanted)
	for key, c := range claims {
		s.claims[key] = c.Claim
	}
	for key, j := range w.jobs {
		// Another's claim on what we work on: ours was taken over while we were believed dead.
		if c, ok := claims[key]; ok && j.era == lease.era && c.revision > j.revision && c.Incarnation != w.o.Incarnation {
			w.leave(j, "another worker took the claim over")
		}
		s.mine[key] = true
	}
	w.noteFree(s, now)
	w.noteDead(s, now)
	d := decide(s, now)
	for _, key := range d.leave {
		w.leave(w.jobs[key], "it is another's now")
	}
	for keys := range slices.Chunk(d.take, takeAtOnce) {
		if err := w.take(ctx, lease, keys, claims, s); err != nil {
			return 0, err
		}
	}
	w.clear(ctx, lease, d.clear, claims)
	next := w.o.TTL / 3
	if !d.again.IsZero() {
		next = min(next, max(d.again.Sub(now), time.Millisecond))
	}
	return next, nil
}

// noteFree keeps since when wanted keys have been without a live holder.
func (w *work) noteFree(s situation, now time.Time) {
	for key := range w.freeSince {
		if !s.wanted[key] || s.mine[key] || s.heldByOther(key) {
			delete(w.freeSince, key)
		}
	}
	for key := range s.wanted {
		if _, noted := w.freeSince[key]; !noted && !s.mine[key] && !s.heldByOther(key) {
			w.freeSince[key] = now
		}
	}
}

// take claims keys and begins the work on those that it got. Losing a race is no error.
func (w *work) take(ctx context.Context, lease *lease, keys []string, claims map[string]claimed, s situation) error {
	attempts, err := w.write(ctx, lease, keys, claims)
	if err != nil {
		return err
	}
	for key, a := range attempts {
		if a.err != nil {
			if !bus.IsConflict(a.err) && ctx.Err() == nil {
				w.o.Log.Warn("claim failed", "key", key, "error", a.err)
			}
			continue
		}
		delete(w.passedOver, key)
		if to := s.owners[key]; to != w.o.Worker {
			w.passedOver[key] = proto.Claim{Worker: to, Incarnation: s.workers[to].Incarnation, Since: time.Now()}
		}
		w.begin(lease, key, a.revision)
	}
	return nil
}

// claimAgain makes the claims again that are of an era before and by which work still goes on. From
// then on the work goes by the new claim and the new lease. What cannot be claimed now is tried
// again until its lease ends; what another has claimed is left.
func (w *work) claimAgain(ctx context.Context, lease *lease, claims map[string]claimed) error {
	var old []string
	for key, j := range w.jobs {
		switch c, claimed := claims[key]; {
		case j.leaving || j.era == lease.era:
		case claimed && c.Incarnation != w.o.Incarnation:
			w.leave(j, "another worker has claimed it")
		default:
			old = append(old, key)
		}
	}
	for keys := range slices.Chunk(old, takeAtOnce) {
		attempts, err := w.write(ctx, lease, keys, claims)
		if err != nil {
			return err
		}
		for key, a := range attempts {
			j := w.jobs[key]
			switch {
			case a.err == nil:
				j.era, j.revision = lease.era, a.revision
				j.bind(lease)
			case bus.IsConflict(a.err):
				w.leave(j, "another worker has claimed it")
			default:
				w.o.Log.Warn("a claim could not be made again yet", "key", key, "error", a.err)
			}
		}
	}
	return nil
}

// attempt is what came of a try to claim a key.
type attempt struct {
	revision uint64
	err      error
}

// write claims keys at the revisions that their entries have, by compare-and-set. An attempt that
// succeeded did so in the era of the lease. If nothing is certain of any, it gives none.
func (w *work) write(ctx context.Context, lease *lease, keys []string, claims map[string]claimed) (map[string]attempt, error) {
	value, err := json.Marshal(proto.Claim{Worker: w.o.Worker, Incarnation: w.o.Incarnation, Since: time.Now().UTC()})
	if err != nil {
		return nil, fmt.Errorf("encode claim: %w", err)
	}
	cas, cancel := context.WithTimeout(ctx, casTimeout)
	defer cancel()
	results := make([]attempt, len(keys))
	var writing sync.WaitGroup
	for i, key := range keys {
		writing.Go(func() {
			a := &results[i]
			if revision := claims[key].revision; revision == 0 {
				a.revision, a.err = w.claims.Create(cas, proto.ClaimKey(w.o.Group, key), value)
			} else {
				a.revision, a.err = w.claims.Update(cas, proto.ClaimKey(w.o.Group, key), value, revision)
			}
		})
	}
	writing.Wait()
	lasts, err := w.register.lasts(cas, lease.era)
	if err != nil || !lasts {
		// Claims by this worker itself that it does not work on keep nobody from a key for long: it
		// takes them up itself, or they expire with its record.
		return nil, nil // it is tried again at the next step
	}
	attempts := map[string]attempt{}
	for i, key := range keys {
		attempts[key] = results[i]
	}
	return attempts, nil
}

// begin runs the work until the claim is left or the lease ends.
func (w *work) begin(lease *lease, key string, revision uint64) {
	lasting, endLease := context.WithCancel(context.Background())
	own, cancel := context.WithCancel(context.WithValue(lasting, leaseKey{}, lasting))
	j := &job{key: key, era: lease.era, revision: revision, cancel: cancel, endLease: endLease}
	j.bind(lease)
	w.jobs[key] = j
	w.mu.Lock()
	w.held[key] = true
	w.mu.Unlock()
	w.o.Log.Debug("claimed", "group", w.o.Group, "key", key)
	w.running.Go(func() {
		for {
			err := w.do(own, key)
			if own.Err() != nil {
				break
			}
			w.o.Log.Error("work on a claim ended by itself and begins again", "key", key, "error", err)
			select {
			case <-own.Done():
			case <-time.After(retryAfter):
				continue
			}
			break
		}
		endLease() // and own with it
		w.ended <- j
	})
}

// leave ends the work on a claim; the claim itself is let go when the work has ended.
func (w *work) leave(j *job, why string) {
	if !j.leaving {
		j.leaving = true
		w.o.Log.Debug("leaving a claim", "group", w.o.Group, "key", j.key, "reason", why)
		j.cancel()
	}
}

func (w *work) stopAll(why string) {
	for _, j := range w.jobs {
		w.leave(j, why)
	}
}

// forget notes that the work on a claim has ended.
func (w *work) forget(j *job) {
	j.unbind()
	delete(w.jobs, j.key)
	delete(w.passedOver, j.key)
	w.freeSince[j.key] = time.Now()
	w.mu.Lock()
	delete(w.held, j.key)
	w.mu.Unlock()
}

// finish lets everything go: the others are told, so that they take what becomes free at once; all
// work is ended, each claim is free as soon as its work has ended. When one cannot be let go the
// others are not tried: each would be waited for anew, and all are free when this worker's record
// is gone.
func (w *work) finish() {
	w.leaveSoon()
	w.stopAll("stopping")
	var failed error
	for len(w.jobs) > 0 {
		j := <-w.ended
		w.forget(j)
		if failed != nil {
			continue
		}
		if failed = w.letGo(context.Background(), j); failed != nil {
			w.o.Log.Warn("claims could not be let go; they expire with this worker", "key", j.key, "error", failed)
		}
	}
	w.running.Wait()
}
