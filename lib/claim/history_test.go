package claim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

// faulty is a bucket of which answers are lost, and which one worker cannot reach for a while.
type faulty struct {
	jetstream.KeyValue
	losing func() bool // whether the answer to this write is lost
	away   atomic.Pointer[chan struct{}]
}

var errLost = errors.New("the answer is lost")

func (f *faulty) answer(revision uint64, err error) (uint64, error) {
	if err == nil && f.losing() {
		return 0, errLost
	}
	return revision, err
}

// wait stands still while the worker is frozen.
func (f *faulty) wait() {
	if back := f.away.Load(); back != nil {
		<-*back
	}
}

func (f *faulty) Create(ctx context.Context, key string, value []byte, opts ...jetstream.KVCreateOpt) (uint64, error) {
	f.wait()
	return f.answer(f.KeyValue.Create(ctx, key, value, opts...))
}

func (f *faulty) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	f.wait()
	return f.answer(f.KeyValue.Update(ctx, key, value, revision))
}

// freeze lets the worker's writes stand still for a time.
func (f *faulty) freeze(d time.Duration) {
	back := make(chan struct{})
	if f.away.CompareAndSwap(nil, &back) {
		time.AfterFunc(d, func() { f.away.Store(nil); close(back) })
	}
}

// joinFaulty joins with buckets that lose answers.
func joinFaulty(t *testing.T, b *bus.Bus, name string, losing func() bool) (*Member, *faulty) {
	t.Helper()
	workers, err := b.Bucket(t.Context(), proto.BucketWorkers)
	must(t, err)
	claims, err := b.Bucket(t.Context(), proto.BucketClaims)
	must(t, err)
	bucket := &faulty{KeyValue: workers, losing: losing}
	o := Options{Group: "test", Worker: name, Address: name + ":1", Log: quiet}
	m := newMember(b, o, bucket, &faulty{KeyValue: claims, losing: losing})
	for err = m.join(t.Context()); errors.Is(err, errLost); err = m.join(t.Context()) {
	}
	must(t, err)
	return m, bucket
}

// TestALostRecordEndsTheLeaseAtOnce: a hand removes the record of a worker whose next heartbeat is
// a long time off. Its leases end, no other worker begins before its work has ended, and then each
// has its share again.
func TestALostRecordEndsTheLeaseAtOnce(t *testing.T) {
	t.Parallel()
	s, all, ended, release := serve(t, long), some("relay", 8), make(chan string, 100), make(chan struct{})
	s.start(s.connect(), "a", all, func(ctx context.Context, held Held) error {
		slow, end := context.WithCancel(context.WithoutCancel(ctx))
		go func() {
			<-ctx.Done()
			ended <- held.Key
			<-release
			end()
		}()
		return s.work(slow, "a", held)
	})
	s.has("a", 8)
	b := s.connect()
	m, err := Join(t.Context(), b, Options{Group: "test", Worker: "b", Log: quiet})
	must(t, err)
	t.Cleanup(m.Leave)
	must(t, m.workers.Delete(t.Context(), proto.ClaimKey("test", "a")))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	wanted := make(chan []string, 1)
	wanted <- all
	go m.Work(ctx, wanted, func(ctx context.Context, held Held) error { return s.work(ctx, "b", held) })
	for range all {
		select {
		case <-ended:
		case <-time.After(fixture.Patience):
			t.Fatal("the lease goes on without the record")
		}
	}
	close(release)
	s.rests(all, "a", "b")
}

// TestAGapIsNotForgotten: a worker finds that its record is gone, and the answer to the write that
// makes it again is lost. The next heartbeat finds a record, but the lease from before is over.
func TestAGapIsNotForgotten(t *testing.T) {
	t.Parallel()
	s := serve(t, long)
	lost := false
	m, _ := joinFaulty(t, s.connect(), "a", func() bool { was := lost; lost = false; return was })
	t.Cleanup(m.Leave)
	m.directory.mu.Lock()
	m.directory.ownGone = nil // it hears nothing from the bucket
	m.directory.mu.Unlock()
	lease := m.leases.now()
	must(t, m.workers.Delete(t.Context(), m.key()))
	lost = true
	if err := m.beat(); !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	must(t, m.beat())
	if lease.Err() == nil || m.Alive() != nil {
		t.Errorf("the lease before the gap: %v; now: %v", lease.Err(), m.Alive())
	}
}

// TestNeverTwoHolders: workers come, leave, are cut off for good and frozen for a while, records of
// workers and of claims are removed by a hand, connections break and answers are lost, at random.
// No key is ever worked on by two workers, and at the end every key is worked on again. "make
// chaos" plays more and longer histories.
func TestNeverTwoHolders(t *testing.T) {
	t.Parallel()
	histories, steps := uint64(2), 15
	if os.Getenv("TENDRIL_CHAOS") != "" {
		histories, steps = 4, 50
	}
	for seed := range histories {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			neverTwoHolders(t, rand.New(rand.NewPCG(seed, 3)), steps)
		})
	}
}

