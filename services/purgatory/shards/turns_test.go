package shards_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/shards"
)

// queue is writers of one identifier, each of which takes a second.
type queue struct {
	*testing.T
	held  *shards.Held
	names []string // in the order of their turns
}

func newQueue(t *testing.T) *queue {
	q := &queue{T: t, held: shards.New()}
	q.held.Open(proto.ShardOf("x"), t.Context())
	return q
}

// come lets a writer come, after all who came before.
func (q *queue) come(ctx context.Context, name, client string, rank shards.Rank) (err *error) {
	err = new(error)
	go func() {
		var unlock func()
		if unlock, *err = q.held.WriteFor(ctx, "x", client, func() shards.Rank { return rank }); *err != nil {
			return
		}
		q.names = append(q.names, name)
		time.Sleep(time.Second)
		unlock()
	}()
	synctest.Wait()
	return err
}

// TestTurns: an owner, and the worker itself, wait for a few strangers, however many came before.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		ctx := t.Context()
		q.come(ctx, "first", "s", shards.Unknown)
		for n := range 20 {
			q.come(ctx, "stranger", fmt.Sprint("s", n), shards.Unknown)
		}
		for n := range 20 {
			q.come(ctx, "offered", fmt.Sprint("o", n), shards.Offered)
		}
		q.come(ctx, "owner", "owner", shards.Own)
		q.come(ctx, "newcomer", "newcomer", shards.Newcomer)
		q.come(ctx, "worker", "", shards.Own)
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{"first", "owner", "newcomer", "offered", "stranger", "worker", "offered", "stranger"}; !slices.Equal(q.names[:8], want) {
			t.Errorf("the turns were %q, want %q", q.names[:8], want)
		}
		if len(q.names) != 44 {
			t.Errorf("%d turns", len(q.names))
		}
	})
}

// TestTurnsOfClients: of one kind whoever had no turn for longest is next, and newcomers do not
// push themselves before those who wait.
func TestTurnsOfClients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		ctx := t.Context()
		q.come(ctx, "a1", "a", shards.Own)
		for n := range 4 {
			q.come(ctx, fmt.Sprint("a", n+2), "a", shards.Own)
		}
		q.come(ctx, "b1", "b", shards.Own)
		q.come(ctx, "b2", "b", shards.Own)
		time.Sleep(2500 * time.Millisecond) // a1, then a2, which came first; b1 has the turn now
		q.come(ctx, "c1", "c", shards.Own)
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{"a1", "a2", "b1", "a3", "b2", "c1", "a4", "a5"}; !slices.Equal(q.names, want) {
			t.Errorf("the turns were %q, want %q", q.names, want)
		}
	})
}

// TestCrowdAtOneIdentifier: only so many wait. Who has most gives way, and the worker itself always
// may wait.
func TestCrowdAtOneIdentifier(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		ctx, cancel := context.WithCancel(t.Context())
		var flood []*error
		for range 70 {
			flood = append(flood, q.come(ctx, "a", "a", shards.Unknown))
		}
		crowded := func() (n int) {
			for _, err := range flood {
				if errors.Is(*err, shards.ErrCrowded) {
					n++
				}
			}
			return n
		}
		if n := crowded(); n != 5 {
			t.Errorf("%d of 70 may not wait, want 5: one writes and 64 wait", n)
		}
		other := q.come(ctx, "b", "b", shards.Unknown)
		if *other != nil || crowded() != 6 {
			t.Errorf("another client: %v, and %d of the crowd may not wait, want one more", *other, crowded())
		}
		if own := q.come(ctx, "worker", "", shards.Unknown); *own != nil {
			t.Errorf("the worker: %v", *own)
		}
		cancel()
		synctest.Wait()
		if !errors.Is(*other, context.Canceled) {
			t.Errorf("who gives up: %v", *other)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if last := q.come(t.Context(), "last", "c", shards.Unknown); *last != nil {
			t.Errorf("who comes when all have gone: %v", *last)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if q.names[len(q.names)-1] != "last" {
			t.Errorf("the turns were %q", q.names)
		}
	})
}
