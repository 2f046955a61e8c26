package known_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr/nip77/negentropy"
	"github.com/nbd-wtf/go-nostr/nip77/negentropy/storage/vector"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
)

// relay is one that has these events, and answers with go-nostr's negentropy.
func relay(events []*nostr.Event) func([]byte) ([]byte, error) {
	v := vector.New()
	for _, ev := range events {
		v.Insert(ev.CreatedAt, ev.ID)
	}
	v.Seal()
	n := negentropy.New(v, 60_000)
	return func(message []byte) ([]byte, error) {
		answer, err := n.Reconcile(hex.EncodeToString(message))
		if err != nil {
			return nil, err
		}
		return hex.DecodeString(answer)
	}
}

// differing runs a session over the bus, as a relay worker does: what is missing here, and how many
// events the relay does not have.
func differing(t *testing.T, b *bus.Bus, session query.Reconciliation, relay func([]byte) ([]byte, error)) (ids []string, alone, count uint64, steps int) {
	t.Helper()
	service := query.Reconciler{Conn: b.Conn}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	message, count, err := service.Begin(ctx, session)
	for ; err == nil && message != nil; steps++ {
		var answer []byte
		if answer, err = relay(message); err != nil {
			break
		}
		var step query.Step
		step, err = service.Continue(ctx, session, answer)
		message = step.Message
		alone += step.Alone
		for _, id := range step.Missing {
			ids = append(ids, hex.EncodeToString(id[:]))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ids)
	return slices.Compact(ids), alone, count, steps
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	b, _ := serve(t)
	var issues, news []*nostr.Event
	for n := range 4500 {
		issues = append(issues, event(1621, n))
	}
	for n := range 200 {
		news = append(news, event(1621, 10_000+20*n))
	}
	states := []*nostr.Event{event(30618, 1), event(30618, 2), event(30618, 3)}     // two are known, one of them is held
	reactions := []*nostr.Event{event(7, 1), event(7, 2), event(7, 3), event(7, 4)} // three are known, two of them were rejected
	for name, c := range map[string]struct {
		filter  nostr.Filter
		relay   []*nostr.Event
		known   uint64
		missing []*nostr.Event
		alone   uint64 // here
	}{
		"nothing new":           {nostr.Filter{Kinds: []int{1621}}, issues, 4500, nil, 0},
		"some news":             {nostr.Filter{Kinds: []int{1621}}, slices.Concat(issues[:4000], news), 4500, news, 500},
		"a relay with nothing":  {nostr.Filter{Kinds: []int{1621}}, nil, 4500, nil, 4500},
		"all is new":            {nostr.Filter{Kinds: []int{42}}, news, 0, news, 0},
		"everything":            {nostr.Filter{}, slices.Concat(issues, news, states, reactions), 4505, slices.Concat(news, states[2:], reactions[3:]), 0},
		"held":                  {nostr.Filter{Kinds: []int{30618}}, states, 2, states[2:], 0},
		"held, by tag":          {nostr.Filter{Kinds: []int{30618}, Tags: nostr.TagMap{"d": {"2", "3"}}}, states[1:], 1, states[2:], 0},
		"rejected":              {nostr.Filter{Kinds: []int{7}}, reactions, 3, reactions[3:], 0},
		"rejected, by tag":      {nostr.Filter{Tags: nostr.TagMap{"d": {"3", "4"}}, Kinds: []int{7}}, reactions[2:], 0, reactions[3:], 0},
		"of other kinds, known": {nostr.Filter{Kinds: []int{1}, Authors: []string{strings.Repeat("b", 64)}}, issues[:50], 0, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ids, alone, count, steps := differing(t, b, query.Reconciliation{Filter: c.filter, Seq: 5001}, relay(c.relay))
			var want []string
			for _, ev := range c.missing {
				want = append(want, ev.ID)
			}
			slices.Sort(want)
			if alone != c.alone {
				t.Errorf("%d are said to be here alone, want %d", alone, c.alone)
			}
			if !slices.Equal(ids, want) || count != c.known || steps > 8 {
				t.Errorf("%d missing, want %d; %d known, want %d; %d steps", len(ids), len(want), count, c.known, steps)
			}
		})
	}
}

func TestReconcileRefusals(t *testing.T) {
	t.Parallel()
	b, _ := serve(t)
	service := query.Reconciler{Conn: b.Conn}
	for _, tc := range []struct {
		message []byte
		says    string
	}{
		{[]byte{0x61, 0xff}, ""}, {[]byte{0x62}, ""}, {nil, "empty"}, {make([]byte, 700<<10), "bytes"}, {make([]byte, 800<<10), "the bus takes"},
	} {
		_, err := service.Continue(t.Context(), query.Reconciliation{}, tc.message)
		if !errors.Is(err, query.ErrRefused) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("a message of %d bytes: %v", len(tc.message), err)
		}
	}
	for _, bad := range []string{"", "[", `{"filter":7}`, `{"message":"%"}`} {
		msg, err := b.Conn.Request(proto.SubjectQueryReconcile, []byte(bad), time.Minute)
		if err != nil || msg.Header.Get("Nats-Service-Error-Code") != proto.QueryBad {
			t.Errorf("%q: %v, %v", bad, msg, err)
		}
	}
}

// TestReconcileWaitsForTheLog: an answer is given on what the asker names, and not before.
func TestReconcileWaitsForTheLog(t *testing.T) {
	t.Parallel()
	b, index := serve(t)
	type begun struct {
		known uint64
		err   error
	}
	answered := make(chan begun, 1)
	session := query.Reconciliation{Filter: nostr.Filter{Kinds: []int{1621}}, Seq: 6000}
	go func() {
		_, n, err := query.Reconciler{Conn: b.Conn}.Begin(t.Context(), session)
		answered <- begun{n, err}
	}()
	// Another question is answered meanwhile, so the first one is with the service too.
	if _, n, err := (query.Reconciler{Conn: b.Conn}).Begin(t.Context(), query.Reconciliation{Filter: session.Filter}); err != nil || n != 4500 {
		t.Fatal(n, err)
	}
	if err := index.Apply(records(6000, event(1621, 20_000))); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; got.err != nil || got.known != 4501 {
		t.Error(got)
	}
}

// TestReconcileAsEventsAreAccepted: what was gathered for a filter is used again, and an event that
// has come since is not missing all the same.
func TestReconcileAsEventsAreAccepted(t *testing.T) {
	t.Parallel()
	b, index := serve(t)
	session := query.Reconciliation{Filter: nostr.Filter{Authors: []string{strings.Repeat("a", 64)}}}
	if _, _, n, _ := differing(t, b, session, relay(nil)); n != 4505 {
		t.Fatalf("%d known", n)
	}
	late := event(1621, 30_000)
	if err := index.Apply(records(6000, late)); err != nil {
		t.Fatal(err)
	}
	other := event(1621, 30_001)
	if ids, _, _, _ := differing(t, b, session, relay([]*nostr.Event{late, other})); fmt.Sprint(ids) != fmt.Sprint([]string{other.ID}) {
		t.Errorf("missing %q", ids)
	}
	session.Seq = 6000
	if _, _, n, _ := differing(t, b, session, relay(nil)); n != 4506 {
		t.Errorf("%d known at the sequence that was named", n)
	}
}
