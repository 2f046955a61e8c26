package relayconn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/test/fixture"
)

var (
	must, eventually = fixture.Must, fixture.Await
	person           = fixture.NewPerson()
)

const (
	patience = fixture.Patience
	// workerTTL is longer than any test waits: what passes on to another worker was let go.
	workerTTL = 10 * patience
)

// foreign is a small relay: what NIP-01 asks for, and an eye on what is asked of it.
type foreign struct {
	URL, Name string // Name as in subjects and keys

	mu     sync.Mutex
	events []*nostr.Event
	asked  []nostr.Filter
	open   map[*websocket.Conn]map[string]nostr.Filters
	dials  int
	ended  int // connections
}

func newForeign(t testing.TB, events ...*nostr.Event) *foreign {
	t.Helper()
	f := &foreign{events: events, open: map[*websocket.Conn]map[string]nostr.Filters{}}
	f.URL = serve(t, f.serve)
	f.Name = nameOf(t, f.URL)
	return f
}

// serve lets fn answer at a URL of its own.
func serve(t testing.TB, fn http.HandlerFunc) (url string) {
	t.Helper()
	server := httptest.NewServer(fn)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return "ws" + strings.TrimPrefix(server.URL, "http")
}

func nameOf(t testing.TB, url string) string {
	t.Helper()
	name, err := proto.EncodeRelay(nostr.RelayURL(url).Key())
	must(t, err)
	return name
}

func (f *foreign) serve(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	ws.SetReadLimit(1 << 20)
	f.mu.Lock()
	f.dials++
	f.open[ws] = map[string]nostr.Filters{}
	f.mu.Unlock()
	for {
		_, data, err := ws.Read(context.Background())
		if err != nil {
			f.mu.Lock()
			delete(f.open, ws)
			f.ended++
			f.mu.Unlock()
			return
		}
		f.hear(ws, string(data))
	}
}

func (f *foreign) hear(ws *websocket.Conn, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	envelope, err := gonostr.NewMessageParser().ParseMessage(text)
	if err != nil {
		return
	}
	switch e := envelope.(type) {
	case *gonostr.ReqEnvelope:
		f.open[ws][e.SubscriptionID] = e.Filters
		f.asked = append(f.asked, e.Filters...)
		for _, filter := range e.Filters {
			n := 0
			for _, ev := range f.events {
				if filter.Matches(ev) && !filter.LimitZero && n < filter.Limit {
					send(ws, gonostr.EventEnvelope{SubscriptionID: &e.SubscriptionID, Event: *ev})
					n++
				}
			}
		}
		send(ws, gonostr.EOSEEnvelope(e.SubscriptionID))
	case *gonostr.CloseEnvelope:
		delete(f.open[ws], string(*e))
	}
}

func send(ws *websocket.Conn, m json.Marshaler) {
	if data, err := m.MarshalJSON(); err == nil {
		ws.Write(context.Background(), websocket.MessageText, data)
	}
}

// publish tells an event to every worker that has asked for it live.
func (f *foreign) publish(ev *nostr.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = slices.Insert(f.events, 0, ev)
	for ws, subs := range f.open {
		for sub, filters := range subs {
			if filters.Match(ev) && filters[0].LimitZero {
				send(ws, gonostr.EventEnvelope{SubscriptionID: &sub, Event: *ev})
			}
		}
	}
}

// drop ends all connections without a word.
func (f *foreign) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ws := range f.open {
		go ws.CloseNow()
	}
}

// look runs fn while nothing changes.
func (f *foreign) look(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
}

func openBus(t testing.TB) *bus.Bus {
	t.Helper()
	return openBusFor(t, workerTTL)
}

// openBusFor is a bus on which a worker that is silent is believed to live for so long.
func openBusFor(t testing.TB, ttl time.Duration) *bus.Bus {
	t.Helper()
	sizing := proto.DefaultSizing()
	sizing.MemoryOnly, sizing.WorkerTTL = true, ttl
	b, err := bus.Open(t.Context(), bus.Options{Sizing: sizing, Name: t.Name(), Listen: "127.0.0.1:0"})
	must(t, err)
	t.Cleanup(b.Close)
	return b
}

