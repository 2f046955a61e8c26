package writer

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
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
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

const domain, patience = "git.example.com", fixture.Patience

var (
	quiet            = slog.New(slog.DiscardHandler)
	must, eventually = fixture.Must, fixture.Await
)

func testSettings() (s config.Settings) {
	s.Domain = domain
	s.HoldDuration = 30 * time.Minute
	s.LargestEvent = 192 << 10
	s.RejectedHotSeconds, s.RejectedColdSeconds = 120, 7*24*60*60
	s.DatabaseBackend = "memory"
	return s
}

func noBans(t testing.TB) *bans.Set {
	none, err := bans.New(config.Policy{}, quiet)
	must(t, err)
	return none
}

// openBus opens a bus that takes neither the claim nor a candidate from a writer that is slow, unless
// a test changes that.
func openBus(t testing.TB, change ...func(*proto.Sizing)) *bus.Bus {
	t.Helper()
	sizing := proto.DefaultSizing()
	sizing.WorkerTTL, sizing.ClaimWait = time.Hour, time.Hour
	for _, change := range change {
		change(&sizing)
	}
	b, err := bus.Open(context.Background(), bus.Options{Dir: t.TempDir(), Sizing: sizing, Name: t.Name()})
	must(t, err)
	t.Cleanup(b.Close)
	return b
}

// impatient gives to another writer what a silent one has in its hands.
func impatient(s *proto.Sizing) { s.ClaimWait = 5 * time.Second }

// replica is one ingest in a test: writer and projections.
type replica struct {
	*Writer
	ctx     context.Context
	running sync.WaitGroup
	stop    func() // gracefully; idempotent
}

// start runs a replica. prepare may set it up before anything happens.
func start(t testing.TB, b *bus.Bus, name string, prepare ...func(*Writer)) *replica {
	t.Helper()
	return startWith(t, b, name, testSettings(), prepare...)
}

