package writer

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const domain = "git.example.com"

const (
	// patience is how long a test waits for what should happen soon.
	patience = 3 * time.Minute
	// long is a time that no test lives to see the end of.
	long = time.Hour
)

func testSettings() config.Settings {
	var s config.Settings
	s.Domain = domain
	s.HoldDuration, s.SilentDuration = 30*time.Minute, 24*time.Hour
	s.MaxFutureSeconds = 900
	s.RejectedHotSeconds, s.RejectedHotEvents, s.RejectedColdSeconds = 120, 20_000, 7*24*60*60
	s.DatabaseBackend = "memory"
	return s
}

// testBans are none.
func testBans() *bans.Set {
	none, err := bans.New(config.Policy{}, slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	return none
}

// openBus opens a bus that takes neither the claim nor a candidate from a writer that is slow.
func openBus(t testing.TB, dir string) *bus.Bus {
	t.Helper()
	return openBusWith(t, dir, long, long)
}

// openImpatientBus opens a bus that gives to another what a silent writer has in its hands.
func openImpatientBus(t testing.TB, dir string) *bus.Bus {
	t.Helper()
	return openBusWith(t, dir, 2*time.Second, 3*time.Second)
}

func openBusWith(t testing.TB, dir string, workerTTL, claimWait time.Duration) *bus.Bus {
	t.Helper()
	sizing := proto.DefaultSizing()
	sizing.WorkerTTL, sizing.ClaimWait = workerTTL, claimWait
	b, err := bus.Open(context.Background(), bus.Options{Dir: dir, Sizing: sizing, Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// replica is one ingest in a test: writer and projections.
type replica struct {
	*Writer
	ctx     context.Context
	running sync.WaitGroup
	stop    func() // gracefully; idempotent
}

// start runs a replica. prepare may set its hooks before anything happens.
func start(t testing.TB, b *bus.Bus, name string, prepare func(*Writer)) *replica {
	t.Helper()
	return startWith(t, b, name, 500, prepare)
}

func startWith(t testing.TB, b *bus.Bus, name string, batch int, prepare func(*Writer)) *replica {
	t.Helper()
	r := standby(t, b, name, batch, prepare)
	r.running.Go(func() {
		if err := r.Run(r.ctx); err != nil && r.ctx.Err() == nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	return r
}

// standby is a replica whose projections follow the streams, and that does not ask for the claim.
func standby(t testing.TB, b *bus.Bus, name string, batch int, prepare func(*Writer)) *replica {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	index, err := eventdb.Open("", eventdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler).With("replica", name)
	n := &node.Node{Settings: testSettings(), Bus: b, Index: index, Bans: testBans(), Log: log, Metrics: prometheus.NewRegistry(), Worker: name}
	n.Settings.BatchSize = batch
	w, err := New(ctx, n, func(*nostr.Event, proto.Refusal) {})
	if err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(w)
	}
	r := &replica{Writer: w, ctx: ctx}
	r.running.Go(func() {
		if err := eventdb.Follow(ctx, b.JS, index, log); err != nil && ctx.Err() == nil {
			t.Errorf("%s: follow the log: %v", name, err)
		}
	})
	for _, stream := range []*bus.Follower{w.Held.Follower, w.Rejected.Follower} {
		r.running.Go(func() {
			if err := stream.Run(ctx); err != nil {
				t.Errorf("%s: follow: %v", name, err)
			}
		})
	}
	r.stop = sync.OnceFunc(func() {
		cancel()
		r.running.Wait()
		if err := index.Close(); err != nil {
			t.Errorf("%s: close the index: %v", name, err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// begin begins a term whose lanes fetch nothing.
func (r *replica) begin(t testing.TB) *term {
	t.Helper()
	begun := &term{Writer: r.Writer, lanes: newLanes()}
	if err := begun.begin(r.ctx); err != nil {
		t.Fatal(err)
	}
	return begun
}

func (r *replica) isWriting() bool { return testutil.ToFloat64(r.metrics.writer) == 1 }

// eventually waits until what holds, or fails the test.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// person is the public key of an author.
type person string

var secrets sync.Map // by person

func newPerson(n int) person {
	secret := fmt.Sprintf("%064x", n+1)
	public, err := gonostr.GetPublicKey(secret)
	if err != nil {
		panic(err)
	}
	secrets.Store(person(public), secret)
	return person(public)
}

func (p person) npub() string {
	npub, err := nip19.EncodePublicKey(string(p))
	if err != nil {
		panic(err)
	}
	return npub
}

func (p person) event(kind int, at int64, content string, tags ...nostr.Tag) *nostr.Event {
	ev := &nostr.Event{
		PubKey: string(p), Kind: kind, CreatedAt: nostr.Timestamp(at), Tags: tags, Content: content, Sig: strings.Repeat("0", 128),
	}
	if ev.Tags == nil {
		ev.Tags = nostr.Tags{}
	}
	switch kind {
	case 5, 30617, 30618, 1618, 1619: // ingest checks their signatures
		secret, _ := secrets.Load(p)
		if err := ev.Sign(secret.(string)); err != nil {
			panic(err)
		}
	default:
		ev.ID = ev.GetID()
	}
	return ev
}

func (p person) announcement(identifier string, at int64, maintainers ...person) *nostr.Event {
	tags := nostr.Tags{
		{"d", identifier},
		{"clone", "https://" + domain + "/" + p.npub() + "/" + identifier + ".git"},
		{"relays", "wss://" + domain},
	}
	for _, m := range maintainers {
		tags = append(tags, nostr.Tag{"maintainers", string(m)})
	}
	return p.event(30617, at, "", tags...)
}

func (p person) state(identifier string, at int64) *nostr.Event {
	return p.event(30618, at, "", nostr.Tag{"d", identifier}, nostr.Tag{"refs/heads/main", strings.Repeat("a", 40)}, nostr.Tag{"HEAD", "ref: refs/heads/main"})
}

func (p person) issue(owner person, identifier string, n int) *nostr.Event {
	return p.event(1621, int64(1000+n), fmt.Sprintf("issue %d", n), nostr.Tag{"a", "30617:" + string(owner) + ":" + identifier})
}

func (p person) grasps(n int) *nostr.Event {
	return p.event(10317, int64(1000+n), "", nostr.Tag{"g", "wss://" + domain})
}

// sender publishes candidates and gathers their verdicts.
type sender struct {
	t   testing.TB
	b   *bus.Bus
	sub *nats.Subscription

	verdicts []proto.Verdict // gathered so far
	messages int             // that they came in
}

func newSender(t testing.TB, b *bus.Bus, inbox string) *sender {
	t.Helper()
	sub, err := b.Conn.SubscribeSync(proto.VerdictSubject(inbox))
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	if err := b.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return &sender{t: t, b: b, sub: sub}
}

func (s *sender) message(lane proto.Lane, data []byte, headers ...string) *nats.Msg {
	m := &nats.Msg{Subject: lane.Subject(), Data: data, Header: nats.Header{}}
	m.Header.Set(proto.HeaderReply, s.sub.Subject)
	switch lane {
	case proto.LaneSyncLive:
		m.Header.Set(proto.HeaderSource, string(proto.SourceLive))
	case proto.LaneSyncHistoric:
		m.Header.Set(proto.HeaderSource, string(proto.SourceStartup))
	case proto.LaneSyncDaily:
		m.Header.Set(proto.HeaderSource, string(proto.SourceDaily))
	}
	for i := 0; i+1 < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	return m
}

func (s *sender) raw(lane proto.Lane, data []byte, headers ...string) {
	s.t.Helper()
	if _, err := s.b.JS.PublishMsg(context.Background(), s.message(lane, data, headers...)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *sender) send(lane proto.Lane, ev *nostr.Event, headers ...string) {
	s.t.Helper()
	s.raw(lane, encode(s.t, ev), headers...)
}

// sendPack sends events in one message.
func (s *sender) sendPack(lane proto.Lane, events []*nostr.Event, headers ...string) {
	s.t.Helper()
	var lines [][]byte
	for _, ev := range events {
		lines = append(lines, encode(s.t, ev))
	}
	s.raw(lane, proto.JoinPack(lines), headers...)
}

func (s *sender) act(action proto.Action, ev *nostr.Event) {
	s.t.Helper()
	s.send(proto.LaneRelease, ev, proto.HeaderAction, string(action))
}

func (s *sender) sendAll(lane proto.Lane, events []*nostr.Event) {
	s.t.Helper()
	for _, ev := range events {
		s.send(lane, ev)
	}
}

// wait gathers verdicts until there are n in all, and gives them.
func (s *sender) wait(n int) []proto.Verdict {
	s.t.Helper()
	deadline, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for len(s.verdicts) < n {
		m, err := s.sub.NextMsgWithContext(deadline)
		if err != nil {
			s.t.Fatalf("%d of %d verdicts: %v", len(s.verdicts), n, err)
		}
		var v proto.Verdicts
		if err := json.Unmarshal(m.Data, &v); err != nil {
			s.t.Fatal(err)
		}
		s.verdicts = append(s.verdicts, v.Verdicts...)
		s.messages++
	}
	return s.verdicts
}

// ask sends one candidate and gives its verdict.
func (s *sender) ask(lane proto.Lane, ev *nostr.Event, headers ...string) proto.Verdict {
	s.t.Helper()
	n := len(s.verdicts)
	s.send(lane, ev, headers...)
	v := s.wait(n + 1)[n]
	if v.ID != ev.ID {
		s.t.Fatalf("a verdict for %s, want %s", v.ID, ev.ID)
	}
	return v
}

func (s *sender) release(ev *nostr.Event) proto.Verdict {
	s.t.Helper()
	return s.ask(proto.LaneRelease, ev, proto.HeaderAction, string(proto.ActionRelease))
}

// remove asks as purgatory does when a repository has been removed.
func (s *sender) remove(ev *nostr.Event) proto.Verdict {
	s.t.Helper()
	return s.ask(proto.LaneRelease, ev, proto.HeaderAction, string(proto.ActionRemove))
}

func encode(t testing.TB, ev *nostr.Event) []byte {
	t.Helper()
	data, err := ev.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// logIDs reads the log from its start: the ids in order, "removed <id>" of what has left it.
func logIDs(t testing.TB, b *bus.Bus) []string {
	t.Helper()
	var ids []string
	for _, m := range readStream(t, b, proto.StreamEvents) {
		if m.Subject == proto.SubjectEventsMark {
			continue
		}
		if removed := m.Header.Get(proto.HeaderRemoved); removed != "" {
			ids = append(ids, "removed "+removed)
			continue
		}
		var ev nostr.Event
		if err := ev.UnmarshalJSON(m.Data); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, ev.ID)
	}
	return ids
}

// readStream returns all messages of a stream.
func readStream(t testing.TB, b *bus.Bus, name string) []bus.Message {
	t.Helper()
	stream, err := b.JS.Stream(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	state := stream.CachedInfo().State
	if state.Msgs == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var msgs []bus.Message
	err = bus.Read(ctx, b.JS, bus.Reading{Stream: name}, func(m bus.Message) {
		if m.Seq <= state.LastSeq {
			msgs = append(msgs, m)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return msgs
}
