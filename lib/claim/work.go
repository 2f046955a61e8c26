package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

const (
	// retryAfter is the pause before work that ended by itself is begun again.
	retryAfter = time.Second
	// casTimeout bounds one compare-and-set.
	casTimeout = 5 * time.Second
	// atOnce is how many claims are written side by side.
	atOnce = 64
	// gather is how long to wait after a change for what else changes: where many keys move, each
	// of their claims is one, and each decision looks at all keys.
	gather = 10 * time.Millisecond
	// endsWithin is how long work on a key may take to end once it is asked to. What goes on then is a
	// fault of ours, and nobody would work on the key as long as this process lives.
	endsWithin = 2 * time.Minute
	// markerKept is how long the bucket says that a claim was let go: long enough for every watch
	// to hear of it. Relays come and go, and without an end each would leave a message for good.
	markerKept = time.Hour
)

// Work claims its share of the keys that wanted names (each value is the whole list) and runs do
// for every claim until the claim is given up, which ends do's context; the claim goes to another
// only after do has returned. Until then what was begun may be finished, unless the lease ends.
// Work returns when ctx has ended, or the group cannot be followed, and everything is let go. It
// returns an error, and keeps the claim, if do has not returned two minutes after its context ended:
// the process must end then.
//
// Two workers never work on one key, as long as their clocks run equally fast within a tenth; how
// late a worker hears of something does not matter. A claim is taken by compare-and-set, from none
// or from a worker that has no record and of which nothing was heard for a TTL, with every
// heartbeat read that the bucket has. The work by a claim runs under the lease, which ends at most
// nine tenths of a TTL after the last heartbeat began. A record that is gone earlier, because a
// clock was set or by a hand, therefore hands no key out, and it ends the lease as soon as its own
// worker hears of it. A claim that a hand has removed hands no key out either, until every other
// worker has said in its record that it does not work by it, or was silent for a TTL.
//
// The order is: end the work, then let the claim go. The other way round, another worker would
// begin while this one still writes.
//
// What fails is tried again after the next heartbeat.
func (m *Member) Work(ctx context.Context, wanted <-chan []string,
	do func(ctx context.Context, held Held) error) error {
	w := &work{Member: m, do: do, jobs: map[string]job{}, ended: make(chan end), writing: make(chan struct{}, atOnce)}
	defer w.finish()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-m.directory.Ended:
			return err
		case keys, open := <-wanted:
			if !open {
				wanted = nil
				continue
			}
			if w.wanted == nil {
				m.announce(true)
			}
			w.wanted = map[string]bool{}
			for _, k := range keys {
				w.wanted[k] = true
			}
		case end := <-w.ended:
			delete(w.jobs, end.key)
			if end.err != nil {
				return end.err
			}
		case <-m.directory.changed:
			_ = backoff.Sleep(ctx, gather) // the loop looks at ctx
		}
		if w.wanted != nil {
			w.share(ctx)
		}
	}
}

// work is the state of Work, touched by its goroutine only.
type work struct {
	*Member
	do      func(ctx context.Context, held Held) error
	wanted  map[string]bool // nil: not told yet
	jobs    map[string]job  // claims at work, by key
	ended   chan end
	writing chan struct{} // as many as are in it, claims are being let go
}

// end is how the work on a key ended: with an error if it goes on although it was asked to end.
type end struct {
	key string
	err error
}

// job is the work on one claim.
type job struct {
	stop     context.CancelFunc
	revision uint64 // of the claim
}

// share takes and leaves keys so that each worker has its share of them.
func (w *work) share(ctx context.Context) {
	lease := w.leases.now()
	if lease.Err() != nil {
		return
	}
	workers, claims := w.directory.Workers(), w.directory.held()
	// The own record counts from the moment it is written, not from when the watch tells of it.
	workers[w.o.Worker] = proto.Worker{Name: w.o.Worker, Working: true}
	mine, ended, again := map[string]bool{}, map[string]bool{}, time.Duration(0)
	for key, job := range w.jobs {
		mine[key] = true
		if claims[key].revision > job.revision {
			job.stop() // another hand has removed the claim or changed it
		}
	}
	for key, c := range claims {
		if c.vanished {
			mayBe, wait := w.directory.mayBeWorkedOn(c)
			ended[key], again = !mayBe, sooner(again, wait)
		}
	}
	d := decide(situation{self: w.o.Worker, workers: workers, claims: claims, wanted: w.wanted, mine: mine, ended: ended})
	for _, key := range d.leave {
		w.jobs[key].stop()
	}
	free, wait, err := w.free(ctx, slices.Concat(d.take, d.clear), claims)
	if again = sooner(again, wait); again > 0 {
		time.AfterFunc(again, w.directory.tell)
	}
	if err != nil {
		w.o.Log.Debug("no key of another worker is taken", "group", w.o.Group, "error", err)
	}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, key := range free {
		group.Go(func() error {
			if _, clear := slices.BinarySearch(d.clear, key); clear {
				w.letGo(key, claims[key].revision)
				return nil
			}
			claim := proto.Claim{Worker: w.o.Worker, Since: time.Now().UTC()}
			w.workOn(key, claims[key].revision)
			revision, err := w.claim(ctx, key, claim, claims[key].revision)
			if err == nil {
				w.workOn(key, revision)
				w.directory.made(key, claim, revision)
				mu.Lock()
				defer mu.Unlock()
				w.begin(lease, key, revision)
				return nil
			}
			w.workEnded(key)
			if !errors.Is(err, errTaken) && !bus.IsConflict(err) && ctx.Err() == nil { // a conflict: another was first
				w.o.Log.Warn("claim failed", "key", key, "error", err)
			}
			return nil
		})
	}
	group.Wait()
}

