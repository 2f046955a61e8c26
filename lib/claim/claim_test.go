package claim

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/nettest"
)

const (
	// short is a TTL as short as the server's expiry allows.
	short = 2 * time.Second
	// long is a TTL that no test lives to see the end of: what passes on to another was let go.
	long = 10 * fixture.Patience
)

var (
	quiet = slog.New(slog.DiscardHandler)
	must  = fixture.Must
)

// server is a NATS server that may be started again. It sees who works on what, and fails the test
// if two do at once.
type server struct {
	*nettest.NATS
	t   *testing.T
	ttl time.Duration // of those who work by it
	mu  sync.Mutex
	on  map[string]worker // by key
}

// worker is one that works on a key by a lease.
type worker struct {
	name  string
	lease context.Context
}

func serve(t *testing.T, ttl time.Duration) *server {
	t.Helper()
	s := &server{NATS: nettest.NewNATS(t, ""), t: t, ttl: ttl, on: map[string]worker{}}
	s.connect()
	return s
}

func (s *server) connect() *bus.Bus {
	s.t.Helper()
	sizing := proto.DefaultSizing()
	sizing.WorkerTTL = s.ttl
	b, err := bus.Open(context.Background(), bus.Options{URL: s.URL, Sizing: sizing, Provisions: true})
	must(s.t, err)
	s.t.Cleanup(b.Close)
	return b
}

// join lets a worker join that takes no keys.
func (s *server) join(name string) *Member {
	s.t.Helper()
	m, err := Join(s.t.Context(), s.connect(), Options{Group: "test", Worker: name, Log: quiet})
	must(s.t, err)
	s.t.Cleanup(m.Leave)
	return m
}

// work works on a key until ctx ends. Who does not notice in time that the lease has ended works
// on, but does nothing: both leases are asked at the moment of the act.
func (s *server) work(ctx context.Context, name string, held Held) error {
	s.mu.Lock()
	other := s.on[held.Key]
	if other.name != "" && held.Lease.Err() == nil && other.lease.Err() == nil {
		s.t.Errorf("%s works on %s while %s does", name, held.Key, other.name)
	}
	own := worker{name, held.Lease}
	s.on[held.Key] = own
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	if s.on[held.Key] == own {
		delete(s.on, held.Key)
	}
	s.mu.Unlock()
	return nil
}

// owners copies who works on what.
func (s *server) owners() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	owners := map[string]string{}
	for key, w := range s.on {
		owners[key] = w.name
	}
	return owners
}

// await waits until something holds of how many keys each worker has.
func (s *server) await(what string, ok func(share map[string]int) bool) {
	s.t.Helper()
	fixture.Await(s.t, what, func() bool {
		share := map[string]int{}
		for _, worker := range s.owners() {
			share[worker]++
		}
		return ok(share)
	})
}

// has waits until a worker has so many keys.
func (s *server) has(worker string, count int) {
	s.t.Helper()
	s.await(fmt.Sprint(worker, " has ", count), func(share map[string]int) bool { return share[worker] == count })
}

// rests waits until each of the workers has what it should have when all know of each other.
func (s *server) rests(keys []string, names ...string) {
	s.t.Helper()
	wanted := map[string]bool{}
	for _, key := range keys {
		wanted[key] = true
	}
	want := assign(wanted, alive(names...))
	s.await("each has its share", func(map[string]int) bool { return maps.Equal(s.owners(), want) })
}

