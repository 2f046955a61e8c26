package holdings_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/holdings"
)

var epoch = time.Unix(1_700_000_000, 0).UTC()

func heldEvent(identifier string, kind int, content string, until time.Time) proto.Held {
	ev := &nostr.Event{Kind: kind, PubKey: strings.Repeat("a", 64), Content: content, Tags: nostr.Tags{{"d", identifier}}}
	ev.ID = ev.GetID()
	return proto.Held{Event: ev, Identifier: identifier, Phase: proto.PhaseWaiting, Source: proto.SourceUser, HeldAt: epoch, ExpiresAt: until}
}

func keyOf(t testing.TB, h proto.Held) string {
	t.Helper()
	key, err := proto.HeldKeyOf(h.Identifier, h.Event).Key()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func value(t testing.TB, key string, v any) *nats.Msg {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return &nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, key), Data: data}
}

func deletion(key string) *nats.Msg {
	m := &nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, key), Header: nats.Header{}}
	m.Header.Set(proto.KVOperation, proto.KVDelete)
	return m
}

// bucket is a real bucket that holdings follow.
type bucket struct {
	testing.TB
	bus     *bus.Bus
	h       *holdings.Holdings
	mu      sync.Mutex
	changes []string
}

func newBucket(t testing.TB) *bucket {
	b, err := bus.Open(t.Context(), bus.Options{Sizing: proto.DefaultSizing(), Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return &bucket{TB: t, bus: b, h: holdings.New(slog.New(slog.DiscardHandler))}
}

func (b *bucket) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.h.Follow(ctx, b.bus.JS, b.note) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
}

func (b *bucket) note(c holdings.Change) {
	say := func(e *holdings.Entry) string {
		if e == nil {
			return "-"
		}
		return e.Event.Content
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changes = append(b.changes, fmt.Sprintf("%s: %s > %s", c.Identifier, say(c.Before), say(c.Now)))
}

// write commits a batch as ingest does, and waits until it was read.
func (b *bucket) write(msgs ...*nats.Msg) {
	b.Helper()
	last, err := b.bus.PublishBatch(b.Context(), msgs, nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), 3*time.Minute)
	defer cancel()
	if err := b.h.WaitFor(ctx, last); err != nil {
		b.Fatal(err)
	}
}

func (b *bucket) over(at time.Time, max int, which func(holdings.Entry) bool) (contents []string) {
	for _, e := range b.h.Over(at, max, which) {
		contents = append(contents, e.Event.Content)
	}
	return contents
}

func all(holdings.Entry) bool { return true }

// TestFollowsItsBucket: what came before and what comes after, changes, deletions, the writer's
// mark, and what cannot be read.
func TestFollowsItsBucket(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	first, second := heldEvent("a.b/ü", 30617, "announcement", epoch.Add(time.Hour)), heldEvent("a.b/ü", 30618, "state", epoch.Add(2*time.Hour))
	other := heldEvent("y", 1618, "pull", epoch.Add(time.Minute))
	if _, err := b.bus.PublishBatch(t.Context(), []*nats.Msg{value(t, keyOf(t, first), first)}, nil); err != nil {
		t.Fatal(err)
	}
	b.follow()
	b.write(value(t, keyOf(t, second), second), value(t, proto.HeldMarkKey, proto.WriterMark{}), value(t, keyOf(t, other), other))
	if got := b.h.Identifiers(); !slices.Equal(got, []string{"a.b/ü", "y"}) {
		t.Errorf("identifiers %v", got)
	}
	if of := b.h.Of("a.b/ü"); len(of) != 2 || of[0].Event.Content != "announcement" || of[1].Event.Content != "state" {
		t.Errorf("of the identifier: %+v", of)
	}
	if got := b.over(epoch.Add(90*time.Minute), 10, all); !slices.Equal(got, []string{"pull", "announcement"}) {
		t.Errorf("over: %v", got)
	}

	first.ExpiresAt, first.Phase = epoch.Add(24*time.Hour), proto.PhaseSilent
	wrong := heldEvent("elsewhere", 30618, "moved", epoch)
	b.write(value(t, keyOf(t, first), first), value(t, keyOf(t, second), wrong), deletion(keyOf(t, other)), deletion(keyOf(t, other)))
	if e, ok := b.h.Now("a.b/ü", keyOf(t, first)); !ok || e.Phase != proto.PhaseSilent {
		t.Errorf("the announcement now: %+v, %t", e, ok)
	}
	if _, ok := b.h.Now("y", keyOf(t, other)); ok || b.h.Count(1618) != 0 || b.h.Count(30617) != 1 {
		t.Error("what was deleted is still there")
	}
	if _, ok := b.h.Now("a.b/ü", keyOf(t, second)); ok || b.h.Count(30618) != 0 || len(b.h.Of("elsewhere")) != 0 {
		t.Error("a value at a key that is not its own counts")
	}
	if got := b.over(epoch.Add(90*time.Minute), 10, all); len(got) != 0 {
		t.Errorf("over: %v", got)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	want := []string{"a.b/ü: - > announcement", "a.b/ü: - > state", "y: - > pull", "a.b/ü: announcement > announcement", "a.b/ü: state > -", "y: pull > -"}
	if !slices.Equal(b.changes, want) {
		t.Errorf("told of %q, want %q", b.changes, want)
	}
}

// TestOverTheLongestFirst, whatever order they came and changed in.
func TestOverTheLongestFirst(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	b.follow()
	var msgs []*nats.Msg
	for i := range 100 {
		minutes := (i * 37) % 100
		h := heldEvent(fmt.Sprint("id", minutes%2), 30618, fmt.Sprint(minutes), epoch.Add(time.Duration(minutes)*time.Minute))
		msgs = append(msgs, value(t, keyOf(t, h), h))
	}
	b.write(msgs...)
	gone := heldEvent("id0", 30618, "2", epoch)
	later := heldEvent("id0", 30618, "4", epoch.Add(100*time.Minute))
	b.write(deletion(keyOf(t, gone)), value(t, keyOf(t, later), later))
	now := epoch.Add(9 * time.Minute)
	if got := b.over(now, 10, all); !slices.Equal(got, []string{"0", "1", "3", "5", "6", "7", "8"}) {
		t.Errorf("over: %v", got)
	}
	even := func(e holdings.Entry) bool { return e.Identifier == "id0" }
	if got := b.over(now, 2, even); !slices.Equal(got, []string{"0", "6"}) {
		t.Errorf("over, of one shard and at most two: %v", got)
	}
}

func TestWaitForEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := holdings.New(slog.New(slog.DiscardHandler)).WaitFor(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for what never comes: %v", err)
	}
}

// BenchmarkOver is one look at the clocks of 10,000 held identifiers of which none is over.
func BenchmarkOver(b *testing.B) {
	bk := newBucket(b)
	bk.follow()
	for i := range 10 {
		var msgs []*nats.Msg
		for j := range 1000 {
			h := heldEvent(fmt.Sprint("id", i*1000+j), 30618, "", epoch.Add(time.Duration(j)*time.Minute))
			msgs = append(msgs, value(b, keyOf(b, h), h))
		}
		bk.write(msgs...)
	}
	for b.Loop() {
		if over := bk.h.Over(epoch, 200, all); len(over) > 0 {
			b.Fatal("some are over")
		}
	}
}
