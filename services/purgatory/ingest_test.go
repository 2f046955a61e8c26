package purgatory_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// ingest plays the writer of the log: services do not import each other. It knows no policy, only
// what purgatory asks of it.
type ingest struct {
	testing.TB
	bus *bus.Bus

	mu       sync.Mutex
	held     map[string]proto.Held // by key
	accepted map[string]int        // how often an event was appended to the log, by id
	asked    map[string]int        // "<action> <content>"
	refuse   map[string]bool       // ids whose release is refused
	then     func()                // is called when thenOf was asked for thenAt times
	thenOf   string
	thenAt   int
	pause    chan struct{} // candidates wait until it is closed
}

func playIngest(t testing.TB, b *bus.Bus) *ingest {
	t.Helper()
	in := &ingest{
		TB: t, bus: b, held: map[string]proto.Held{}, accepted: map[string]int{}, asked: map[string]int{}, refuse: map[string]bool{},
	}
	consumer, err := b.JS.Consumer(t.Context(), proto.StreamRelease, proto.ConsumerRelease)
	if err != nil {
		t.Fatal(err)
	}
	consume, err := consumer.Consume(in.decide)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		consume.Stop()
		<-consume.Closed()
	})
	return in
}

func (in *ingest) ok(err error) {
	if err != nil {
		in.Error(err)
	}
}

func (in *ingest) decide(m jetstream.Msg) {
	in.mu.Lock()
	pause := in.pause
	in.mu.Unlock()
	if pause != nil {
		<-pause
	}
	lines, err := proto.SplitPack(m.Data())
	in.ok(err)
	var verdicts []proto.Verdict
	for _, line := range lines {
		ev := &nostr.Event{}
		in.ok(json.Unmarshal(line, ev))
		v := in.verdict(ev, proto.Action(m.Headers().Get(proto.HeaderAction)), m.Headers().Get(proto.HeaderReason))
		v.ID, v.Kind = ev.ID, ev.Kind
		verdicts = append(verdicts, v)
	}
	data, err := json.Marshal(proto.Verdicts{Ref: m.Headers().Get(proto.HeaderRef), Verdicts: verdicts})
	in.ok(err)
	in.ok(in.bus.Conn.Publish(m.Headers().Get(proto.HeaderReply), data))
	in.ok(m.Ack())
}

func (in *ingest) verdict(ev *nostr.Event, action proto.Action, reason string) proto.Verdict {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.asked[string(action)+" "+ev.Content]++
	if in.then != nil && in.asked[in.thenOf] == in.thenAt {
		then := in.then
		in.then = nil
		defer then()
	}
	key, entry, holds := in.find(ev.ID)
	switch {
	case action == proto.ActionRemove && in.refuse[ev.ID]:
		return proto.Verdict{Outcome: proto.Rejected, Message: "invalid: refused"}
	case action == proto.ActionRemove:
		in.accepted[ev.ID] = 0
		m := &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Header: nats.Header{}}
		m.Header.Set(proto.HeaderRemoved, ev.ID)
		return proto.Verdict{Outcome: proto.Done, Seq: in.commit(m)}
	case action == proto.ActionRelease && in.accepted[ev.ID] > 0:
		return proto.Verdict{Outcome: proto.Duplicate}
	case action == proto.ActionRelease && (!holds || in.refuse[ev.ID]):
		in.drop(key)
		return proto.Verdict{Outcome: proto.Rejected, Message: "invalid: refused"}
	case action == proto.ActionRelease:
		seq := in.append(ev)
		in.drop(key)
		return proto.Verdict{Outcome: proto.Accepted, Seq: seq}
	case !holds:
	case action == proto.ActionExtend:
		entry.ExpiresAt = time.Now().Add(time.Hour)
		in.put(key, entry)
	case reason == "" && time.Now().Before(entry.ExpiresAt):
	case ev.Kind == nostr.KindAnnouncement && entry.Phase == proto.PhaseWaiting:
		entry.Phase, entry.ExpiresAt = proto.PhaseSilent, time.Now().Add(time.Hour)
		in.put(key, entry)
	default:
		in.drop(key)
	}
	return proto.Verdict{Outcome: proto.Done}
}