// errTaken is that a key has a claim of which this worker has not heard yet.
var errTaken = errors.New("the key was claimed meanwhile")

// claim writes a claim over the one that this worker knows, by its revision; 0: it knows of none.
// Then it writes over nothing but the mark with which a holder has let the key go. The mark of a
// hand that has removed a claim is no such mark: the holder may work on until it hears of that.
// [jetstream.KeyValue.Create] would write over both.
func (m *Member) claim(ctx context.Context, key string, claim proto.Claim, revision uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, casTimeout)
	defer cancel()
	name := proto.ClaimKey(m.o.Group, key)
	if revision == 0 {
		last, found, err := bus.Last(ctx, m.bus.JS, proto.KVStream(proto.BucketClaims),
			proto.KVSubject(proto.BucketClaims, name))
		switch {
		case err != nil:
			return 0, fmt.Errorf("read whose %s is: %w", key, err)
		case found && last.Header.Get(proto.HeaderReleased) == "":
			return 0, errTaken
		}
		revision = last.Seq // 0: there is none
	}
	data, err := json.Marshal(claim)
	if err != nil {
		return 0, fmt.Errorf("encode the claim on %s: %w", key, err)
	}
	return m.claims.Update(ctx, name, data, revision)
}

// free returns those of the keys by whose claims no worker works any more, and after how long
// silence may have made more of them free; 0: a message will tell. Where there was a holder it
// first reads every heartbeat that the bucket has: what this worker has heard of claims may be
// newer than what it has heard of workers. After an error it has the keys without a holder.
func (w *work) free(ctx context.Context, keys []string, claims map[string]claimed) (free []string, again time.Duration,
	err error) {
	var held []string
	for _, key := range keys {
		if c := claims[key]; c.vanished || c.Worker != "" && c.Worker != w.o.Worker {
			held = append(held, key)
		} else {
			free = append(free, key)
		}
	}
	if len(held) == 0 {
		return free, 0, nil
	}
	if err := w.directory.catchUp(ctx); err != nil {
		return free, 0, err
	}
	for _, key := range held {
		mayBe, wait := w.directory.mayBeWorkedOn(claims[key])
		if !mayBe {
			free = append(free, key)
		}
		again = sooner(again, wait)
	}
	return free, again, nil
}

// sooner is the shorter of two times, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// begin runs the work until the claim is left or the lease ends, and lets the claim go then.
func (w *work) begin(lease context.Context, key string, revision uint64) {
	ctx, cancel := context.WithCancel(lease)
	w.jobs[key] = job{cancel, revision}
	w.o.Log.Debug("claimed", "group", w.o.Group, "key", key)
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		defer cancel()
		for ctx.Err() == nil {
			err := w.do(ctx, Held{key, lease})
			if ctx.Err() != nil {
				break
			}
			w.o.Log.Error("work on a claim ended by itself and begins again", "key", key, "error", err)
			_ = backoff.Sleep(ctx, retryAfter) // the loop looks at ctx
		}
	}()
	go func() {
		<-ctx.Done()
		select {
		case <-returned:
		case <-time.After(w.endsWithin):
			w.ended <- end{key, fmt.Errorf("work on %s %s goes on %s after it was asked to end", w.o.Group, key,
				w.endsWithin)}
			return
		}
		w.workEnded(key)
		w.writing <- struct{}{}
		w.letGo(key, revision)
		if w.directory.held()[key].vanished {
			w.beatSoon() // a hand has removed the claim: the others wait until this worker has heard of it
		}
		<-w.writing
		w.ended <- end{key: key}
	}()
}

// letGo makes a claim free. If another holds it meanwhile, it keeps it: the revision differs.
func (w *work) letGo(key string, revision uint64) {
	ctx, cancel := context.WithTimeout(context.Background(), casTimeout)
	defer cancel()
	m := &nats.Msg{Subject: proto.KVSubject(proto.BucketClaims, proto.ClaimKey(w.o.Group, key)),
		Header: bus.Deletion(markerKept)}
	m.Header.Set(proto.HeaderReleased, w.o.Worker)
	_, err := w.bus.JS.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(revision))
	if err != nil && !bus.IsConflict(err) {
		w.o.Log.Warn("a claim could not be let go; it is taken up again, or expires with its worker", "key", key, "error",
			err)
	}
}

// finish lets everything go. The others are told first, so that they take what becomes free at
// once. Each claim is free as soon as the work on it has ended.
func (w *work) finish() {
	w.announce(false)
	for _, job := range w.jobs {
		job.stop()
	}
	for len(w.jobs) > 0 {
		end := <-w.ended
		if delete(w.jobs, end.key); end.err != nil {
			w.o.Log.Error("a claim is not let go", "error", end.err)
		}
	}
}
