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
	ended   string
}

func (m *message) Subject() string      { return m.subject }
func (m *message) Headers() nats.Header { return m.header }
func (m *message) Data() []byte         { return m.data }
func (m *message) Ack() error           { m.ended = "ack"; return nil }
func (m *message) Nak() error           { m.ended = "nak"; return nil }
func (m *message) TermWithReason(string) error {
	m.ended = "term"
	return nil
}
func (m *message) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Timestamp: time.Now()}, nil
}

// outcome is all that a sequence of candidates comes to, times left out.
type outcome struct {
	log      []string // ids in order, replaced ones gone
	appended uint64   // how many were ever appended
	held     []string
	rejected []string
	verdicts []string
}

// paced is a policy that says of each batch how large it may be.
type paced struct {
	Policy
	w    *Writer
	next func() int
}

func (p *paced) Decide(k policy.Knowledge, c *policy.Candidate) policy.Decision {
	p.w.Settings.BatchSize = p.next()
	return p.Policy.Decide(k, c)
}

// decideAll decides the candidates in order, in batches of sizes that next gives.
func decideAll(t *testing.T, bounds policy.Bounds, candidates []message, next func() int) outcome {
	t.Helper()
	b := openBus(t)
	rules, err := policy.New(testSettings(), noBans(t), bounds, time.Now)
	must(t, err)
	r := standby(t, b, "batching", func(w *Writer) { w.policy = &paced{rules, w, next} })
	w := &term{Writer: r.Writer, lanes: newLanes()}
	must(t, w.begin(r.ctx))
	w.lanes.fetched[laneUser] = make(chan *pack, len(candidates)+1)
	begun := r.Index.Seq()
	s := newSender(t, b)
	last := message{subject: proto.LaneUser.Subject(), data: encode(t, manyGrasps(99, 1)[0])}
	for i, m := range append(slices.Clone(candidates), last) {
		header := nats.Header{proto.HeaderReply: {s.sub.Subject}}
		maps.Copy(header, m.header)
		m.header = header
		w.lanes.put(r.ctx, laneUser, readPack(&m))
		if i == len(candidates)-1 { // what heals comes before the last one
			r.running.Go(func() { _ = w.run(r.ctx) })
			s.wait(len(candidates))
		}
	}
	s.wait(len(candidates) + 1)
	o := outcome{log: logIDs(t, b), appended: r.Index.Seq() - begun}
	for _, e := range r.Held.All() {
		o.held = append(o.held, fmt.Sprintf("%s %s %s", e.Key, e.Phase, e.Source))
	}
	for _, m := range readStream(t, b, proto.StreamRejected) {
		if len(m.Data) > 0 { // what was rejected and taken back within one batch is not told at all
			o.rejected = append(o.rejected, m.Subject)
		}
	}
	slices.Sort(o.rejected)
	for _, v := range s.wait(len(candidates)) {
		o.verdicts = append(o.verdicts, fmt.Sprintf("%s %s %s", v.ID[:8], v.Outcome, v.Message))
	}
	return o
}

var kindsOfStory = []string{"announce", "elsewhere", "state", "issue", "comment", "quote", "pr", "update", "delete", "grasps", "profile"}

// story makes a random sequence of candidates by few authors about few repositories, so that
// everything meets everything.
func story(rng *rand.Rand, length int) []message {
	authors, identifiers := []person{newPerson(1), newPerson(2), newPerson(3)}, []string{"tree", "bush"}
	pick := func() person { return authors[rng.IntN(len(authors))] }
	identifier := func() string { return identifiers[rng.IntN(len(identifiers))] }
	repo := func() string { return "30617:" + string(pick()) + ":" + identifier() }
	commit := nostr.Tag{"c", strings.Repeat("b", 40)}
	events := []*nostr.Event{pick().announcement(identifier(), 1)}
	some := func() *nostr.Event { return events[rng.IntN(len(events))] }
	for len(events) < length/2 {
		by, at := pick(), 1000+rng.Int64N(50)
		var ev *nostr.Event
		switch kindsOfStory[rng.IntN(len(kindsOfStory))] {
		case "announce":
			ev = by.announcement(identifier(), at, pick())
		case "elsewhere":
			ev = by.event(30617, at, "", nostr.Tag{"d", identifier()}, nostr.Tag{"maintainers", string(pick())})
		case "state":
			ev = by.state(identifier(), at)
		case "issue":
			ev = by.event(1621, at, "", nostr.Tag{"a", repo()})
		case "comment":
			ev = by.event(1111, at, "", nostr.Tag{"E", some().ID})
		case "quote":
			ev = by.event(1, at, "", nostr.Tag{"q", some().ID}, nostr.Tag{"q", "0:" + string(pick()) + ":"})
		case "pr":
			ev = by.event(1618, at, "", commit, nostr.Tag{"a", repo()})
		case "update":
			ev = by.event(1619, at, "", commit, nostr.Tag{"E", some().ID})
		case "delete":
			other := some()
			ev = person(other.PubKey).event(5, at, "", nostr.Tag{"e", other.ID})
			if rng.IntN(3) == 0 {
				ev = by.event(5, at, "", nostr.Tag{"a", "30617:" + string(by) + ":" + identifier()})
			}
		case "grasps":
			ev = by.event(10317, at, "")
		case "profile":
			ev = by.event(0, at, "")
		}
		events = append(events, ev)
	}
	var candidates []message
	for len(candidates) < length {
		ev := some()
		m := message{subject: proto.LaneUser.Subject(), header: nats.Header{}}
		switch rng.IntN(5) {
		case 0:
			m.subject = proto.LaneSyncLive.Subject()
			m.header.Set(proto.HeaderSource, string(proto.SourceLive))
		case 1, 2:
			m.subject = proto.LaneRelease.Subject()
			actions := []proto.Action{proto.ActionRelease, proto.ActionRelease, proto.ActionRelease, proto.ActionExpire, proto.ActionExtend, proto.ActionRemove}
			m.header.Set(proto.HeaderAction, string(actions[rng.IntN(len(actions))]))
			m.header.Set(proto.HeaderReason, "test")
		}
		m.data, _ = ev.MarshalJSON()
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
			rng := rand.New(rand.NewPCG(seed, 7))
			candidates := story(rng, 300)
			bounds := policy.Bounds{}
			if seed%2 == 0 { // and little room, so that much has to make room
				bounds = policy.Bounds{Bytes: 8000, Reserved: 4000, Author: policy.Load{Events: 3}}
			}
			single := decideAll(t, bounds, candidates, func() int { return 1 })
			batched := decideAll(t, bounds, candidates, func() int { return 1 + rng.IntN(60) })
			if len(single.log) < 5 || len(single.held) == 0 || len(single.rejected) == 0 {
				t.Fatalf("a dull story: %d logged, %d held, %d rejected", len(single.log), len(single.held), len(single.rejected))
			}
			for _, part := range []struct {
				what      string
				one, many []string
			}{
				{"log", single.log, batched.log}, {"held", single.held, batched.held},
				{"rejected", single.rejected, batched.rejected}, {"verdicts", single.verdicts, batched.verdicts},
			} {
				if i := firstDifference(part.one, part.many); i >= 0 {
					t.Errorf("%s differs at %d of %d and %d: %q and %q", part.what, i, len(part.one), len(part.many), at(part.one, i), at(part.many, i))
				}
			}
			if single.appended != batched.appended {
				t.Errorf("%d and %d appended", single.appended, batched.appended)
			}
		})
	}
}

func firstDifference(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if at(a, i) != at(b, i) {
			return i
		}
	}
	return -1
}

func at(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return ""
}
