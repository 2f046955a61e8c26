package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
	"tendril.dev/test/fixture/nettest"
)

const (
	// short is a TTL as short as the server's expiry allows.
	short = 2 * time.Second
	// patience is how long a test waits for what should happen soon.
	patience = 2 * time.Minute
	// long is a TTL that no test lives to see the end of: what passes on to another was let go.
	long = 10 * patience
)

var quiet = slog.New(slog.DiscardHandler)

// server is a NATS server that may be started again, and the TTL of those who work by it.
type server struct {
	*nettest.NATS
	ttl time.Duration
}

func serve(t *testing.T, ttl time.Duration) server {
	t.Helper()
	s := server{nettest.NewNATS(t, ""), ttl}
	s.connect(t)
	return s
}

func (s server) connect(t testing.TB) *bus.Bus {
	t.Helper()
	sizing := proto.DefaultSizing()
	sizing.WorkerTTL = s.ttl
	b, err := bus.Open(context.Background(), bus.Options{URL: s.URL, Sizing: sizing, Provisions: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// board sees who works on what, and fails the test if two do at once.
type board struct {
	t  *testing.T
	mu sync.Mutex
	on map[string]string
}

func (b *board) work(worker string) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		b.mu.Lock()
		if other := b.on[key]; other != "" {
			b.t.Errorf("%s works on %s while %s does", worker, key, other)
		}
		b.on[key] = worker
		b.mu.Unlock()
		<-ctx.Done()
		b.mu.Lock()
		delete(b.on, key)
		b.mu.Unlock()
		return nil
	}
}

func (b *board) share() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := map[string]int{}
	for _, w := range b.on {
		n[w]++
	}
	return n
}

func (b *board) await(what string, ok func(share map[string]int) bool) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok(b.share()) {
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: still %v", what, b.share())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// awaitRest waits until nothing moves any more among the workers whose TTL is long.
func (b *board) awaitRest(keys []string, workers ...string) map[string]int {
	b.t.Helper()
	want := assigned(keys, workers...)
	b.await("each has its share", func(map[string]int) bool { return maps.Equal(b.owners(), want) })
	return b.share()
}

// assigned is who of the workers has each of the keys when all know of each other and nothing moves
// any more.
func assigned(keys []string, names ...string) map[string]string {
	wanted, workers := map[string]bool{}, map[string]proto.Worker{}
	for _, key := range keys {
		wanted[key] = true
	}
	for _, name := range names {
		workers[name] = proto.Worker{Name: name, Working: true}
	}
	return assign(wanted, workers)
}

// owners copies who works on what.
func (b *board) owners() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.on)
}

// start lets a worker join and work; the returned function stops it gracefully.
func (s server) start(t *testing.T, b *bus.Bus, name string, keys []string, do func(context.Context, string) error) (stop func()) {
	t.Helper()
	m, err := Join(t.Context(), b, Options{Group: "test", Worker: name, Address: name + ":1", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	wanted := make(chan []string, 1)
	wanted <- keys
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Work(ctx, wanted, do)
		m.Leave()
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func keys(n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("relay%d.example.com", i))
	}
	return list
}

// TestWorkersShareAndHandOver: one worker has everything, a second gets its share without any key
// being worked on twice, and when either goes the other has everything again. The directory tells
// all along who holds what.
func TestWorkersShareAndHandOver(t *testing.T) {
	t.Parallel()
	s := serve(t, long)
	seen := &board{t: t, on: map[string]string{}}
	all := keys(40)
	stopA := s.start(t, s.connect(t), "a", all, seen.work("a"))
	seen.await("a alone", func(n map[string]int) bool { return n["a"] == 40 })

	s.start(t, s.connect(t), "b", all, seen.work("b"))
	share := seen.awaitRest(all, "a", "b")
	if share["a"] < 10 || share["b"] < 10 {
		t.Errorf("shared out as %v", share)
	}

	d, err := Watch(t.Context(), s.connect(t), "test", quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, k := range all {
		if w, ok := d.Holder(k); !ok || w.Address != w.Name+":1" {
			t.Errorf("holder of %s: %+v, %v", k, w, ok)
		}
	}
	stopA()
	seen.await("b alone", func(n map[string]int) bool { return n["b"] == 40 })
}

// TestChaos: 200 keys, among workers that die, stop, lose the bus for a moment and come at random.
// No key is ever worked on twice, and when it is over each is worked on and no worker has more than
// a quarter over the mean.
func TestChaos(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 2, 4, 8} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			t.Parallel()
			s := serve(t, short)
			seen := &board{t: t, on: map[string]string{}}
			rnd := rand.New(rand.NewPCG(uint64(workers), 2))
			type worker struct {
				bus  *bus.Bus
				stop func()
			}
			var there []worker
			joined := 0
			join := func() {
				joined++
				name := fmt.Sprint("worker-", joined)
				b := s.connect(t)
				there = append(there, worker{b, s.start(t, b, name, keys(200), seen.work(name))})
			}
			for range 15 {
				for len(there) < workers {
					join()
				}
				i := rnd.IntN(len(there))
				switch w := there[i]; rnd.IntN(3) {
				case 0: // killed: it stops, and the bus hears nothing of that
					w.bus.Conn.Close()
					w.stop()
					there = slices.Delete(there, i, i+1)
				case 1:
					w.stop()
					there = slices.Delete(there, i, i+1)
				case 2:
					if err := w.bus.Conn.ForceReconnect(); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
			}
			for len(there) < workers {
				join()
			}
			seen.await("all share", func(share map[string]int) bool {
				sum, highest := 0, 0
				for _, n := range share {
					sum, highest = sum+n, max(highest, n)
				}
				return sum == 200 && len(share) == workers && highest*workers*4 <= 200*5
			})
		})
	}
}

