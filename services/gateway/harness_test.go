package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/config"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/relay"
	"tendril.dev/test/fixture"
)

const patience = fixture.Patience

var must, eventually = fixture.Must, fixture.Await

// system is a gateway in a node of its own, with a writer that accepts what it is offered.
type system struct {
	*node.Node
	addr     string
	shards   *holders
	ended    chan error
	stop     context.CancelFunc
	warnings <-chan string
	met      <-chan string // where clients met limits
}

// holders sends every shard to the worker at one address.
type holders struct{ address atomic.Value }

func (h *holders) Holder(string) (proto.Worker, bool) {
	address, _ := h.address.Load().(string)
	return proto.Worker{Address: address}, address != ""
}

func (h *holders) at(address string) { h.address.Store(address) }

func (h *holders) Lives(proto.Worker) bool { return true }

// heard is a log handler that finds out where the gateway listens and what it warns of.
type heard struct {
	slog.Handler
	address  chan string
	warnings chan string // as many as it holds
	met      chan string // as many as it holds
}

func listenToLog() heard {
	return heard{slog.DiscardHandler, make(chan string, 1), make(chan string, 100), make(chan string, 100)}
}

func (h heard) Enabled(context.Context, slog.Level) bool { return true }
func (h heard) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h heard) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		select {
		case h.warnings <- r.Message:
		default:
		}
	}
	if strings.HasPrefix(r.Message, "a client has met a limit") {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "at" {
				h.met <- a.Value.String()
			}
			return true
		})
	}
	if r.Message == "listening" && r.Level == slog.LevelInfo {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "address" {
				h.address <- a.Value.String()
			}
			return true
		})
	}
	return nil
}

// warned is how many warnings so far have these words.
func (sys *system) warned(words string) (n int) {
	for len(sys.warnings) > 0 {
		if strings.Contains(<-sys.warnings, words) {
			n++
		}
	}
	return n
}

// decide is what the writer of the tests does with a candidate.
type decide func(ev *nostr.Event) *proto.Verdict

func accept(*nostr.Event) *proto.Verdict { return &proto.Verdict{Outcome: proto.Accepted} }

// start runs a gateway with some settings. What it is offered is accepted.
func start(t testing.TB, args ...string) *system { return judged(t, accept, nil, args...) }

// patient waits long for decisions.
func patient(b *relay.Bounds) { b.EventTimeout = 10 * time.Minute }

// startWithin is start with other bounds.
func startWithin(t testing.TB, set func(*relay.Bounds), args ...string) *system {
	return judged(t, accept, set, args...)
}

func judged(t testing.TB, judge decide, set func(*relay.Bounds), args ...string) *system {
	t.Helper()
	s, err := config.Process().Parse(append([]string{"--domain=git.example.com", "--bind-address=127.0.0.1:0", "--nats-listen=none",
		"--database-backend=memory", "--events-per-minute-per-ip=1000000"}, args...))
	must(t, err)
	// However little time the gateway has to stop, the node around it has enough.
	front, bounds := s, relay.DefaultBounds
	if bounds.GitWait = 0; set != nil {
		set(&bounds)
	}
	s.ShutdownWait = patience
	h := listenToLog()
	n, err := node.Open(context.Background(), "gateway", s, slog.New(h), false)
	must(t, err)
	sys := &system{Node: n, shards: &holders{}, ended: make(chan error, 1), warnings: h.warnings, met: h.met}
	ctx, cancel := context.WithCancel(context.Background())
	gatewayCtx, stop := context.WithCancel(ctx)
	sys.stop = stop
	var others sync.WaitGroup
	done := make(chan error, 1)
	go func() {
		done <- n.Run(ctx, node.Service{Name: "gateway", Run: func(ctx context.Context, n *node.Node) error {
			context.AfterFunc(ctx, stop)
			n.Settings = front
			ingest, err := candidates.New(n.Bus.Conn, n.Log)
			if err == nil {
				err = serve(gatewayCtx, n, bounds, sys.shards, ingest, nil)
			}
			sys.ended <- err
			<-ctx.Done()
			return nil
		}})
	}()
	others.Go(func() { sys.write(t, ctx, judge) })
	t.Cleanup(func() {
		cancel()
		others.Wait()
		must(t, errors.Join(<-done, n.Close()))
	})
	select {
	case sys.addr = <-h.address:
	case err := <-sys.ended:
		t.Fatalf("the gateway did not start: %v", err)
	case <-time.After(patience):
		t.Fatal("the gateway does not listen")
	}
	return sys
}

// write stands in for ingest: it appends candidates to the log, one after the other, and tells.
func (sys *system) write(t testing.TB, ctx context.Context, judge decide) {
	consumer, err := sys.Bus.JS.Consumer(ctx, proto.StreamUser, proto.ConsumerUser)
	if err != nil {
		if ctx.Err() == nil { // else the test was quicker
			t.Error(err)
		}
		return
	}
	for ctx.Err() == nil {
		batch, err := consumer.Fetch(100, jetstream.FetchMaxWait(200*time.Millisecond))
		if err != nil {
			return
		}
		for msg := range batch.Messages() {
			var verdicts []proto.Verdict
			for line := range bytes.Lines(msg.Data()) {
				if v := sys.judge(t, ctx, judge, bytes.TrimSpace(line)); v != nil {
					verdicts = append(verdicts, *v)
				}
			}
			data, _ := json.Marshal(proto.Verdicts{Ref: msg.Headers().Get(proto.HeaderRef), Verdicts: verdicts})
			sys.Bus.Conn.Publish(msg.Headers().Get(proto.HeaderReply), data)
			msg.Ack()
		}
	}
}