func neverTwoHolders(t *testing.T, rnd *rand.Rand, steps int) {
	type worker struct {
		name   string
		bus    *bus.Bus
		member *Member
		bucket *faulty
		stop   func()
	}
	s, all, hand := serve(t, short), some("relay", 60), (*bus.Bus)(nil)
	hand = s.connect()
	workers, err := hand.Bucket(t.Context(), proto.BucketWorkers)
	must(t, err)
	claims, err := hand.Bucket(t.Context(), proto.BucketClaims)
	must(t, err)
	var calm atomic.Bool
	losing := func() bool { return !calm.Load() && time.Now().UnixNano()%7 == 0 }
	var there []worker
	joined := 0
	join := func() {
		name := fmt.Sprint("worker-", joined)
		joined++
		b := s.connect()
		m, bucket := joinFaulty(t, b, name, losing)
		ctx, cancel := context.WithCancel(t.Context())
		wanted := make(chan []string, 1)
		wanted <- all
		var working sync.WaitGroup
		working.Go(func() {
			if err := m.Work(ctx, wanted, func(ctx context.Context, held Held) error { return s.work(ctx, name, held) }); err != nil {
				t.Logf("%s: %v", name, err)
			}
		})
		stop := sync.OnceFunc(func() { cancel(); working.Wait(); m.Leave() })
		t.Cleanup(stop)
		there = append(there, worker{name, b, m, bucket, stop})
	}
	for range 3 {
		join()
	}
	remove := func(bucket jetstream.KeyValue, key string) {
		ctx, cancel := context.WithTimeout(t.Context(), casTimeout)
		defer cancel()
		_ = bucket.Delete(ctx, key) // one that is not there is removed as well
	}
	for range steps {
		i := rnd.IntN(len(there))
		w := there[i]
		gone := false
		switch rnd.IntN(8) {
		case 0: // it is cut off, and works on by its lease
			w.bus.Conn.Close()
			gone = true
		case 1:
			go w.stop()
			gone = true
		case 2:
			w.bucket.freeze(time.Duration(rnd.IntN(3000)) * time.Millisecond)
		case 3, 4:
			remove(workers, proto.ClaimKey("test", w.name))
		case 5:
			for range 10 {
				remove(claims, proto.ClaimKey("test", all[rnd.IntN(len(all))]))
			}
		case 6:
			if err := w.bus.Conn.ForceReconnect(); err != nil {
				t.Error(err)
			}
		case 7:
			join()
		}
		if gone {
			there[i] = there[len(there)-1]
			there = there[:len(there)-1]
			join()
		}
		time.Sleep(time.Duration(rnd.IntN(400)) * time.Millisecond) // the length of a history
	}
	calm.Store(true)
	s.await("every key is worked on", func(share map[string]int) bool {
		sum := 0
		for _, n := range share {
			sum += n
		}
		return sum == len(all)
	})
}

// TestNobodyClaimsOverTheMarkOfAHand: a worker claims a key, and a hand removes the claim. Another
// worker that has heard of neither takes the key for free, and does not get it before the holder
// has let it go.
func TestNobodyClaimsOverTheMarkOfAHand(t *testing.T) {
	t.Parallel()
	s := serve(t, long)
	holder, other := s.join("a"), s.join("b")
	claim := func(m *Member) (uint64, error) {
		return m.claim(t.Context(), "key", proto.Claim{Worker: m.o.Worker}, 0)
	}
	_, err := claim(holder)
	must(t, err)
	if _, err = claim(other); !errors.Is(err, errTaken) {
		t.Errorf("a claim over another: %v", err)
	}
	must(t, holder.claims.Delete(t.Context(), proto.ClaimKey("test", "key")))
	if _, err = claim(other); !errors.Is(err, errTaken) {
		t.Errorf("a claim over the mark of a hand: %v", err)
	}
	last, _, err := bus.Last(t.Context(), holder.bus.JS, proto.KVStream(proto.BucketClaims),
		proto.KVSubject(proto.BucketClaims, proto.ClaimKey("test", "key")))
	must(t, err)
	(&work{Member: holder}).letGo("key", last.Seq)
	_, err = claim(other)
	must(t, err)
}