// process is the service in a node of its own, with the times that tests need short.
type process struct {
	*node.Node
	stop func()
	kill func() // without a word to the bus
}

func newWorker(t testing.TB, b *bus.Bus, name string, flags ...string) process {
	t.Helper()
	return startWorker(t, b, name, byRules(false), flags...)
}

// byRules is the service with other rules.
func byRules(asks bool, set ...func(*Rules)) node.Service {
	return node.Service{Name: "relayconn", Asks: asks, Run: func(ctx context.Context, n *node.Node) error {
		rules := rulesOf(n.Settings.Sync)
		rules.Check = time.Second
		for _, set := range set {
			set(&rules)
		}
		return runBy(ctx, n, rules)
	}}
}

// startWorker runs a service in a node of its own. Where that only asks, the node has no index.
func startWorker(t testing.TB, b *bus.Bus, name string, service node.Service, flags ...string) process {
	t.Helper()
	flags = append([]string{
		"--domain=git.example.com", "--database-backend=memory", "--nats-url=" + b.ClientURL(), "--worker-ttl=" + workerTTL.String(),
		"--allow-private-networks", "--sync-disable-negentropy", "--sync-startup-jitter-ms=0", "--sync-batch-window-ms=10",
		// This is the connect timeout too: no relay is to fail because the machine is slow, and no
		// worker is to stop too late for that.
		fmt.Sprint("--sync-base-backoff-secs=", patience.Seconds()), "--shutdown-wait=" + patience.String(),
	}, flags...)
	s, err := config.Process().Parse(flags)
	must(t, err)
	n, err := node.Open(t.Context(), "relayconn", s, slog.New(slog.DiscardHandler), false, service)
	must(t, err)
	n.Worker = name
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx, service) }()
	end := sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-done, n.Close())
	})
	var killed atomic.Bool
	w := process{Node: n, stop: func() {
		if err := end(); err != nil && !killed.Load() {
			t.Error(err)
		}
	}, kill: func() {
		killed.Store(true)
		n.Bus.Conn.Close()
		end()
	}}
	t.Cleanup(w.stop)
	return w
}

// metric is the value of a metric with labels of those values, -1 if there is none.
func (w process) metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	return metric(t, w.Metrics, name, labels...)
}

func metric(t testing.TB, g prometheus.Gatherer, name string, labels ...string) float64 {
	t.Helper()
	families, err := g.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(m.String(), l) }) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// aim makes a relay a target, or withdraws what it was, as discovery does, and returns the last
// sequence.
func aim(t testing.TB, b *bus.Bus, url string, to proto.Target, from ...proto.Target) (revision uint64) {
	t.Helper()
	said := map[string][]byte{}
	for _, f := range from {
		messages, err := f.Messages(nostr.RelayURL(url).Key())
		must(t, err)
		for subject := range messages {
			said[subject] = nil
		}
	}
	if to.Exists() {
		messages, err := to.Messages(nostr.RelayURL(url).Key())
		must(t, err)
		maps.Copy(said, messages)
	}
	var batch []*nats.Msg
	for _, subject := range slices.Sorted(maps.Keys(said)) {
		batch = append(batch, &nats.Msg{Subject: subject, Data: said[subject]})
	}
	revision, err := b.PublishBatch(t.Context(), batch, nil)
	must(t, err)
	return revision
}

func wanting(url string, refs ...string) proto.Target {
	to := proto.Target{URL: url, Repos: map[string]proto.Wanted{}}
	for _, ref := range refs {
		to.Repos[ref] = proto.Wanted{Level: proto.LevelFull}
	}
	return to
}

