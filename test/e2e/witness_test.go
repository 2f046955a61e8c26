package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/world"
)

// entry is an event of the log.
type entry struct {
	*nostr.Event
	seq uint64
}

// visit is what a subscriber got of one REQ until the connection ended.
type visit struct {
	gateway string
	filter  nostr.Filter // without a limit that matters
	ids     []string     // in the order in which they came
	stored  bool         // all stored events had come
}

// unfaithful says what is wrong with a visit: an event came twice, or is not in the log or not what
// was asked for, or one is missing that stands in the log before another that came.
func unfaithful(v visit, log map[string]entry) (wrong []string) {
	came, reach := map[string]bool{}, uint64(0)
	for _, id := range v.ids {
		e, accepted := log[id]
		switch {
		case came[id]:
			wrong = append(wrong, fmt.Sprintf("%s sent %s twice", v.gateway, id))
		case !accepted:
			wrong = append(wrong, fmt.Sprintf("%s sent %s, which is not in the log", v.gateway, id))
		case !v.filter.Matches(e.Event):
			wrong = append(wrong, fmt.Sprintf("%s sent %s, which was not asked for", v.gateway, id))
		}
		came[id], reach = true, max(reach, e.seq)
	}
	if !v.stored {
		return wrong // newest first: what is missing at the end was still to come
	}
	for id, e := range log {
		if e.seq <= reach && !came[id] && v.filter.Matches(e.Event) {
			wrong = append(wrong, fmt.Sprintf("%s sent what stands at %d in the log, and not %s at %d", v.gateway, reach, id, e.seq))
		}
	}
	return wrong
}

// subscriber asks a gateway for events and then listens, and asks again when the connection has
// ended, or after a while: for everything and for what is new by turns.
type subscriber struct {
	t       *testing.T
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

func subscribe(t *testing.T, gateway string, filter nostr.Filter, where func() (string, bool)) *subscriber {
	ctx, cut := context.WithCancel(context.Background())
	s := &subscriber{t: t, gateway: gateway, where: where, filter: filter, cut: cut, done: make(chan struct{})}
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
	ws, err := world.TryDial(s.t, world.RelayAt(url))
	if err != nil {
		return false
	}
	defer context.AfterFunc(ctx, ws.Close)()
	defer ws.Close()
	if ws.TrySend("REQ", "all", f) != nil {
		return false
	}
	v := visit{gateway: s.gateway, filter: f}
	for {
		m, err := ws.TryNext()
		if err != nil || m[0] == "CLOSED" {
			break
		}
		switch m[0] {
		case "EOSE":
			v.stored = true
		case "EVENT":
			v.ids = append(v.ids, world.EventID(m))
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

// readLog reads events of the log, in its order.
func readLog(t *testing.T, js jetstream.JetStream, subjects string) (events []*nostr.Event, seqs []uint64) {
	t.Helper()
	err := bus.Read(world.Context(t), js, bus.Reading{Stream: proto.StreamEvents, Filter: subjects}, func(m bus.Message) {
		ev := &nostr.Event{}
		if err := ev.UnmarshalJSON(m.Data); err != nil {
			t.Error(err)
		}
		events, seqs = append(events, ev), append(seqs, m.Seq)
	})
	must(t, err)
	return events, seqs
}