// TestClaimsOnWhatIsGoneGoToo: a worker dies, and some of its keys go away before anybody has
// claimed them. Its claims on those are removed.
func TestClaimsOnWhatIsGoneGoToo(t *testing.T) {
	t.Parallel()
	s := serve(t, short)
	seen := &board{t: t, on: map[string]string{}}
	all := keys(20)
	dying := s.connect(t)
	stop := s.start(t, dying, "dying", all, seen.work("dying"))
	seen.await("one alone", func(n map[string]int) bool { return n["dying"] == 20 })
	dying.Conn.Close()
	stop()
	for _, name := range []string{"heir-1", "heir-2"} {
		s.start(t, s.connect(t), name, all[:5], seen.work(name))
	}
	claims, err := s.connect(t).Bucket(t.Context(), proto.BucketClaims)
	if err != nil {
		t.Fatal(err)
	}
	claimed := func(keys []string) (n int) {
		for _, key := range keys {
			switch _, err := claims.Get(t.Context(), proto.ClaimKey("test", key)); {
			case err == nil:
				n++
			case !errors.Is(err, jetstream.ErrKeyNotFound):
				t.Fatal(err)
			}
		}
		return n
	}
	seen.await("the claims on what is gone are removed", func(map[string]int) bool { return claimed(all[5:]) == 0 })
	seen.await("the heirs have the others", func(n map[string]int) bool { return n["heir-1"]+n["heir-2"] == 5 && claimed(all[:5]) == 5 })
}

// TestLeavingWorkerHoldsNothingUp: a worker that stops gives up each key as soon as its work on
// that has ended. The others have it at once, though the worker is still there and busy with
// another.
func TestLeavingWorkerHoldsNothingUp(t *testing.T) {
	t.Parallel()
	s := serve(t, long)
	seen := &board{t: t, on: map[string]string{}}
	all := keys(40)
	busy, release := all[7], make(chan struct{})
	stopA := s.start(t, s.connect(t), "a", all, func(ctx context.Context, key string) error {
		defer func() {
			if key == busy {
				<-release
			}
		}()
		return seen.work("a")(ctx, key)
	})
	seen.await("a alone", func(n map[string]int) bool { return n["a"] == 40 })
	stopped := make(chan struct{})
	go func() { stopA(); close(stopped) }()
	s.start(t, s.connect(t), "b", all, seen.work("b"))
	seen.await("b has all but one", func(n map[string]int) bool { return n["b"] == 39 })
	close(release)
	<-stopped
	seen.await("b alone", func(n map[string]int) bool { return n["b"] == 40 })
}

// TestStoppingWorkerStaysAlive: a worker whose context has ended, and whose work takes longer to
// end than a silent worker is believed to live, keeps the key until then.
func TestStoppingWorkerStaysAlive(t *testing.T) {
	t.Parallel()
	s := serve(t, 5*time.Second)
	seen := &board{t: t, on: map[string]string{}}
	b, release := s.connect(t), make(chan struct{})
	stop := s.start(t, b, "a", keys(1), func(ctx context.Context, key string) error {
		slow, end := context.WithCancel(context.WithoutCancel(ctx))
		go func() { <-release; end() }()
		return seen.work("a")(slow, key)
	})
	seen.await("a works", func(n map[string]int) bool { return n["a"] == 1 })
	s.start(t, s.connect(t), "b", keys(1), seen.work("b"))
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	workers, err := b.Bucket(t.Context(), proto.BucketWorkers)
	if err != nil {
		t.Fatal(err)
	}
	beats, last := 0, uint64(0)
	seen.await("a's heart beats on for more than a TTL", func(map[string]int) bool {
		entry, err := workers.Get(t.Context(), proto.ClaimKey("test", "a"))
		if err == nil && entry.Revision() != last {
			beats, last = beats+1, entry.Revision()
		}
		return beats > 4
	})
	close(release)
	seen.await("b works", func(n map[string]int) bool { return n["b"] == 1 })
	<-stopped
}

// TestWorkOutlastsARestart: NATS is started again before any lease has ended. No work is
// interrupted, and each key stays where it is.
func TestWorkOutlastsARestart(t *testing.T) {
	t.Parallel()
	s := serve(t, long)
	seen := &board{t: t, on: map[string]string{}}
	all := keys(200) // more than are claimed at once
	var begun atomic.Int64
	for _, name := range []string{"a", "b"} {
		work := seen.work(name)
		s.start(t, s.connect(t), name, all, func(ctx context.Context, key string) error {
			begun.Add(1)
			return work(ctx, key)
		})
	}
	seen.awaitRest(all, "a", "b")
	before, works := seen.owners(), begun.Load()
	s.Stop()
	s.Start()
	d, err := Watch(t.Context(), s.connect(t), "test", quiet)
	if err != nil {
		t.Fatal(err)
	}
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
	s := serve(t, 6*time.Second)
	seen := &board{t: t, on: map[string]string{}}
	all := keys(20)
	cutOff := s.connect(t)
	s.start(t, cutOff, "dying", all, seen.work("dying"))
	seen.await("one alone", func(n map[string]int) bool { return n["dying"] == 20 })
	cutOff.Conn.Close()
	s.Stop()
	s.Start()
	s.start(t, s.connect(t), "heir", all, seen.work("heir"))
	seen.await("the heir has it all", func(n map[string]int) bool { return n["heir"] == 20 })
}