// start lets a worker join and work; the returned function stops it gracefully. do is what it does,
// if that is not only work.
func (s *server) start(b *bus.Bus, name string, keys []string, do ...func(ctx context.Context, held Held) error) (stop func()) {
	s.t.Helper()
	m, err := Join(s.t.Context(), b, Options{Group: "test", Worker: name, Address: name + ":1", Log: quiet})
	must(s.t, err)
	ctx, cancel := context.WithCancel(s.t.Context())
	wanted := make(chan []string, 1)
	wanted <- keys
	do = append(do, func(ctx context.Context, held Held) error { return s.work(ctx, name, held) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Work(ctx, wanted, do[0])
		m.Leave()
	}()
	stop = func() { cancel(); <-done }
	s.t.Cleanup(stop)
	return stop
}

// TestWorkersShareAndHandOver: one worker has everything, a second gets its share without any key
// being worked on twice, and when either goes the other has everything again. The directory tells
// all along who holds what.
func TestWorkersShareAndHandOver(t *testing.T) {
	t.Parallel()
	s, all := serve(t, long), some("relay", 40)
	stopA := s.start(s.connect(), "a", all)
	s.has("a", 40)
	s.start(s.connect(), "b", all)
	s.rests(all, "a", "b")
	d, err := Watch(t.Context(), s.connect(), "test", quiet)
	must(t, err)
	defer d.Close()
	for key, worker := range s.owners() {
		if w, ok := d.Holder(key); !ok || w.Name != worker || w.Address != worker+":1" {
			t.Errorf("holder of %s: %+v, %v", key, w, ok)
		}
	}
	stopA()
	s.has("b", 40)
}

// TestChaos: many keys, among workers that die, stop, lose the bus for a moment and come at random.
// No key is ever worked on twice, and when it is over each is worked on and no worker has more than
// a quarter over the mean. "make chaos" plays with more workers and keys.
func TestChaos(t *testing.T) {
	t.Parallel()
	crews, keys := []int{2, 5}, 60
	if os.Getenv("TENDRIL_CHAOS") != "" {
		crews, keys = []int{1, 2, 4, 8}, 200
	}
	for _, workers := range crews {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			t.Parallel()
			// On a busy machine a heartbeat takes longer than a short TTL lets it, again and again.
			s, rnd := serve(t, 3*short), rand.New(rand.NewPCG(uint64(workers), 2))
			type worker struct {
				bus  *bus.Bus
				stop func()
			}
			var there []worker
			joined := 0
			join := func() {
				for ; len(there) < workers; joined++ {
					b := s.connect()
					there = append(there, worker{b, s.start(b, fmt.Sprint("worker-", joined), some("relay", keys))})
				}
			}
			for range 15 {
				join()
				i := rnd.IntN(len(there))
				w, fate := there[i], rnd.IntN(3)
				if fate == 2 {
					if err := w.bus.Conn.ForceReconnect(); err != nil {
						t.Error(err)
					}
				} else {
					if fate == 0 { // killed: it stops, and the bus hears nothing of that
						w.bus.Conn.Close()
					}
					w.stop()
					there = slices.Delete(there, i, i+1)
				}
				time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
			}
			join()
			s.await("all share", func(share map[string]int) bool {
				sum, highest := 0, 0
				for _, n := range share {
					sum, highest = sum+n, max(highest, n)
				}
				return sum == keys && len(share) == workers && highest*workers*4 <= keys*5
			})
		})
	}
}

// TestClaimsOnWhatIsGoneGoToo: a worker dies, and some of its keys go away before anybody has
// claimed them. Its claims on those are removed.
func TestClaimsOnWhatIsGoneGoToo(t *testing.T) {
	t.Parallel()
	s, all := serve(t, short), some("relay", 20)
	dying := s.connect()
	stop := s.start(dying, "dying", all)
	s.has("dying", 20)
	dying.Conn.Close()
	stop()
	for _, name := range []string{"heir-1", "heir-2"} {
		s.start(s.connect(), name, all[:5])
	}
	claims, err := s.connect().Bucket(t.Context(), proto.BucketClaims)
	must(t, err)
	s.await("the heirs have what is left", func(n map[string]int) bool {
		claimed, err := claims.ListKeys(t.Context())
		must(t, err)
		var left []string
		for key := range claimed.Keys() {
			left = append(left, key)
		}
		return n["heir-1"]+n["heir-2"] == 5 && len(left) == 5
	})
}

// TestWorkEndsWithTheBucketOfClaims, because who holds what is not known any more.
func TestWorkEndsWithTheBucketOfClaims(t *testing.T) {
	t.Parallel()
	s := serve(t, long)
	b := s.connect()
	m, err := Join(t.Context(), b, Options{Group: "test", Worker: "one", Log: quiet})
	must(t, err)
	wanted, ended := make(chan []string, 1), make(chan error, 1)
	wanted <- some("relay", 20)
	go func() {
		ended <- m.Work(t.Context(), wanted, func(ctx context.Context, held Held) error { return s.work(ctx, "one", held) })
		m.Leave()
	}()
	fixture.Await(t, "the claims are heard of", func() bool { return len(m.directory.held()) == 20 })
	must(t, b.JS.DeleteStream(t.Context(), proto.KVStream(proto.BucketClaims)))
	s.connect() // which makes it again
	select {
	case err := <-ended:
		if err == nil || len(s.owners()) > 0 {
			t.Errorf("ended with %v, and works on %v", err, s.owners())
		}
	case <-time.After(fixture.Patience):
		t.Error("it works on")
	}
}

