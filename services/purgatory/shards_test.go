package purgatory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
)

func at(owner string) repository.Place { return placeOf(owner, "x") }

// TestOneWriterAndHandOver: writers of one repository come one after the other, those of others do
// not wait, and a shard is let go only when nothing is written any more.
func TestOneWriterAndHandOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newShards()
		if _, err := h.Write(t.Context(), at("a")); !errors.Is(err, githttp.ErrElsewhere) {
			t.Fatalf("writing in a shard that is not held: %v", err)
		}
		for n := range proto.Shards {
			h.Open(n, t.Context())
		}
		var writers, most atomic.Int32
		for range 5 {
			go func() {
				unlock, err := h.Write(t.Context(), at("a"))
				if err != nil {
					t.Error(err)
					return
				}
				most.Store(max(most.Load(), writers.Add(1)))
				time.Sleep(time.Second)
				writers.Add(-1)
				unlock()
			}()
		}
		synctest.Wait()
		unlock, others := h.TryWrite(at("b"))
		if _, same := h.TryWrite(at("a")); same || !others {
			t.Fatalf("free while one writes: the same repository %t, another %t", same, others)
		}
		unlock()
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := h.Write(impatient, at("a")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a writer that gives up: %v", err)
		}
		began := time.Now()
		go func() {
			time.Sleep(time.Second)
			if _, err := h.Write(t.Context(), at("a")); !errors.Is(err, githttp.ErrElsewhere) {
				t.Errorf("writing in a shard that is being let go: %v", err)
			}
			if !h.Holds("x") {
				t.Error("nothing can be read while writers finish")
			}
		}()
		h.Close(proto.ShardOf("x"))
		if took := time.Since(began); took < 4*time.Second || writers.Load() != 0 {
			t.Errorf("let go after %v with %d writers", took, writers.Load())
		}
		if most.Load() != 1 || h.Holds("x") || h.Count() != proto.Shards-1 {
			t.Errorf("%d writers at once, still held: %t", most.Load(), h.Holds("x"))
		}
	})
}

// TestLease: what is written ends with the lease, or when the shard is another's; what may be begun
// again elsewhere ends as soon as the shard is to be let go.
func TestLease(t *testing.T) {
	t.Parallel()
	h := newShards()
	if h.Lease("x").Err() == nil {
		t.Error("a shard that is not held may be written")
	}
	lease, end := context.WithCancel(t.Context())
	h.Open(proto.ShardOf("x"), lease)
	during, done, err := h.During(t.Context(), "x")
	if err != nil || h.Lease("x").Err() != nil || during.Err() != nil {
		t.Fatalf("a shard that is held: %v", err)
	}
	unlock, err := h.Write(t.Context(), at("a"))
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() { h.Close(proto.ShardOf("x")); close(closed) }()
	<-during.Done()
	done()
	if h.Lease("x").Err() != nil {
		t.Error("a write that is under way is cut off though the lease lasts")
	}
	end()
	if h.Lease("x").Err() == nil {
		t.Error("a write goes on though the lease has ended")
	}
	unlock()
	<-closed
	if h.Lease("x").Err() == nil {
		t.Error("a shard that was let go may be written")
	}
}

// TestPushesAreFair: an owner, and the worker itself, wait for one stranger and one push of each
// other client at most, however many came before; and a stranger comes in between too.
func TestPushesAreFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newShards()
		h.Open(proto.ShardOf("x"), t.Context())
		var order []string
		come := func(name string, take func() (unlock func(), err error)) {
			go func() {
				unlock, err := take()
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, name)
				time.Sleep(time.Second)
				unlock()
			}()
			synctest.Wait()
		}
		push := func(name, client string, stranger bool) {
			come(name, func() (func(), error) {
				return h.WriteFor(t.Context(), client, func() bool { return stranger }, at("a"))
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
		come("worker", func() (func(), error) { return h.Write(t.Context(), at("a")) })
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []string{"stranger", "stranger", "maintainer", "owner", "worker", "maintainer", "stranger", "maintainer"}
		if len(order) != 45 || !slices.Equal(order[:8], want) {
			t.Errorf("%d came, first %q, want %q", len(order), order[:8], want)
		}
	})
}
