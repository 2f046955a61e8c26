package purgatory

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

// reposOf gives repositories of an identifier in a store whose locks follow the shards, by their
// owners. It is called outside of a bubble: it starts git.
func reposOf(t *testing.T, h *shards) func(owner string) *repository.Repo {
	store := gittest.Store(t)
	store.Enter = h.Enter
	return func(owner string) *repository.Repo {
		repo, err := store.At(placeOf(strings.Repeat(owner, 64), "x"))
		fixture.Must(t, err)
		return repo
	}
}

// TestOneWriterAndHandOver: writers of one repository come one after the other, those of others do
// not wait, and a shard is let go only when nothing is written any more. A writer that waits then
// is for the next worker.
func TestOneWriterAndHandOver(t *testing.T) {
	t.Parallel()
	h := newShards()
	at := reposOf(t, h)
	synctest.Test(t, func(t *testing.T) {
		if _, err := at("a").Lock(t.Context()); !errors.Is(err, repository.ErrElsewhere) {
			t.Fatalf("writing in a shard that is not held: %v", err)
		}
		for n := range proto.Shards {
			h.Open(n, t.Context())
		}
		var writers, most, written, elsewhere atomic.Int32
		for range 5 {
			go func() {
				locked, err := at("a").Lock(t.Context())
				if errors.Is(err, repository.ErrElsewhere) {
					elsewhere.Add(1)
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				written.Add(1)
				most.Store(max(most.Load(), writers.Add(1)))
				time.Sleep(time.Second)
				writers.Add(-1)
				locked.Done()
			}()
		}
		synctest.Wait()
		locked, others := at("b").TryLock()
		if _, same := at("a").TryLock(); same || !others {
			t.Fatalf("free while one writes: the same repository %t, another %t", same, others)
		}
		locked.Done()
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := at("a").Lock(impatient); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a writer that gives up: %v", err)
		}
		time.Sleep(2500 * time.Millisecond)
		began := time.Now()
		go func() {
			time.Sleep(100 * time.Millisecond)
			if _, err := at("a").Lock(t.Context()); !errors.Is(err, repository.ErrElsewhere) {
				t.Errorf("writing in a shard that is being let go: %v", err)
			}
			if !h.Holds("x") {
				t.Error("nothing can be read while writers finish")
			}
		}()
		h.Close(proto.ShardOf("x"))
		if took := time.Since(began); took < 400*time.Millisecond || took > time.Second || writers.Load() != 0 || written.Load() != 3 {
			t.Errorf("let go after %v with %d writers, when %d had written", took, writers.Load(), written.Load())
		}
		if synctest.Wait(); elsewhere.Load() != 2 {
			t.Errorf("%d writers are for the next worker", elsewhere.Load())
		}
		if most.Load() != 1 || h.Holds("x") || h.Count() != proto.Shards-1 {
			t.Errorf("%d writers at once, still held: %t", most.Load(), h.Holds("x"))
		}
	})
}

// TestLease: what is written ends with the lease, also if the same worker has the shard again then;
// what may be begun again elsewhere ends as soon as the shard is being let go.
func TestLease(t *testing.T) {
	t.Parallel()
	h := newShards()
	repo := reposOf(t, h)("a")
	if _, err := repo.Lease(); !errors.Is(err, repository.ErrElsewhere) {
		t.Errorf("a shard that is not held may be written: %v", err)
	}
	lease, end := context.WithCancel(t.Context())
	h.Open(proto.ShardOf("x"), lease)
	during, done, err := h.During(t.Context(), "x")
	fixture.Must(t, err)
	leased, err := repo.Lease()
	fixture.Must(t, err)
	locked, err := repo.Lock(t.Context())
	fixture.Must(t, err)
	mayWrite := func() error { return errors.Join(leased.MayWrite(t.Context()), locked.MayWrite(t.Context())) }
	if err := mayWrite(); err != nil || during.Err() != nil {
		t.Fatalf("a shard that is held: %v, %v", err, during.Err())
	}
	closed := make(chan struct{})
	go func() { h.Close(proto.ShardOf("x")); close(closed) }()
	<-during.Done()
	done()
	if err := mayWrite(); err != nil {
		t.Errorf("a write that is under way is cut off though the lease lasts: %v", err)
	}
	end()
	if leased.MayWrite(t.Context()) != repository.ErrLease || locked.MayWrite(t.Context()) != repository.ErrLease {
		t.Error("a write goes on though the lease has ended")
	}
	leased.Done()
	locked.Done()
	locked.Done() // again does nothing
	<-closed
	h.Open(proto.ShardOf("x"), t.Context())
	if err := locked.SetWaiting(nil); !errors.Is(err, repository.ErrLease) {
		t.Errorf("a lock of the lease before: %v", err)
	}
}