// TestWorkThatDoesNotEndEndsTheWorker: a hand removes a worker's record, which ends its lease, and
// its work goes on even so. Nobody may work on the key while the worker lives, so it ends and says
// why.
func TestWorkThatDoesNotEndEndsTheWorker(t *testing.T) {
	t.Parallel()
	begun, release := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(release) })
	m, err := Join(t.Context(), serve(t, long).connect(), Options{Group: "test", Worker: "one", Log: quiet})
	must(t, err)
	t.Cleanup(m.Leave)
	m.endsWithin = time.Millisecond
	wanted, ended := make(chan []string, 1), make(chan error, 1)
	wanted <- []string{"key"}
	go func() {
		ended <- m.Work(t.Context(), wanted, func(context.Context, Held) error {
			close(begun)
			<-release
			return nil
		})
	}()
	<-begun
	must(t, m.workers.Delete(t.Context(), m.key()))
	if err := fixture.Receive(t, "the end of the worker", ended); err == nil || !strings.Contains(err.Error(), "work on test key") {
		t.Errorf("it ended with %v", err)
	}
}

// TestLeavingWorkerHoldsNothingUp: a worker that stops gives up each key as soon as its work on
// that has ended. The others have it at once, though the worker is still there and busy with
// another.
func TestLeavingWorkerHoldsNothingUp(t *testing.T) {
	t.Parallel()
	s, all, release := serve(t, long), some("relay", 40), make(chan struct{})
	stopA := s.start(s.connect(), "a", all, func(ctx context.Context, held Held) error {
		defer func() {
			if held.Key == all[7] {
				<-release
			}
		}()
		return s.work(ctx, "a", held)
	})
	s.has("a", 40)
	var stopping sync.WaitGroup
	stopping.Go(stopA)
	s.start(s.connect(), "b", all)
	s.has("b", 39)
	close(release)
	stopping.Wait()
	s.has("b", 40)
}

// TestStoppingWorkerStaysAlive: a worker whose context has ended, and whose work takes longer to
// end than a silent worker is believed to live, keeps the key until then.
func TestStoppingWorkerStaysAlive(t *testing.T) {
	t.Parallel()
	s, release := serve(t, 5*time.Second), make(chan struct{})
	b := s.connect()
	stop := s.start(b, "a", some("relay", 1), func(ctx context.Context, held Held) error {
		slow, end := context.WithCancel(context.WithoutCancel(ctx))
		go func() { <-release; end() }()
		return s.work(slow, "a", held)
	})
	s.has("a", 1)
	s.start(s.connect(), "b", some("relay", 1))
	var stopping sync.WaitGroup
	stopping.Go(stop)
	workers, err := b.Bucket(t.Context(), proto.BucketWorkers)
	must(t, err)
	beats, last := 0, uint64(0)
	s.await("a's heart beats on for more than a TTL", func(map[string]int) bool {
		entry, err := workers.Get(t.Context(), proto.ClaimKey("test", "a"))
		if err == nil && entry.Revision() != last {
			beats, last = beats+1, entry.Revision()
		}
		return beats > 4
	})
	close(release)
	s.has("b", 1)
	stopping.Wait()
}

// TestWorkOutlastsARestart: NATS is started again before any lease has ended. No work is
// interrupted, and each key stays where it is.
func TestWorkOutlastsARestart(t *testing.T) {
	t.Parallel()
	s, all := serve(t, long), some("relay", 200) // more than are claimed at once
	var begun atomic.Int64
	for _, name := range []string{"a", "b"} {
		s.start(s.connect(), name, all, func(ctx context.Context, held Held) error {
			begun.Add(1)
			return s.work(ctx, name, held)
		})
	}
	s.rests(all, "a", "b")
	before, works := s.owners(), begun.Load()
	s.Stop()
	s.Start()
	d, err := Watch(t.Context(), s.connect(), "test", quiet)
	must(t, err)
	defer d.Close()
	for key, worker := range before {
		if w, held := d.Holder(key); !held || w.Name != worker {
			t.Errorf("after the restart %q holds %s, want %s", w.Name, key, worker)
		}
	}
	if n := begun.Load(); n != works {
		t.Errorf("work began %d times more", n-works)
	}
}

// TestNothingIsHandedOutWhileALeaseRuns: a worker is cut off and works on by its lease while NATS
// is started again. A worker that comes then takes none of its keys before that work has ended.
func TestNothingIsHandedOutWhileALeaseRuns(t *testing.T) {
	t.Parallel()
	s, all := serve(t, 6*time.Second), some("relay", 20)
	cutOff := s.connect()
	s.start(cutOff, "dying", all)
	s.has("dying", 20)
	cutOff.Conn.Close()
	s.Stop()
	s.Start()
	s.start(s.connect(), "heir", all)
	s.has("heir", 20)
}
