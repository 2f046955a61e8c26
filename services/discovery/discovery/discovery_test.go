package discovery_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nip34"
	"tendril.dev/lib/node"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/discovery"
)

const (
	domain   = "git.example.com"
	patience = 3 * time.Minute
)

var (
	alice = strings.Repeat("a1", 32)
	bob   = strings.Repeat("b0", 32)
)

// replica is the service in a node of its own.
type replica struct {
	*node.Node
	stop func()
}

// run starts a replica; url is the NATS server of another, or empty.
func run(t testing.TB, dir, url string, flags ...string) replica {
	t.Helper()
	flags = append([]string{"--domain=" + domain, "--relay-data-path=" + dir, "--sync-batch-window-ms=20", "--shutdown-wait=10m", "--nats-url=" + url}, flags...)
	if url == "" {
		flags = append(flags, "--nats-listen=127.0.0.1:0")
	}
	s, err := config.Parse("discovery", flags)
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Open(t.Context(), "discovery", s, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx, node.Service{Name: "discovery", Run: discovery.Run}) }()
	r := replica{Node: n, stop: sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, n.Close()); err != nil {
			t.Error(err)
		}
	})}
	t.Cleanup(r.stop)
	eventually(t, "it is ready", func() bool {
		// Its metrics come after its condition of readiness.
		started, err := testutil.GatherAndCount(n.Metrics, "tendril_discovery_targets")
		if err != nil {
			t.Fatal(err)
		}
		return started > 0 && len(n.Ready.Failing()) == 0
	})
	return r
}

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

func announce(author, d string, created nostr.Timestamp, relays ...string) *nostr.Event {
	npub, err := nip19.EncodePublicKey(author)
	if err != nil {
		panic(err)
	}
	return finish(&nostr.Event{PubKey: author, Kind: nip34.KindAnnouncement, CreatedAt: created, Tags: nostr.Tags{
		{"d", d}, {"clone", fmt.Sprintf("https://%s/%s/%s.git", domain, npub, d)}, append(nostr.Tag{"relays", "wss://" + domain}, relays...),
	}})
}

func issue(n int, ref string) *nostr.Event {
	return finish(&nostr.Event{PubKey: bob, Kind: nip34.KindIssue, CreatedAt: nostr.Timestamp(n), Content: "it does not work", Tags: nostr.Tags{{"a", ref}}})
}

func finish(ev *nostr.Event) *nostr.Event {
	ev.ID, ev.Sig = ev.GetID(), strings.Repeat("0", 128)
	return ev
}