// TestPushesAreFair: an owner, and the worker itself, wait for one stranger and one push of each
// other client at most, however many came before; and a stranger comes in between too.
func TestPushesAreFair(t *testing.T) {
	t.Parallel()
	h := newShards()
	at := reposOf(t, h)
	synctest.Test(t, func(t *testing.T) {
		h.Open(proto.ShardOf("x"), t.Context())
		var order []string
		come := func(name string, take func() (*repository.Locked, error)) {
			go func() {
				locked, err := take()
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, name)
				time.Sleep(time.Second)
				locked.Done()
			}()
			synctest.Wait()
		}
		push := func(name, client string, stranger bool) {
			come(name, func() (*repository.Locked, error) {
				return at("a").LockFor(t.Context(), client, stranger)
			})
		}
		for n := range 20 {
			push("stranger", fmt.Sprint("s", n), true)
			push("stranger", "flood", true)
		}
		for range 3 {
			push("maintainer", "m", false)
		}
		push("owner", "o", false)
		come("worker", func() (*repository.Locked, error) { return at("a").Lock(t.Context()) })
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []string{"stranger", "maintainer", "owner", "worker", "maintainer", "stranger", "maintainer"}
		if len(order) != 45 || !slices.Equal(order[:7], want) {
			t.Errorf("%d came, first %q, want %q", len(order), order[:7], want)
		}
	})
}

// TestALookTakesItsTurn at the first of its repositories among clients who always push there. Where
// only one does, it comes again later.
func TestALookTakesItsTurn(t *testing.T) {
	t.Parallel()
	h := newShards()
	at := reposOf(t, h)
	synctest.Test(t, func(t *testing.T) {
		h.Open(proto.ShardOf("x"), t.Context())
		looks := &reconciler{env: env{constants: constants{Turn: 10 * time.Second}}, turn: make(chan struct{}, 1)}
		for _, client := range []string{"one", "two", "three"} {
			go func() {
				for range 10 {
					locked, err := at("a").LockFor(t.Context(), client, false)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(3 * time.Second)
					locked.Done()
				}
			}()
		}
		synctest.Wait()
		began := time.Now()
		for _, first := range []bool{false, true} {
			locked, free := looks.lock(t.Context(), at("a"), first)
			if took := time.Since(began); free != first || took > 9*time.Second || !first && took > 0 {
				t.Errorf("the lock is taken: %t, after %v; it is the first: %t", free, took, first)
			}
			if free {
				locked.Done()
			}
		}
		time.Sleep(time.Hour)
		alone, err := at("a").LockFor(t.Context(), "one", false)
		fixture.Must(t, err)
		began = time.Now()
		if _, free := looks.lock(t.Context(), at("a"), true); free || time.Since(began) > 0 {
			t.Errorf("the lock of one client is taken: %t, after %v", free, time.Since(began))
		}
		alone.Done()
	})
}

// inShard runs a test in a bubble in which the shard of x is held. lock locks an owner's repository.
func inShard(t *testing.T, test func(t *testing.T, h *shards, n int, lock func(owner string) *repository.Locked)) {
	h := newShards()
	at := reposOf(t, h)
	synctest.Test(t, func(t *testing.T) {
		n := proto.ShardOf("x")
		h.Open(n, t.Context())
		test(t, h, n, func(owner string) *repository.Locked {
			locked, err := at(owner).Lock(t.Context())
			fixture.Must(t, err)
			return locked
		})
	})
}