func (in *ingest) find(id string) (string, proto.Held, bool) {
	for key, h := range in.held {
		if h.Event.ID == id {
			return key, h, true
		}
	}
	return "", proto.Held{}, false
}

func (in *ingest) commit(m *nats.Msg) uint64 {
	last, err := in.bus.PublishBatch(context.Background(), []*nats.Msg{m}, nil)
	in.ok(err)
	return last
}

func (in *ingest) append(ev *nostr.Event) uint64 {
	raw, err := ev.MarshalJSON()
	in.ok(err)
	in.accepted[ev.ID]++
	return in.commit(&nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: raw})
}

func (in *ingest) put(key string, h proto.Held) {
	data, err := json.Marshal(h)
	in.ok(err)
	in.held[key] = h
	in.commit(&nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, key), Data: data})
}

func (in *ingest) drop(key string) {
	if _, holds := in.held[key]; !holds {
		return
	}
	delete(in.held, key)
	m := &nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, key), Header: nats.Header{}}
	m.Header.Set(proto.KVOperation, proto.KVDelete)
	in.commit(m)
}

// waits writes events into purgatory for an hour.
func (in *ingest) waits(identifier string, source proto.Source, events ...*nostr.Event) {
	in.Helper()
	for _, ev := range events {
		in.holds(identifier, ev, source, time.Hour)
	}
}

// holds writes an event into purgatory, for how long the test says.
func (in *ingest) holds(identifier string, ev *nostr.Event, source proto.Source, wait time.Duration) {
	in.Helper()
	key, err := proto.HeldKeyOf(identifier, ev).Key()
	if err != nil {
		in.Fatal(err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.put(key, proto.Held{Event: ev, Identifier: identifier, Source: source, Phase: proto.PhaseWaiting, HeldAt: time.Now(), ExpiresAt: time.Now().Add(wait)})
}

// accept appends an event to the log as if it had been released.
func (in *ingest) accept(ev *nostr.Event) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.append(ev)
}

// set changes how it decides from now on.
func (in *ingest) set(change func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	change()
}

// after has something done when a question was asked so many times.
func (in *ingest) after(question string, times int, then func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.then, in.thenOf, in.thenAt = then, question, times
}

func (in *ingest) times(id string) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.accepted[id]
}

func (in *ingest) requests() map[string]int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return maps.Clone(in.asked)
}

// notices is what is told on grasp.git.
type notices struct {
	testing.TB
	mu   sync.Mutex
	told []string
}

func listen(t testing.TB, b *bus.Bus) *notices {
	t.Helper()
	n := &notices{TB: t}
	sub, err := b.Conn.Subscribe("grasp.git.>", func(m *nats.Msg) {
		parts := strings.Split(m.Subject, ".")
		identifier, err := proto.DecodeIdentifier(parts[2])
		verb := parts[3]
		var notice proto.GitNotice
		if err := json.Unmarshal(m.Data, &notice); err != nil {
			n.Error(err)
		}
		if err != nil || notice.Identifier != identifier {
			n.Errorf("a notice on %q about %q: %v", m.Subject, notice.Identifier, err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.told = append(n.told, fmt.Sprintf("%s %s %d %s", identifier, verb, notice.Kind, notice.Reason))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	return n
}

// await waits until something that begins so was told.
func (n *notices) await(prefix string) {
	n.Helper()
	eventually(n, "told of "+prefix, func() bool { return n.count(prefix) > 0 })
}

func (n *notices) count(prefix string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(n.told), func(s string) bool { return !strings.HasPrefix(s, prefix) }))
}

// eventually waits until what holds, or fails the test.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
