package claim

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

const (
	// retryAfter is the pause before work that ended by itself is begun again.
	retryAfter = time.Second
	// casTimeout bounds one compare-and-set.
	casTimeout = 5 * time.Second
	// markerKept is how long the bucket says that a claim was let go: long enough for every watch
	// to hear of it. Relays come and go, and without an end each would leave a message for good.
	markerKept = time.Hour
)

// Work claims its share of the keys that wanted names (each value is the whole list) and runs do for every claim until the claim is given up,
// which ends do's context; the claim goes to another only after do has returned. It returns when ctx has ended and everything is let go.
func (m *Member) Work(ctx context.Context, wanted <-chan []string, do func(ctx context.Context, key string) error) error {
	w := &work{
		Member: m, do: do,
		wanted: map[string]bool{}, jobs: map[string]*job{}, ended: make(chan *job),
		freeSince: map[string]time.Time{}, passedOver: map[string]proto.Claim{},
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
			clear(w.wanted)
			for _, k := range keys {
				w.wanted[k] = true
			}
		case j := <-w.ended:
			w.release(ctx, j)
		case <-m.roster.changed:
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
	jobs       map[string]*job
	ended      chan *job
	freeSince  map[string]time.Time
	passedOver map[string]proto.Claim
	running    sync.WaitGroup
}

// job is one claim at work.
type job struct {
	key      string
	revision uint64
	cancel   context.CancelFunc
	leaving  bool
}

// step does what the situation asks for, and says after what time to look again at the latest.
func (w *work) step(ctx context.Context) (time.Duration, error) {
	now := time.Now()
	lease := w.currentLease()
	if lease.Err() != nil {
		return w.o.TTL / 10, nil
	}
	workers, claims := w.roster.snapshot()
	// The own record counts from the moment it is written, not from when the watch tells of it.
	workers[w.o.Worker] = proto.Worker{Name: w.o.Worker, Group: w.o.Group, Incarnation: w.o.Incarnation}
	s := situation{
		self: w.o.Worker, workers: workers, wanted: w.wanted, claims: map[string]proto.Claim{}, mine: map[string]bool{},
		freeSince: w.freeSince, passedOver: w.passedOver, grace: w.o.TTL, max: w.o.Max, yields: w.o.Yields,
	}
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
	d := decide(s, now)
	for _, key := range d.leave {
		w.leave(w.jobs[key], "it is another's now")
	}
	for _, key := range d.take {
		if err := w.take(ctx, lease, key, claims[key].revision, s); err != nil {
			return 0, err
		}
	}
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

// take claims a key whose entry has the given revision (0: none) and begins the work. Losing the race is no error.
func (w *work) take(ctx, lease context.Context, key string, revision uint64, s situation) error {
	value, err := json.Marshal(proto.Claim{Worker: w.o.Worker, Incarnation: w.o.Incarnation, Since: time.Now().UTC()})
	if err != nil {
		return fmt.Errorf("encode claim: %w", err)
	}
	cas, cancel := context.WithTimeout(ctx, casTimeout)
	defer cancel()
	if revision == 0 {
		revision, err = w.claims.Create(cas, proto.ClaimKey(w.o.Group, key), value)
	} else {
		revision, err = w.claims.Update(cas, proto.ClaimKey(w.o.Group, key), value, revision)
	}
	if err != nil {
		if !bus.IsConflict(err) && ctx.Err() == nil {
			w.o.Log.Warn("claim failed", "key", key, "error", err)
		}
		return nil
	}
	names := make([]string, 0, len(s.workers))
	for name := range s.workers {
		names = append(names, name)
	}
	delete(w.passedOver, key)
	if to := preferred(key, names); to != w.o.Worker {
		w.passedOver[key] = proto.Claim{Worker: to, Incarnation: s.workers[to].Incarnation}
	}
	w.begin(lease, key, revision)
	return nil
}

// begin runs the work until the claim is left or the lease ends.
func (w *work) begin(lease context.Context, key string, revision uint64) {
	own, cancel := context.WithCancel(lease)
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

// release lets a claim go whose work has ended.
func (w *work) release(ctx context.Context, j *job) {
	w.forget(j)
	if err := w.letGo(ctx, j); err != nil && ctx.Err() == nil {
		w.o.Log.Warn("a claim could not be let go; it is taken up again, or expires with this worker", "key", j.key, "error", err)
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

// letGo makes a claim free. Where another holds it meanwhile, the revision keeps his.
func (w *work) letGo(ctx context.Context, j *job) error {
	cas, cancel := context.WithTimeout(ctx, casTimeout)
	defer cancel()
	err := w.claims.Purge(cas, proto.ClaimKey(w.o.Group, j.key), jetstream.LastRevision(j.revision), jetstream.PurgeTTL(markerKept))
	if bus.IsConflict(err) {
		return nil
	}
	return err
}

// finish lets everything go: all work is ended at once, each claim is free as soon as its work has ended. When one cannot be let go the others are
// not tried: each would be waited for anew, and all are free when this worker's record is gone.
func (w *work) finish() {
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