// TestAHandOverCutsSlowWorkOff: a writer that does not end is cut off after a while, and then the
// shard moves. One that ends in time is not.
func TestAHandOverCutsSlowWorkOff(t *testing.T) {
	t.Parallel()
	inShard(t, func(t *testing.T, h *shards, n int, lock func(owner string) *repository.Locked) {
		slow, quick, began := lock("a"), lock("b"), time.Now()
		go func() { // a push whose client has gone
			during, end := slow.During(context.Background())
			defer end()
			<-during.Done()
			if cause := context.Cause(during); !errors.Is(cause, repository.ErrLease) || time.Since(began) != handOverPatience {
				t.Errorf("cut off after %v by %v", time.Since(began), cause)
			}
			slow.Done()
		}()
		go func() {
			time.Sleep(handOverPatience - time.Second)
			if err := quick.MayWrite(t.Context()); err != nil {
				t.Error(err)
			}
			quick.Done()
		}()
		ended := h.Close(n)
		if waited := time.Since(began); waited != handOverPatience || !ended {
			t.Errorf("the shard was let go after %v; its work has ended: %t", waited, ended)
		}
	})
}

// TestWorkThatNeverEndsKeepsNoShard: a writer that hears of no end keeps its repository alone, and
// may not write there.
func TestWorkThatNeverEndsKeepsNoShard(t *testing.T) {
	t.Parallel()
	inShard(t, func(t *testing.T, h *shards, n int, lock func(owner string) *repository.Locked) {
		stuck, began := lock("a"), time.Now()
		if ended := h.Close(n); ended || time.Since(began) != 2*handOverPatience || h.Holds("x") {
			t.Errorf("after %v its work has ended: %t; the shard is held: %t", time.Since(began), ended, h.Holds("x"))
		}
		if err := stuck.MayWrite(t.Context()); !errors.Is(err, repository.ErrLease) {
			t.Errorf("it may write: %v", err)
		}
		stuck.Done()
	})
}

// TestRoomForPushesWithoutEvents: one client leaves room for others in a repository.
func TestRoomForPushesWithoutEvents(t *testing.T) {
	t.Parallel()
	const most = maxClientWaiting
	for name, tc := range map[string]struct {
		clients, each int // that wait
		client        string
		more          int
		room          bool
	}{
		"nothing waits":          {0, 1, "a", most, true},
		"too many at once":       {0, 1, "a", most + 1, false},
		"the last of a client":   {1, most - 1, "0", 1, true},
		"one more of the client": {1, most, "0", 1, false},
		"one of another":         {1, most, "a", 1, true},
		"the repository is full": {4, most, "a", 1, false},
	} {
		var waiting []repository.WaitingPush
		for n := range tc.clients * tc.each {
			waiting = append(waiting, repository.WaitingPush{Event: fmt.Sprint(n), Client: fmt.Sprint(n / tc.each)})
		}
		if err := roomFor(waiting, tc.client, tc.more); (err == nil) != tc.room {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// noEvents is a source without any event.
type noEvents struct{ query.Source }

func (noEvents) Query(context.Context, nostr.Filter) iter.Seq2[*nostr.Event, error] {
	return func(func(*nostr.Event, error) bool) {}
}

// TestQuietRepositoriesAreLookedAt at the start and once a day, though nothing happens there: what
// a killed process left is swept up when it is old.
func TestQuietRepositoriesAreLookedAt(t *testing.T) {
	t.Parallel()
	store := gittest.Store(t)
	repo := gittest.Repo(t, store, "quiet")
	synctest.Test(t, func(t *testing.T) {
		looks := make(chan task)
		looked := func(_ context.Context, t task) error {
			looks <- t
			return nil
		}
		e := env{log: slog.New(slog.DiscardHandler), store: store, shards: newShards()}
		queue := newQueue(1, time.Second, time.Second, looked)
		w := &survey{env: e, knowledge: &knowledge{events: noEvents{}}, schedule: &schedule{env: e, queue: queue},
			releaser: &release.Releaser{}, arrivals: make(chan int, 1), statuses: &sync.Map{}}
		w.shards.Open(proto.ShardOf("quiet"), t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		go func() { done <- queue.keys.Run(ctx) }()
		w.arrivals <- proto.ShardOf("quiet")
		began := time.Now()
		for days := range time.Duration(2) {
			if look := <-looks; look.places[repo.Place] != groupAndAcceptedPRs || time.Since(began) != days*surveyEvery {
				t.Errorf("%v after %v", look, time.Since(began))
			}
		}
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}