// accept appends events to the log, as ingest does.
func accept(t testing.TB, b *bus.Bus, events ...*nostr.Event) {
	t.Helper()
	for chunk := range slices.Chunk(events, bus.MaxBatch) {
		var msgs []*nats.Msg
		for _, ev := range chunk {
			raw, err := ev.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			msgs = append(msgs, &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: raw})
		}
		if _, err := b.PublishBatch(t.Context(), msgs, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// hold writes an entry of purgatory; release takes it away.
func hold(t testing.TB, b *bus.Bus, ev *nostr.Event, phase proto.Phase) (release func()) {
	t.Helper()
	kv, err := b.Bucket(t.Context(), proto.BucketHeld)
	if err != nil {
		t.Fatal(err)
	}
	key, err := proto.HeldKeyOf(ev.Tags.GetD(), ev).Key()
	if err != nil {
		t.Fatal(err)
	}
	value, err := json.Marshal(proto.Held{Event: ev, Identifier: ev.Tags.GetD(), Phase: phase})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := kv.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
}

// published reads the targets that the stream tells, as lines, and its last sequence.
func published(t testing.TB, b *bus.Bus) (lines []string, last uint64) {
	t.Helper()
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	info := stream.CachedInfo().State
	targets := map[string]target.Target{}
	for seq := max(1, info.FirstSeq); seq <= info.LastSeq; seq++ {
		msg, err := stream.GetMsg(t.Context(), seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var c proto.TargetChange
		if err := json.Unmarshal(msg.Data, &c); err != nil {
			t.Fatal(err)
		}
		targets[msg.Subject] = targets[msg.Subject].Apply(c)
	}
	for _, subject := range slices.Sorted(maps.Keys(targets)) {
		tg := targets[subject]
		if !tg.Exists() {
			continue
		}
		line := tg.URL
		for _, ref := range slices.Sorted(maps.Keys(tg.Repos)) {
			r := tg.Repos[ref]
			line += fmt.Sprintf(" %s/%s", strings.TrimPrefix(ref, "30617:"+alice+":"), r.Level)
			for _, root := range r.Roots {
				line += "+" + root.String()[:6]
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines, info.LastSeq
}

func becomes(t testing.TB, b *bus.Bus, want ...string) {
	t.Helper()
	var got []string
	deadline := time.Now().Add(patience)
	for {
		if got, _ = published(t, b); slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("targets are\n\t%q\nwant\n\t%q", got, want)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// TestStory follows a repository from purgatory to its end.
func TestStory(t *testing.T) {
	t.Parallel()
	r := run(t, t.TempDir(), "", "--sync-bootstrap-relay-url=relay.ngit.dev")
	const bootstrap = "wss://relay.ngit.dev"
	becomes(t, r.Bus, bootstrap)

	first := announce(alice, "x", 1, "wss://r.example", "wss://git.example.com/")
	release := hold(t, r.Bus, first, proto.PhaseWaiting)
	becomes(t, r.Bus, "wss://r.example x/state", bootstrap)

	accept(t, r.Bus, first)
	release()
	becomes(t, r.Bus, "wss://r.example x/full", bootstrap)

	bug := issue(1, "30617:"+alice+":x")
	accept(t, r.Bus, bug)
	becomes(t, r.Bus, "wss://r.example x/full+"+bug.ID[:6], bootstrap)

	accept(t, r.Bus, finish(&nostr.Event{PubKey: bob, Kind: nip34.KindDeletion, CreatedAt: 9, Tags: nostr.Tags{{"e", bug.ID}}}))
	becomes(t, r.Bus, "wss://r.example x/full", bootstrap)

	accept(t, r.Bus, announce(alice, "x", 2, "wss://s.example"))
	becomes(t, r.Bus, bootstrap, "wss://s.example x/full")

	moved := announce(alice, "x", 3, "wss://s.example")
	moved.Tags = nostr.Tags{{"d", "x"}, {"clone", "https://elsewhere.example/x.git"}, {"relays", "wss://s.example"}}
	accept(t, r.Bus, finish(moved))
	becomes(t, r.Bus, bootstrap)

	accept(t, r.Bus, announce(alice, "y", 4, "wss://s.example"))
	becomes(t, r.Bus, bootstrap, "wss://s.example y/full")
	accept(t, r.Bus, finish(&nostr.Event{PubKey: alice, Kind: nip34.KindDeletion, CreatedAt: 9, Tags: nostr.Tags{{"a", "30617:" + alice + ":y"}}}))
	becomes(t, r.Bus, bootstrap)

	silent := hold(t, r.Bus, announce(alice, "z", 4, "wss://s.example"), proto.PhaseWaiting)
	becomes(t, r.Bus, bootstrap, "wss://s.example z/state")
	hold(t, r.Bus, announce(alice, "z", 4, "wss://s.example"), proto.PhaseSilent)
	becomes(t, r.Bus, bootstrap)
	silent()
}

func TestARestartPublishesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := run(t, dir, "")
	hold(t, r.Bus, announce(alice, "held", 1, "wss://r.example"), proto.PhaseWaiting)
	accept(t, r.Bus, announce(alice, "x", 1, "wss://r.example", "ws://s.example:8080"), issue(1, "30617:"+alice+":x"))
	bug := issue(1, "30617:"+alice+":x").ID[:6]
	want := []string{"ws://s.example:8080 x/full+" + bug, "wss://r.example held/state x/full+" + bug}
	becomes(t, r.Bus, want...)
	_, before := published(t, r.Bus)
	r.stop()

	r = run(t, dir, "") // ready means that it has published
	got, after := published(t, r.Bus)
	if !slices.Equal(got, want) || after != before {
		t.Fatalf("the restart moved the targets from %d to %d: %q", before, after, got)
	}
	// And what happens next is only the difference.
	accept(t, r.Bus, announce(alice, "y", 1, "wss://r.example"))
	becomes(t, r.Bus, want[0], want[1]+" y/full")
	if _, last := published(t, r.Bus); last != before+1 {
		t.Fatalf("one new repository took %d messages", last-before)
	}
}

func TestTwoReplicasPublishEachChangeOnce(t *testing.T) {
	t.Parallel()
	one := run(t, t.TempDir(), "")
	two := run(t, t.TempDir(), one.Bus.ClientURL())
	told, err := one.Bus.Conn.SubscribeSync("grasp.target.>")
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 25
	var want string
	for n := range rounds {
		ev := announce(alice, fmt.Sprintf("p%02d", n), nostr.Timestamp(n+1), "wss://r.example")
		accept(t, one.Bus, ev)
		want += fmt.Sprintf(" p%02d/full", n)
		becomes(t, one.Bus, "wss://r.example"+want)
	}
	// Both have heard everything, and their windows are over.
	head, err := one.Bus.LastSeq(t.Context(), proto.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := errors.Join(one.Index.WaitFor(ctx, head), two.Index.WaitFor(ctx, head)); err != nil {
		t.Fatal(err)
	}
	accept(t, one.Bus, announce(alice, "last", 1, "wss://last.example"))
	becomes(t, one.Bus, "wss://last.example last/full", "wss://r.example"+want)
	for {
		msg, err := told.NextMsg(200 * time.Millisecond)
		if errors.Is(err, nats.ErrTimeout) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if msg.Header.Get("Nats-Expected-Last-Subject-Sequence") == "" {
			t.Errorf("a message without its condition: %s", msg.Data)
		}
	}
	if _, last := published(t, one.Bus); last != rounds+1 {
		t.Fatalf("%d changes took %d messages", rounds+1, last)
	}
}

// TestAReleaseLeavesNoGap: an announcement goes to the log and then from purgatory, and in between
// no relay is withdrawn, whichever of the two is heard of first.
func TestAReleaseLeavesNoGap(t *testing.T) {
	t.Parallel()
	r := run(t, t.TempDir(), "", "--sync-batch-window-ms=1")
	told, err := r.Bus.Conn.SubscribeSync("grasp.target.>")
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 100
	var want []string
	for n := range rounds {
		ev := announce(alice, fmt.Sprintf("p%02d", n), nostr.Timestamp(n+1), fmt.Sprintf("wss://r%02d.example", n))
		release := hold(t, r.Bus, ev, proto.PhaseWaiting)
		accept(t, r.Bus, ev)
		release()
		want = append(want, fmt.Sprintf("wss://r%02d.example p%02d/full", n, n))
	}
	becomes(t, r.Bus, want...)
	head, err := r.Bus.LastSeq(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	for range head {
		msg, err := told.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if msg.Header.Get(proto.HeaderGone) != "" {
			t.Errorf("withdrawn in between: %s", msg.Data)
		}
	}
}

// BenchmarkLiveHeap holds discovery to its budgets: 64 MiB at 1,000 repositories with 50,000 root
// events on 100 relays, five for each repository, and 512 MiB at ten times that. It is none of the
// tests because the race detector has Pebble keep its cache on the heap.
func BenchmarkLiveHeap(b *testing.B) {
	for scale, budget := range map[int]uint64{1: 64 << 20, 10: 512 << 20} {
		b.Run(fmt.Sprint(scale, "x"), func(b *testing.B) { benchmarkLiveHeap(b, scale, budget) })
	}
}

func benchmarkLiveHeap(b *testing.B, scale int, budget uint64) {
	repos, roots, relays := 1000*scale, 50_000*scale, 100*scale
	server, err := bus.Open(b.Context(), bus.Options{Dir: b.TempDir(), Listen: "127.0.0.1:0", Sizing: proto.DefaultSizing()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(server.Close)
	var events []*nostr.Event
	add := func(ev *nostr.Event) {
		if events = append(events, ev); len(events) == bus.MaxBatch {
			accept(b, server, events...)
			events = events[:0]
		}
	}
	for n := range repos {
		var list []string
		for i := range 5 {
			list = append(list, fmt.Sprintf("wss://r%d.example", (5*n+i)%relays))
		}
		add(announce(alice, fmt.Sprintf("p%d", n), 1, list...))
	}
	for n := range roots {
		add(issue(n, fmt.Sprintf("30617:%s:p%d", alice, n%repos)))
	}
	accept(b, server, events...)
	events = nil
	before := liveHeap()
	r := run(b, b.TempDir(), server.ClientURL())
	after := liveHeap()
	if _, last := published(b, r.Bus); int(last) < relays {
		b.Fatalf("only %d messages for %d relays", last, relays)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(after-before)/(1<<20), "MiB")
	if after-before > budget {
		b.Fatalf("discovery keeps %d MiB, more than %d", (after-before)>>20, budget>>20)
	}
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
