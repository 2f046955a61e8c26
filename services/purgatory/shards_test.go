package purgatory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
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

// TestAHandOverCutsSlowWorkOff: a writer that does not end is cut off after a while, and then the
// shard moves. One that ends in time is not.
func TestAHandOverCutsSlowWorkOff(t *testing.T) {
	t.Parallel()
	h := newShards()
	at := reposOf(t, h)
	synctest.Test(t, func(t *testing.T) {
		n := proto.ShardOf("x")
		h.Open(n, t.Context())
		slow, err := at("a").Lock(t.Context())
		fixture.Must(t, err)
		quick, err := at("b").Lock(t.Context())
		fixture.Must(t, err)
		began := time.Now()
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
		h.Close(n)
		if waited := time.Since(began); waited != handOverPatience {
			t.Errorf("the shard was let go after %v", waited)
		}
	})
}

// TestScope: of a crowd that may change with a repository a few come at once, those that are served
// first, and the rest later. Others are left alone.
func TestScope(t *testing.T) {
	t.Parallel()
	const domain = "grasp.example.com"
	key := func(n int) string { return fmt.Sprintf("%064x", n) }
	announcement := func(owner string, lead ...string) *nostr.Event {
		ev := &nostr.Event{Kind: nostr.KindAnnouncement, PubKey: owner, Tags: nostr.Tags{{"d", "x"}, append(nostr.Tag{"M"}, lead...),
			{"clone", "https://" + domain + "/x.git"}, {"relays", "wss://" + domain}}}
		ev.ID = ev.GetID()
		return ev
	}
	popular, stranger := key(4000), key(5)
	waiting := []proto.Held{{Event: announcement(stranger), Identifier: "x"}}
	for n := range 40 {
		waiting = append(waiting, proto.Held{Event: announcement(key(100+n), popular), Identifier: "x"})
	}
	v := repostate.New("x", config.Rules{Home: domain}, []*nostr.Event{announcement(popular, popular)}, waiting)
	for _, tc := range []struct {
		owner       string
		reach       reach
		scope, rest int
	}{
		{stranger, maintainerGroup, 1, 0}, {popular, repoOnly, 1, 0}, {popular, maintainerGroup, maxTouched, 41 - maxTouched}, {key(9), maintainerGroup, 1, 0},
	} {
		scope, rest := scopeOf(v, task{identifier: "x", places: map[repository.Place]reach{placeOf(tc.owner, "x"): tc.reach}})
		if len(scope) != tc.scope || len(rest) != tc.rest || tc.scope > 0 && scope[0].PubKey != tc.owner {
			t.Errorf("%.4s: %v, and %d more", tc.owner, scope, len(rest))
		}
	}
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
		w := &survey{env: e, schedule: &schedule{env: e, queue: queue}, arrivals: make(chan int, 1), statuses: &sync.Map{}}
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
