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
// Two workers never work on one key. A claim is taken by compare-and-set, from none or from a worker
// whose record has expired. The work by it runs under the lease, which ends at most nine tenths of a
// TTL after a heartbeat began, and so before the record that this heartbeat wrote can expire.
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
		case <-m.roster.changed:
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
	revision uint64
	cancel   context.CancelFunc
	leaving  bool
}

// step does what the situation asks for, and says after what time to look again.
func (w *work) step(ctx context.Context) (time.Duration, error) {
	lease := w.currentLease()
	if lease.ctx.Err() != nil {
		return w.o.TTL / 10, nil
	}
	workers, claims := w.roster.snapshot()
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
		if c, ok := claims[key]; ok && c.revision > j.revision && c.Incarnation != w.o.Incarnation {
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
	w.clear(ctx, d.clear, claims)
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
	keys, err := w.gone(ctx, keys, claims)
	if err != nil {
		w.o.Log.Debug("the workers cannot be looked at", "group", w.o.Group, "error", err)
		return nil // it is tried again at the next step
	}
	attempts, err := w.write(ctx, keys, claims)
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

// gone returns those of the keys that have no live holder, as the leader of the bucket of workers
// knows it: what this worker has heard of claims may be newer than what it has heard of workers.
func (w *work) gone(ctx context.Context, keys []string, claims map[string]claimed) (free []string, err error) {
	lives := map[proto.Claim]bool{} // by worker and incarnation
	for _, key := range keys {
		c := claims[key].Claim
		holder := proto.Claim{Worker: c.Worker, Incarnation: c.Incarnation}
		alive, known := lives[holder]
		if !known && c.Worker != "" && c.Worker != w.o.Worker {
			subject := proto.KVSubject(proto.BucketWorkers, proto.ClaimKey(w.o.Group, c.Worker))
			m, found, err := bus.Last(ctx, w.bus.JS, proto.KVStream(proto.BucketWorkers), subject)
			if err != nil {
				return nil, fmt.Errorf("look whether worker %s lives: %w", c.Worker, err)
			}
			var record proto.Worker
			if found && !m.Deletes() && json.Unmarshal(m.Data, &record) == nil {
				alive = record.Incarnation == c.Incarnation
			}
			lives[holder] = alive
		}
		if !alive {
			free = append(free, key)
		}
	}
	return free, nil
}

// attempt is what came of a try to claim a key.
type attempt struct {
	revision uint64
	err      error
}

// write claims keys at the revisions that their entries have, by compare-and-set.
func (w *work) write(ctx context.Context, keys []string, claims map[string]claimed) (map[string]attempt, error) {
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
	attempts := map[string]attempt{}
	for i, key := range keys {
		attempts[key] = results[i]
	}
	return attempts, nil
}

// begin runs the work until the claim is left or the lease ends.
func (w *work) begin(lease *lease, key string, revision uint64) {
	own, cancel := context.WithCancel(lease.ctx)
	j := &job{key: key, revision: revision, cancel: cancel}
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
		cancel()
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
		if failed = w.letGo(context.Background(), j.key, j.revision); failed != nil {
			w.o.Log.Warn("claims could not be let go; they expire with this worker", "key", j.key, "error", failed)
		}
	}
	w.running.Wait()
}
