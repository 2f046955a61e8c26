package session_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// slow is a relay on a real socket that does late what it is asked, and gets new events at the
// worst moments: when a message has come, just before it is heeded, and just after.
type slow struct {
	t       *testing.T
	late    func(m gonostr.Envelope) time.Duration // how long each message waits; nil: all wait as long, and are heeded in order
	refuses func(n int) bool                       // whether the nth REQ is answered with CLOSED; nil: none is
	repos   []string                               // issues come for them
	message sync.WaitGroup

	mu     sync.Mutex
	ws     *websocket.Conn
	open   map[string]nostr.Filters
	stored []*nostr.Event // newest first
	quiet  bool           // no more events
	reqs   int
	closes int // CLOSEs of live subscriptions
}

const lateness = 40 * time.Millisecond

func (r *slow) serve(w http.ResponseWriter, req *http.Request) {
	ws, err := websocket.Accept(w, req, nil)
	if err != nil {
		return
	}
	ws.SetReadLimit(1 << 20)
	r.mu.Lock()
	r.ws = ws
	r.mu.Unlock()
	type waiting struct {
		m   gonostr.Envelope
		due time.Time
	}
	queue := make(chan waiting, 1000)
	defer r.message.Wait()
	defer close(queue)
	r.message.Go(func() {
		for next := range queue {
			time.Sleep(time.Until(next.due))
			r.heed(next.m)
		}
	})
	parser := gonostr.NewMessageParser()
	for {
		_, data, err := ws.Read(context.Background())
		if err != nil {
			return
		}
		m, err := parser.ParseMessage(string(data))
		if err != nil {
			r.t.Errorf("%s: %v", data, err)
			return
		}
		r.publish()
		if r.late == nil {
			queue <- waiting{m, time.Now().Add(lateness)}
			continue
		}
		r.message.Go(func() {
			time.Sleep(r.late(m))
			r.heed(m)
		})
	}
}

// publish takes in one new issue for each repository and tells it to who has asked for it.
func (r *slow) publish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.quiet {
		return
	}
	for _, repo := range r.repos {
		ev := &nostr.Event{Kind: 1621, CreatedAt: nostr.Now(), Tags: nostr.Tags{{"a", repo}}, Content: fmt.Sprint(len(r.stored))}
		if err := ev.Sign(key); err != nil {
			r.t.Error(err)
		}
		r.stored = slices.Insert(r.stored, 0, ev)
		for sub, filters := range r.open {
			if filters.Match(ev) {
				r.send(gonostr.EventEnvelope{SubscriptionID: &sub, Event: *ev})
			}
		}
	}
}

func (r *slow) send(m json.Marshaler) {
	data, err := m.MarshalJSON()
	if err != nil {
		r.t.Error(err)
	}
	r.ws.Write(context.Background(), websocket.MessageText, data) // the session may have gone
}

// heed does what a message asks for.
func (r *slow) heed(m gonostr.Envelope) {
	r.publish()
	defer r.publish()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch m := m.(type) {
	case *gonostr.CloseEnvelope:
		if filters := r.open[string(*m)]; len(filters) > 0 && filters[0].LimitZero {
			r.closes++
		}
		delete(r.open, string(*m))
	case *gonostr.ReqEnvelope:
		if r.reqs++; r.refuses != nil && r.refuses(r.reqs) {
			delete(r.open, m.SubscriptionID)
			r.send(gonostr.ClosedEnvelope{SubscriptionID: m.SubscriptionID, Reason: "rate-limited: slow down"})
			return
		}
		r.open[m.SubscriptionID] = m.Filters
		for _, f := range m.Filters {
			n := 0
			for _, ev := range r.stored {
				if !f.LimitZero && f.Matches(ev) && n < f.Limit {
					r.send(gonostr.EventEnvelope{SubscriptionID: &m.SubscriptionID, Event: *ev})
					n++
				}
			}
		}
		r.send(gonostr.EOSEEnvelope(m.SubscriptionID))
	}
}

// TestNothingIsLostAtSlowRelays: however late, and in whatever order, a relay does what it is
// asked, and however often it refuses at first, every event comes while live subscriptions grow and
// are consolidated.
func TestNothingIsLostAtSlowRelays(t *testing.T) {
	t.Parallel()
	const steps = 12
	for name, r := range map[string]*slow{
		"late": {},
		"out of order": {late: func(m gonostr.Envelope) time.Duration {
			switch m := m.(type) {
			case *gonostr.CloseEnvelope:
				return 0
			case *gonostr.ReqEnvelope:
				if !m.Filters[0].LimitZero {
					return lateness / 4
				}
			}
			return lateness
		}},
		"refuses at first":      {refuses: func(n int) bool { return n <= 6 }},
		"refuses now and again": {refuses: func(n int) bool { return n%7 == 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r.t, r.open, r.repos = t, map[string]nostr.Filters{}, []string{"30617:aa:000", fmt.Sprintf("30617:aa:%03d", steps-1)}
			p := slowly(t, r)
			for n := 1; n <= steps; n++ {
				p.wanted <- session.Wanted{Items: manyRepos(0, n), Mark: session.Mark{Target: uint64(n)}}
				if n > 2 { // and the first ones at once
					p.await("the relay is asked for more", func() bool {
						return len(p.statuses) > 0 && p.statuses[len(p.statuses)-1].Confirmed.Target == uint64(n)
					})
				}
			}
			r.mu.Lock()
			r.quiet = true
			published, closes := len(r.stored), r.closes
			r.mu.Unlock()
			missing := published
			defer func() { t.Logf("%d of %d events are missing", missing, published) }()
			p.await("every event comes", func() bool {
				missing = published - len(p.accepted)
				return missing == 0
			})
			if closes < 2 {
				t.Errorf("%d live subscriptions were closed, so nothing was consolidated", closes)
			}
		})
	}
}

// slowly is a play whose relay is r, behind a socket.
func slowly(t *testing.T, r *slow) *play {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(server.Close)
	conn, err := wire.Dial(t.Context(), netguard.New(netguard.Options{AllowPrivate: true}), "ws"+strings.TrimPrefix(server.URL, "http"), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlay(t)
	p.session.Asker = conn
	p.session.Rules.PageLimit, p.session.Rules.Cooldown = 5000, 2*lateness
	ctx, end := context.WithCancel(context.Background())
	go p.aim(ctx)
	go func() { p.done <- p.session.Run(ctx, session.Start{}, p.messages, p.changed, p.daily) }()
	read := make(chan error, 1)
	go func() {
		read <- conn.Read(ctx, func(m wire.Message) error {
			select {
			case p.messages <- m:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		end()
		<-read
		if err := <-p.done; err != nil {
			t.Error(err)
		}
	})
	return p
}

// await waits until something holds.
func (p *play) await(what string, holds func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Millisecond) {
		var yes bool
		p.with(func() { yes = holds() })
		if yes {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("not in time: %s", what)
		}
	}
}
