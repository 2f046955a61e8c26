package e2e

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/outside"
	"tendril.dev/test/world"
)

// wiretap hears everything on the bus: who asks which events are accepted, what it is told, and
// what relay workers offer to ingest.
type wiretap struct {
	t    *testing.T
	conn *nats.Conn
	sub  *nats.Subscription

	mu      sync.Mutex
	waiting map[string]proto.EventsQuery // by where the answer goes
	replies []reply
	failed  int            // questions that were answered with an error, and asked again
	offered map[string]int // how often, by id
}

func newWiretap(t *testing.T, url string) *wiretap {
	t.Helper()
	conn, err := nats.Connect(url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	w := &wiretap{t: t, conn: conn, waiting: map[string]proto.EventsQuery{}, offered: map[string]int{}}
	// One subscription, so that a question is heard before its answer.
	if w.sub, err = conn.Subscribe(">", w.hear); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.sub.SetPendingLimits(-1, -1), conn.Flush()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *wiretap) hear(m *nats.Msg) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var err error
	switch q, isAnswer := w.waiting[m.Subject]; {
	case isAnswer:
		delete(w.waiting, m.Subject)
		err = w.answer(m, q)
	case m.Subject == proto.SubjectQueryEvents:
		var q proto.EventsQuery
		if err = json.Unmarshal(m.Data, &q); q.IDsOnly && len(q.Filter.IDs) > 0 { // which of these are known
			w.waiting[m.Reply] = q
		}
	case strings.HasPrefix(m.Subject, "grasp.candidate.sync.") && !strings.HasPrefix(m.Reply, "$JS.ACK."): // else ingest is given it
		err = w.offer(m)
	}
	if err != nil {
		w.t.Errorf("heard on %s: %v", m.Subject, err)
	}
}

func (w *wiretap) answer(m *nats.Msg, q proto.EventsQuery) error {
	if m.Header.Get(micro.ErrorCodeHeader) != "" || m.Header.Get("Status") != "" { // the latter: no service is there
		w.failed++
		return nil
	}
	var a proto.EventsAnswer
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return err
	}
	r := reply{asker: m.Subject[:strings.LastIndex(m.Subject, ".")], asked: q.Seq, at: a.Seq}
	found := map[string]bool{}
	for id := range slices.Chunk(a.IDs, 32) {
		found[hex.EncodeToString(id)] = true
	}
	for _, id := range q.Filter.IDs {
		r.ids = append(r.ids, id)
		r.known = append(r.known, found[id])
	}
	w.replies = append(w.replies, r)
	return nil
}

func (w *wiretap) offer(m *nats.Msg) error {
	lines, err := proto.SplitPack(m.Data)
	if err != nil {
		return err
	}
	for _, line := range lines {
		var ev struct{ ID string }
		if err := json.Unmarshal(line, &ev); err != nil {
			return err
		}
		w.offered[ev.ID]++
	}
	return nil
}

// end stops listening. The test fails if something was not heard.
func (w *wiretap) end() {
	w.t.Helper()
	if err := w.conn.Flush(); err != nil {
		w.t.Error(err)
	}
	world.Await(w.t, "everything on the bus is heard", func() bool {
		left, _, err := w.sub.Pending()
		return err != nil || left == 0
	})
	if lost, err := w.sub.Dropped(); lost > 0 || err != nil || w.conn.Stats().Reconnects > 0 {
		w.t.Errorf("%d messages were not heard, %d connections were lost, %v", lost, w.conn.Stats().Reconnects, err)
	}
	if err := w.sub.Unsubscribe(); err != nil {
		w.t.Error(err)
	}
}

// subscriber asks a gateway for events and then listens, and asks again when the connection has
// ended, or after a while: for everything and for what is new by turns.
type subscriber struct {
	gateway string
	where   func() (url string, ok bool) // of the process that is the gateway now
	filter  nostr.Filter
	cut     context.CancelFunc
	done    chan struct{}

	visits []visit
}

// stay is how long a subscriber listens on one connection at most, but for every fourth.
const stay = time.Second

// overlap is how far a subscriber asks back behind what it asked for at last.
const overlap = 10 * time.Second

func subscribe(gateway string, filter nostr.Filter, where func() (string, bool)) *subscriber {
	ctx, cut := context.WithCancel(context.Background())
	s := &subscriber{gateway: gateway, where: where, filter: filter, cut: cut, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for n := 0; ctx.Err() == nil; n++ {
			f := s.filter
			if n%2 == 1 {
				since := nostr.Timestamp(time.Now().Add(-overlap).Unix())
				f.Since = &since
			}
			visit, leave := context.WithCancel(ctx)
			if n%4 != 3 {
				visit, leave = context.WithTimeout(ctx, rand.N(stay))
			}
			if !s.visit(visit, f) {
				n-- // no service was there
			}
			leave()
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	return s
}

// visit asks once, and reports whether there was a gateway.
func (s *subscriber) visit(ctx context.Context, f nostr.Filter) bool {
	url, ok := s.where()
	if !ok {
		return false
	}
	ws, err := outside.Dial(ctx, world.RelayAt(url), nil)
	if err != nil {
		return false
	}
	defer ws.Close()
	if ws.Send(ctx, "REQ", "all", f) != nil {
		return false
	}
	v := visit{gateway: s.gateway, filter: f}
	for {
		m, err := ws.Next(ctx)
		if err != nil || len(m) < 2 || string(m[0]) == `"CLOSED"` {
			break
		}
		var ev struct{ ID string }
		switch {
		case string(m[0]) == `"EOSE"`:
			v.stored = true
		case string(m[0]) == `"EVENT"` && len(m) == 3 && json.Unmarshal(m[2], &ev) == nil:
			v.ids = append(v.ids, ev.ID)
		}
	}
	s.visits = append(s.visits, v)
	return true
}

// end hangs up, and gives all visits.
func (s *subscriber) end() []visit {
	s.cut()
	<-s.done
	return s.visits
}

// readLog reads the events of the log.
func readLog(t *testing.T, js jetstream.JetStream) map[string]entry {
	t.Helper()
	consumer, err := js.OrderedConsumer(t.Context(), proto.StreamEvents, jetstream.OrderedConsumerConfig{FilterSubjects: []string{"grasp.event.>"}})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Stop()
	log := map[string]entry{}
	for {
		m, err := messages.Next(jetstream.NextContext(world.Context(t)))
		if err != nil {
			t.Fatal(err)
		}
		meta, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		var ev nostr.Event
		if err := json.Unmarshal(m.Data(), &ev); err != nil {
			t.Fatal(err)
		}
		if first, twice := log[ev.ID]; twice {
			t.Errorf("%s stands in the log at %d and %d", ev.ID, first.seq, meta.Sequence.Stream)
		}
		log[ev.ID] = entry{&ev, meta.Sequence.Stream}
		if meta.NumPending == 0 {
			return log
		}
	}
}