// TestAVanishedClaimIsItsHoldersUntilItSaysOtherwise: a hand removes a claim. However long ago that
// was, the key is not taken while a worker that may be its holder lives and has not said that it
// knows of the removal.
func TestAVanishedClaimIsItsHoldersUntilItSaysOtherwise(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, row := range []struct {
		name    string
		holder  string // as it was read before; empty: it was not
		records map[string]uint64
		signs   map[string]time.Duration // ago
		unended bool
	}{
		{"the holder hears late", "b", map[string]uint64{"b": 6}, nil, true},
		{"the claim of another may have come in between", "b", map[string]uint64{"b": 7, "c": 6}, nil, true},
		{"all have heard", "b", map[string]uint64{"b": 7, "c": 8}, nil, false},
		{"the holder was silent", "b", map[string]uint64{"c": 7}, map[string]time.Duration{"b": time.Hour}, false},
		{"the holder has just been heard", "b", nil, map[string]time.Duration{"b": time.Second}, true},
		{"any other may be the holder", "", map[string]uint64{"b": 7, "c": 6}, nil, true},
		{"none of the others is", "", map[string]uint64{"b": 7, "c": 9}, nil, false},
		{"one that has just gone may be", "", map[string]uint64{"c": 7}, map[string]time.Duration{"b": time.Second}, true},
	} {
		d := &Directory{
			self: "a", ttl: time.Minute, silence: 2 * time.Minute, began: now.Add(-time.Hour), changed: make(chan struct{}, 1),
			workers: map[string]heard{"a": {proto.Worker{Name: "a"}, now}}, signs: map[string]time.Time{}, claims: map[string]claimed{},
		}
		for name, seq := range row.records {
			d.workers[name] = heard{proto.Worker{Name: name, Working: true, Heard: seq}, now}
		}
		for name, ago := range row.signs {
			d.signs[name] = now.Add(-ago)
		}
		if row.holder != "" {
			data := fmt.Appendf(nil, `{"worker":%q}`, row.holder)
			must(t, d.hearClaim("key", bus.Message{Seq: 5, Data: data}))
		}
		removed := bus.Message{Seq: 7, Header: bus.Deletion(markerKept)}
		must(t, d.hearClaim("key", removed))
		if unended, _ := d.mayBeWorkedOn(d.held()["key"]); unended != row.unended {
			t.Errorf("%s: may be worked on: %v", row.name, unended)
		}
		removed.Seq++
		removed.Header.Set(proto.HeaderReleased, "b")
		must(t, d.hearClaim("key", removed))
		if unended, _ := d.mayBeWorkedOn(d.held()["key"]); unended {
			t.Errorf("%s: not free after its holder has let it go", row.name)
		}
	}
}

// TestAWorkerSaysWhatItHasHeardOfClaims: of a claim that has vanished only once it does not work by
// it, not even when the claim is just being written.
func TestAWorkerSaysWhatItHasHeardOfClaims(t *testing.T) {
	t.Parallel()
	m := newMember(serve(t, long).connect(), Options{Group: "test", Worker: "a", Log: quiet}, nil, nil)
	m.directory = &Directory{self: "a", claims: map[string]claimed{}, changed: make(chan struct{}, 1)}
	m.workOn("key", 0) // and the claim is written with revision 5
	for seq := uint64(4); seq < 9; seq++ {
		other := fmt.Appendf(nil, `{"worker":"b"}`)
		message := bus.Message{Seq: seq, Data: other}
		key := "other"
		if seq == 7 {
			key, message = "key", bus.Message{Seq: 7, Header: bus.Deletion(markerKept)}
		}
		must(t, m.directory.hearClaim(key, message))
		if heard, want := m.heardClaims(), min(seq, 6); heard != want {
			t.Errorf("after message %d it has heard up to %d, want %d", seq, heard, want)
		}
	}
	m.workEnded("key")
	if heard := m.heardClaims(); heard != 8 {
		t.Errorf("after its work it has heard up to %d", heard)
	}
}

// TestAWorkerThatHearsLateTakesNothing: the watch of a worker stands still, so it has heard nothing
// of another for long, while that one lives. A hand removes the other's record. Its key is not
// taken.
func TestAWorkerThatHearsLateTakesNothing(t *testing.T) {
	t.Parallel()
	s := serve(t, long)
	late := s.join("late")
	late.directory.Close()
	must(t, <-late.directory.Ended)
	must(t, <-late.directory.Ended)
	holder := s.join("holder")
	must(t, holder.workers.Delete(t.Context(), holder.key()))
	late.directory.mu.Lock()
	late.directory.began = time.Now().Add(-2 * long)
	late.directory.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	claims := map[string]claimed{"key": {Claim: proto.Claim{Worker: "holder"}, revision: 1}}
	w := &work{Member: late}
	if free, _, err := w.free(ctx, []string{"key"}, claims); err == nil {
		t.Errorf("free without an error: %v", free)
	}
}