func startWith(t testing.TB, b *bus.Bus, name string, settings config.Settings, prepare ...func(*Writer)) *replica {
	t.Helper()
	r := standby(t, b, name, settings, prepare...)
	r.running.Go(func() {
		if err := r.Run(r.ctx); err != nil && r.ctx.Err() == nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	return r
}

// standby is a replica whose projections follow the streams, and that does not ask for the claim.
func standby(t testing.TB, b *bus.Bus, name string, settings config.Settings, prepare ...func(*Writer)) *replica {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	index, err := eventdb.Open("", eventdb.Options{})
	must(t, err)
	n := &node.Node{Settings: settings, Bus: b, Index: index, Bans: noBans(t), Log: quiet, Metrics: prometheus.NewRegistry(), Ready: &obs.Readiness{}, Worker: name}
	w, err := New(ctx, n, func(*nostr.Event, proto.Refusal) {})
	must(t, err)
	for _, set := range prepare {
		set(w)
	}
	r := &replica{Writer: w, ctx: ctx}
	for what, follow := range map[string]func(context.Context) error{
		"the log":    func(ctx context.Context) error { return eventdb.Follow(ctx, b.JS, index, quiet) },
		"held":       w.Held.Run,
		"rejections": w.Rejected.Run,
	} {
		r.running.Go(func() {
			if err := follow(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("%s: follow %s: %v", name, what, err)
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

func (r *replica) isWriting() bool { return testutil.ToFloat64(r.metrics.writer) == 1 }

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

func (p person) event(kind int, at int64, content string, tags ...nostr.Tag) *nostr.Event {
	ev := &nostr.Event{
		PubKey: string(p), Kind: kind, CreatedAt: nostr.Timestamp(at), Tags: append(nostr.Tags{}, tags...), Content: content, Sig: strings.Repeat("0", 128),
	}
	switch kind {
	case 5, 62, 30617, 30618, 1618, 1619: // ingest checks their signatures
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
	npub, _ := nip19.EncodePublicKey(string(p))
	return p.announce(identifier, at, "https://"+domain+"/"+npub+"/"+identifier+".git", "wss://"+domain, maintainers)
}

// elsewhere is an announcement that does not list us.
func (p person) elsewhere(identifier string, at int64, maintainers ...person) *nostr.Event {
	return p.announce(identifier, at, "https://other.example.org/x.git", "wss://other.example.org", maintainers)
}

func (p person) announce(identifier string, at int64, clone, relay string, maintainers []person) *nostr.Event {
	tags := nostr.Tags{{"d", identifier}, {"clone", clone}, {"relays", relay}}
	for _, m := range maintainers {
		tags = append(tags, nostr.Tag{"maintainers", string(m)})
	}
	return p.event(30617, at, "", tags...)
}

func (p person) state(identifier string, at int64) *nostr.Event {
	return p.event(30618, at, "", nostr.Tag{"d", identifier}, nostr.Tag{"refs/heads/main", strings.Repeat("a", 40)}, nostr.Tag{"HEAD", "ref: refs/heads/main"})
}

func (p person) repo(identifier string) nostr.Tag {
	return nostr.Tag{"a", "30617:" + string(p) + ":" + identifier}
}

func (p person) issue(owner person, identifier string, n int) *nostr.Event {
	return p.event(1621, int64(1000+n), fmt.Sprintf("issue %d", n), owner.repo(identifier))
}

// manyGrasps makes events that are accepted as they come.
func manyGrasps(from, n int) (events []*nostr.Event) {
	for i := range n {
		events = append(events, newPerson(from+i).event(10317, int64(1000+i), "", nostr.Tag{"g", "wss://" + domain}))
	}
	return events
}

// sender publishes candidates and gathers their verdicts.
type sender struct {
	t        testing.TB
	b        *bus.Bus
	sub      *nats.Subscription
	verdicts []proto.Verdict // gathered so far
}

func newSender(t testing.TB, b *bus.Bus) *sender {
	t.Helper()
	sub, err := b.Conn.SubscribeSync(proto.VerdictSubject(nats.NewInbox()[len("_INBOX."):]))
	must(t, err)
	must(t, sub.SetPendingLimits(-1, -1))
	must(t, b.Conn.Flush())
	return &sender{t: t, b: b, sub: sub}
}

// raw sends a message. Headers are names and values by turns.
func (s *sender) raw(lane proto.Lane, data []byte, headers ...string) {
	s.t.Helper()
	source := map[proto.Lane]proto.Source{
		proto.LaneSyncLive: proto.SourceLive, proto.LaneSyncHistoric: proto.SourceStartup, proto.LaneSyncDaily: proto.SourceDaily,
	}[lane]
	m := &nats.Msg{Subject: lane.Subject(), Data: data, Header: nats.Header{proto.HeaderReply: {s.sub.Subject}, proto.HeaderSource: {string(source)}}}
	for i := 0; i+1 < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	_, err := s.b.JS.PublishMsg(context.Background(), m)
	must(s.t, err)
}

// send sends events, each in a message of its own.
func (s *sender) send(lane proto.Lane, events ...*nostr.Event) {
	s.t.Helper()
	for _, ev := range events {
		s.raw(lane, encode(s.t, ev))
	}
}

func (s *sender) act(action proto.Action, ev *nostr.Event) {
	s.t.Helper()
	s.raw(proto.LaneRelease, encode(s.t, ev), proto.HeaderAction, string(action))
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
		must(s.t, json.Unmarshal(m.Data, &v))
		s.verdicts = append(s.verdicts, v.Verdicts...)
	}
	return s.verdicts
}

// ask sends one candidate and gives its verdict, which must be of that outcome.
func (s *sender) ask(want proto.Outcome, lane proto.Lane, ev *nostr.Event, headers ...string) proto.Verdict {
	s.t.Helper()
	n := len(s.verdicts)
	s.raw(lane, encode(s.t, ev), headers...)
	v := s.wait(n + 1)[n]
	if v.ID != ev.ID || v.Outcome != want {
		s.t.Fatalf("kind %d at %d, %s: %+v; want %s", ev.Kind, ev.CreatedAt, ev.ID, v, want)
	}
	return v
}

// asks has purgatory ask for something.
func (s *sender) asks(want proto.Outcome, action proto.Action, ev *nostr.Event) proto.Verdict {
	s.t.Helper()
	return s.ask(want, proto.LaneRelease, ev, proto.HeaderAction, string(action))
}

// serve makes a repository served.
func (s *sender) serve(announcement *nostr.Event) {
	s.t.Helper()
	s.ask(proto.HeldBack, proto.LaneUser, announcement)
	s.asks(proto.Accepted, proto.ActionRelease, announcement)
}

func encode(t testing.TB, ev *nostr.Event) []byte {
	t.Helper()
	data, err := ev.MarshalJSON()
	must(t, err)
	return data
}

// logIDs reads the log from its start: the ids in order, "removed <id>" of what has left it.
func logIDs(t testing.TB, b *bus.Bus) (ids []string) {
	t.Helper()
	for _, m := range readStream(t, b, proto.StreamEvents) {
		if m.Subject == proto.SubjectEventsMark {
			continue
		}
		if removed := m.Header.Get(proto.HeaderRemoved); removed != "" {
			ids = append(ids, "removed "+removed)
			continue
		}
		var ev nostr.Event
		must(t, ev.UnmarshalJSON(m.Data))
		ids = append(ids, ev.ID)
	}
	return ids
}

// wantLog checks which events the log has, in any order.
func wantLog(t testing.TB, b *bus.Bus, events ...*nostr.Event) {
	t.Helper()
	var want []string
	for _, ev := range events {
		want = append(want, ev.ID)
	}
	slices.Sort(want)
	if got := logIDs(t, b); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("the log has %d events, want %d: %q, want %q", len(got), len(want), got, want)
	}
}

// readStream returns all messages of a stream.
func readStream(t testing.TB, b *bus.Bus, name string) (msgs []bus.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(t, bus.Read(ctx, b.JS, bus.Reading{Stream: name}, func(m bus.Message) { msgs = append(msgs, m) }))
	return msgs
}

// queued counts the candidates of all lanes that are not decided.
func queued(t testing.TB, b *bus.Bus) (n uint64) {
	t.Helper()
	for _, source := range sources {
		stream, err := b.JS.Stream(t.Context(), source.stream)
		must(t, err)
		n += stream.CachedInfo().State.Msgs
	}
	return n
}
