package writer

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// message is a candidate that was never on a stream.
type message struct {
	jetstream.Msg
	subject string
	header  nats.Header
	data    []byte
}

func (m *message) Subject() string      { return m.subject }
func (m *message) Headers() nats.Header { return m.header }
func (m *message) Data() []byte         { return m.data }
func (m *message) Ack() error           { return nil }
func (m *message) Nak() error           { return nil }
func (m *message) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Timestamp: time.Now()}, nil
}

// paced is a policy that says of each batch how large it may be.
type paced struct {
	Policy
	w    *Writer
	next func() int
}

func (p *paced) Decide(k policy.Knowledge, c *policy.Candidate) policy.Decision {
	p.w.batchSize = p.next()
	return p.Policy.Decide(k, c)
}

// decideAll decides the candidates in order, in batches of sizes that next gives, and returns all
// that they come to, times left out.
func decideAll(t *testing.T, bounds policy.Bounds, candidates []message, next func() int) (outcome []string) {
	t.Helper()
	b := openBus(t)
	rules, err := policy.New(testSettings(), noBans(t), bounds, time.Now)
	must(t, err)
	r := standby(t, b, "batching", testSettings(), func(w *Writer) { w.policy = &paced{rules, w, next} })
	w := &term{Writer: r.Writer, scheduler: newScheduler(newLanes(), &r.rechecks)}
	w.purgedAt = time.Now().Add(time.Hour) // what must leave the log leaves it by the clock, not by batches
	must(t, w.begin(r.ctx))
	w.scheduler.fetched[laneUser] = make(chan *pack, len(candidates)+1)
	say := func(what string, about ...any) { outcome = append(outcome, what+" "+fmt.Sprintln(about...)) }
	begun, s := r.Index.Seq(), newSender(t, b)
	last := message{subject: proto.LaneUser.Subject(), data: encode(t, manyGrasps(99, 1)[0])}
	for i, m := range append(slices.Clone(candidates), last) {
		m.header = maps.Clone(m.header)
		if m.header == nil {
			m.header = nats.Header{}
		}
		m.header.Set(proto.HeaderReply, s.sub.Subject)
		w.scheduler.put(r.ctx, laneUser, readPack(&m))
		if i == len(candidates)-1 { // what heals comes before the last one
			r.running.Go(func() { _ = w.run(r.ctx) })
			s.wait(len(candidates))
		}
	}
	for _, v := range s.wait(len(candidates) + 1)[:len(candidates)] {
		say("verdict", v.ID[:8], v.Outcome, v.Message)
	}
	for _, id := range logIDs(t, b) {
		say("log", id)
	}
	say("appended", r.Index.Seq()-begun)
	for _, e := range r.Held.All() {
		say("held", e.Key, e.Phase, e.Source)
	}
	var rejected []string
	for _, m := range readStream(t, b, proto.StreamRejected) {
		if len(m.Data) > 0 { // what was rejected and taken back within one batch is not told at all
			rejected = append(rejected, m.Subject)
		}
	}
	slices.Sort(rejected)
	for _, subject := range rejected {
		say("rejected", subject)
	}
	return outcome
}

// story makes a random sequence of candidates by few authors about few repositories, so that
// everything meets everything.
func story(rng *rand.Rand, length int) (candidates []message) {
	authors := []person{newPerson(1), newPerson(2), newPerson(3)}
	pick := func() person { return authors[rng.IntN(len(authors))] }
	identifier := func() string { return []string{"tree", "bush"}[rng.IntN(2)] }
	repo := func() nostr.Tag { return pick().repo(identifier()) }
	commit := nostr.Tag{"c", strings.Repeat("b", 40)}
	events := []*nostr.Event{pick().announcement(identifier(), 1)}
	some := func() *nostr.Event { return events[rng.IntN(len(events))] }
	kinds := []func(by person, at int64) *nostr.Event{
		func(by person, at int64) *nostr.Event { return by.announcement(identifier(), at, pick()) },
		func(by person, at int64) *nostr.Event { return by.elsewhere(identifier(), at, pick()) },
		func(by person, at int64) *nostr.Event { return by.state(identifier(), at) },
		func(by person, at int64) *nostr.Event { return by.event(1621, at, "", repo()) },
		func(by person, at int64) *nostr.Event { return by.event(1111, at, "", nostr.Tag{"E", some().ID}) },
		func(by person, at int64) *nostr.Event {
			return by.event(1, at, "", nostr.Tag{"q", some().ID}, nostr.Tag{"q", "0:" + string(pick()) + ":"})
		},
		func(by person, at int64) *nostr.Event { return by.event(1618, at, "", commit, repo()) },
		func(by person, at int64) *nostr.Event {
			return by.event(1619, at, "", commit, nostr.Tag{"E", some().ID})
		},
		func(by person, at int64) *nostr.Event { return by.event(5, at, "", by.repo(identifier())) },
		func(_ person, at int64) *nostr.Event {
			other := some()
			return person(other.PubKey).event(5, at, "", nostr.Tag{"e", other.ID})
		},
		func(by person, at int64) *nostr.Event { return by.event(10317, at, "") },
		func(by person, at int64) *nostr.Event { return by.event(0, at, "") },
	}
	for len(events) < length/2 {
		events = append(events, kinds[rng.IntN(len(kinds))](pick(), 1000+rng.Int64N(50)))
	}
	actions := []proto.Action{proto.ActionRelease, proto.ActionRelease, proto.ActionRelease, proto.ActionExpire, proto.ActionExtend, proto.ActionRemove}
	for len(candidates) < length {
		m := message{subject: proto.LaneUser.Subject()}
		switch rng.IntN(5) {
		case 0:
			m.subject, m.header = proto.LaneSyncLive.Subject(), header(proto.HeaderSource, string(proto.SourceLive))
		case 1, 2:
			m.subject = proto.LaneRelease.Subject()
			m.header = header(proto.HeaderAction, string(actions[rng.IntN(len(actions))]), proto.HeaderReason, "test")
		}
		m.data, _ = some().MarshalJSON()
		candidates = append(candidates, m)
	}
	return candidates
}

// Where batches end decides nothing: random batches come to the same log, held events, rejections
// and verdicts as batches of one.
func TestBatchesDecideAsOneByOne(t *testing.T) {
	t.Parallel()
	seeds := []uint64{1, 2, 3, 4, 5, 6}
	if testing.Short() {
		seeds = seeds[:2]
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 11))
			candidates, bounds := story(rng, 300), policy.Bounds{}
			if seed%2 == 0 { // and little room, so that much has to make room
				bounds = policy.Bounds{Bytes: 8000, Reserved: 4000, Author: policy.Load{Events: 3}}
			}
			single := decideAll(t, bounds, candidates, func() int { return 1 })
			batched := decideAll(t, bounds, candidates, func() int { return 1 + rng.IntN(60) })
			counts := map[string]int{}
			for i, one := range single {
				what, _, _ := strings.Cut(one, " ")
				if counts[what]++; i < len(batched) && batched[i] != one {
					t.Fatalf("line %d of %d and %d differs: %q and %q", i, len(single), len(batched), one, batched[i])
				}
			}
			if len(batched) != len(single) || counts["log"] < 5 || counts["held"] == 0 || counts["rejected"] == 0 {
				t.Errorf("%d and %d lines; or a dull story: %v", len(single), len(batched), counts)
			}
		})
	}
}