// newIndex is a node with an index, which answers workers that have none.
func newIndex(t testing.TB, b *bus.Bus) process {
	t.Helper()
	return startWorker(t, b, "index", node.Service{Name: proto.UserIngest, Run: func(ctx context.Context, _ *node.Node) error {
		<-ctx.Done()
		return nil
	}})
}

// ingest answers every candidate with a verdict, and remembers them.
type ingest struct {
	js    jetstream.JetStream
	mu    sync.Mutex
	taken []string // source, lane and content
	known map[string]bool
}

func newIngest(t testing.TB, b *bus.Bus) *ingest {
	t.Helper()
	i := &ingest{js: b.JS, known: map[string]bool{}}
	for stream, lane := range map[string]string{proto.StreamLive: proto.ConsumerLive, proto.StreamSync: proto.ConsumerSync} {
		consumer, err := b.JS.Consumer(t.Context(), stream, lane)
		must(t, err)
		running, err := consumer.Consume(func(m jetstream.Msg) {
			if err := errors.Join(i.answer(m), m.Ack()); err != nil {
				t.Error(err)
			}
		})
		must(t, err)
		t.Cleanup(running.Stop)
	}
	return i
}

// answer accepts the events of a pack that are not known.
func (i *ingest) answer(m jetstream.Msg) error {
	h := m.Headers()
	lines, err := proto.SplitPack(m.Data())
	verdicts := proto.Verdicts{Ref: h.Get(proto.HeaderRef)}
	for _, line := range lines {
		var ev nostr.Event
		if err := ev.UnmarshalJSON(line); err != nil {
			return err
		}
		outcome := proto.Accepted
		if i.take(ev.ID, fmt.Sprint(h.Get(proto.HeaderSource), " ", strings.TrimPrefix(m.Subject(), "grasp.candidate."), " ", ev.Content)) {
			outcome = proto.Duplicate
		} else if _, err := i.js.Publish(context.Background(), proto.EventSubjectOf(&ev).String(), line); err != nil {
			return err
		}
		verdicts.Verdicts = append(verdicts.Verdicts, proto.Verdict{ID: ev.ID, Outcome: outcome})
	}
	data, _ := json.Marshal(verdicts)
	return errors.Join(err, i.js.Conn().Publish(h.Get(proto.HeaderReply), data))
}

// take remembers what was taken, and reports whether it was known.
func (i *ingest) take(id, what string) (known bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	known = i.known[id]
	i.known[id], i.taken = true, append(i.taken, what)
	return known
}

// all is what was taken so far.
func (i *ingest) all() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.taken)
}

func (i *ingest) has(what ...string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, w := range what {
		if !slices.Contains(i.taken, w) {
			return false
		}
	}
	return true
}

// state is a relay's entry in grasp-relays.
func state(t testing.TB, b *bus.Bus, name string) proto.RelayState {
	t.Helper()
	return entry[proto.RelayState](t, b, proto.BucketRelays, name)
}

// connected waits until a relay is connected and synced.
func connected(t testing.TB, b *bus.Bus, r *foreign) {
	t.Helper()
	eventually(t, "it is connected", func() bool { return state(t, b, r.Name).Connection == int(session.Connected) })
}

// holder is the worker that has the claim on a relay; empty: none.
func holder(t testing.TB, b *bus.Bus, name string) string {
	t.Helper()
	return entry[proto.Claim](t, b, proto.BucketClaims, proto.ClaimKey(proto.GroupRelays, name)).Worker
}

func entry[T any](t testing.TB, b *bus.Bus, bucket, key string) (value T) {
	t.Helper()
	kv, err := b.Bucket(t.Context(), bucket)
	must(t, err)
	e, err := kv.Get(t.Context(), key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return value
	}
	if err == nil {
		err = json.Unmarshal(e.Value(), &value)
	}
	must(t, err)
	return value
}

func event(kind int, content string, ago time.Duration, tags ...nostr.Tag) *nostr.Event {
	return person.At(nostr.Timestamp(time.Now().Add(-ago).Unix())).Sign(kind, content, tags...)
}