// judge decides on an event, and appends it to the log if it is accepted. nil: no verdict.
func (sys *system) judge(t testing.TB, ctx context.Context, judge decide, line []byte) *proto.Verdict {
	var ev nostr.Event
	if err := ev.UnmarshalJSON(line); err != nil {
		t.Error(err)
	}
	v := judge(&ev)
	if v == nil {
		return nil
	}
	if v.Outcome == proto.Accepted {
		ack, err := sys.Bus.JS.Publish(ctx, proto.EventSubjectOf(&ev).String(), line)
		if err != nil {
			return nil
		}
		v.Seq = ack.Sequence
	}
	v.ID, v.Kind = ev.ID, ev.Kind
	return v
}

// store appends events to the log in batches, as ingest does, and waits until the index has them.
func (sys *system) store(t testing.TB, events ...*nostr.Event) {
	t.Helper()
	for len(events) > 0 {
		n := min(len(events), 500)
		var msgs []*nats.Msg
		for _, ev := range events[:n] {
			data, err := ev.MarshalJSON()
			must(t, err)
			msgs = append(msgs, &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: data})
		}
		last, err := sys.Bus.PublishBatch(t.Context(), msgs, nil)
		must(t, err)
		must(t, sys.Index.WaitFor(t.Context(), last))
		events = events[n:]
	}
}

// fake is an event that no one has signed, unless indexes check who has; only the log's readers
// ever see it.
func fake(n, kind int, tags ...nostr.Tag) *nostr.Event {
	ev := &nostr.Event{PubKey: strings.Repeat("a", 64), Kind: kind, CreatedAt: nostr.Timestamp(1_700_000_000 + n), Tags: tags,
		Content: fmt.Sprintf("event %d", n), Sig: strings.Repeat("0", 128)}
	if ev.Tags == nil {
		ev.Tags = nostr.Tags{}
	}
	if ev.ID = ev.GetID(); nostr.KindOf(kind).Decides {
		_ = ev.Sign(strings.Repeat("1", 64)) // a legal key
	}
	return ev
}

func signed(t testing.TB, ev nostr.Event) *nostr.Event {
	t.Helper()
	if ev.CreatedAt == 0 {
		ev.CreatedAt = nostr.Now()
	}
	must(t, ev.Sign(gonostr.GeneratePrivateKey()))
	return &ev
}

// client is a WebSocket that says and hears JSON.
type client struct {
	t  testing.TB
	ws *websocket.Conn
}

func (sys *system) dial(t testing.TB) *client { return sys.from(t, "") }

// from opens a WebSocket as a proxy does for a client.
func (sys *system) from(t testing.TB, address string) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+sys.addr, &websocket.DialOptions{HTTPHeader: http.Header{"X-Forwarded-For": {address}}})
	must(t, err)
	ws.SetReadLimit(-1)
	t.Cleanup(func() { ws.CloseNow() })
	return &client{t: t, ws: ws}
}

func (c *client) say(format string, args ...any) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(c.t, c.ws.Write(ctx, websocket.MessageText, fmt.Appendf(nil, format, args...)))
}

func (c *client) hear() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, data, err := c.ws.Read(ctx)
	return string(data), err
}

// want hears one message that begins so.
func (c *client) want(prefix string) string {
	c.t.Helper()
	got, err := c.hear()
	if err != nil || !strings.HasPrefix(got, prefix) {
		c.t.Fatalf("heard %.300s, %v\nwant %s…", got, err, prefix)
	}
	return got
}

// hears says something and hears one message that begins as wanted.
func (c *client) hears(want, format string, args ...any) string {
	c.t.Helper()
	c.say(format, args...)
	return c.want(want)
}

// events hears events of a subscription until EOSE, and gives their contents.
func (c *client) events(id string) (contents []string) {
	c.t.Helper()
	for {
		got, err := c.hear()
		must(c.t, err)
		if strings.HasPrefix(got, `["EOSE","`+id+`"]`) {
			return contents
		}
		contents = append(contents, c.content(id, got))
	}
}

func (c *client) content(id, got string) string {
	c.t.Helper()
	env, ok := parse(got).(*gonostr.EventEnvelope)
	if !ok || env.SubscriptionID == nil || *env.SubscriptionID != id {
		c.t.Fatalf("heard %.300s, want an event for %s", got, id)
	}
	return env.Event.Content
}

// closed hears until the connection is closed and gives the code.
func (c *client) closed() websocket.StatusCode {
	c.t.Helper()
	for {
		if _, err := c.hear(); err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				c.t.Fatal("the connection is not closed")
			}
			return websocket.CloseStatus(err)
		}
	}
}

// parse reads a message of the relay; nil if it is none that go-nostr knows.
func parse(got string) gonostr.Envelope {
	env, err := gonostr.NewMessageParser().ParseMessage(got)
	if err != nil {
		return nil
	}
	return env
}
