package bench

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// pair is two Tendrils of which the second follows the first, and a person whose repository both
// serve.
type pair struct {
	first  *world.Tendril
	second *play
	who    *fixture.Person
	repo   string // that events are about
	kind   int    // of these events
}

const (
	home      = "home" // the repository
	ephemeral = 29846  // CI secrets travel so
)

// newPair starts both, the second with a source whose events it syncs too if cold.
func newPair(t *testing.T, s *stage, cold bool) *pair {
	at := freeAddress(t)
	p := &pair{who: fixture.NewPerson(), repo: home, kind: nostr.KindIssue}
	p.first = world.Start(t, settings(map[string]string{"NGIT_DOMAIN": at, "NGIT_BIND_ADDRESS": at}))
	more := map[string]string{}
	spec := s.spec(*eventCount)
	spec.Bare = true
	f := s.source(t, spec, 1)
	bootstrap := []string{p.first.Relay()}
	if cold {
		bootstrap = append(bootstrap, f.Relays[0])
	}
	more["NGIT_SYNC_BOOTSTRAP_RELAY_URL"] = strings.Join(bootstrap, ",")
	// Both are listed. The first is its own domain, and the second is a domain that does not
	// resolves.
	clone := "http://" + at + "/" + p.who.Npub + "/" + home + ".git"
	p.first.Accepts(p.who.Announce(home, clone, "ws://"+at), p.who.State(home, s.work.Refs()))
	s.work.Git("push", "-q", clone, "main")
	if cold { // not before everything is ready
		must(t, f.Shut(true))
	}
	p.second = &play{Tendril: world.Start(t, settings(more)), feed: f, total: spec.Size()}
	return p
}

// freeAddress is an address of this machine that nothing listens on at the moment.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// ready waits until events come through live.
func (p *pair) ready(t *testing.T) {
	first := p.issue(0)
	p.first.Accepts(first)
	p.second.Serves(first)
}

func (p *pair) issue(n int) *nostr.Event {
	return p.who.Sign(p.kind, fmt.Sprint("event ", n, " of ", time.Now().UnixNano()), p.who.Repo(p.repo))
}

// liveLatency measures how long it takes from the moment an event is sent to one Tendril until a
// subscriber of another has it: two durable commits.
func liveLatency(t *testing.T, s *stage) {
	quiet := newPair(t, s, false)
	quiet.ready(t)
	for _, c := range []struct {
		rate   int
		during time.Duration
		target time.Duration
	}{{50, 15 * time.Second, 8 * time.Millisecond}, {1000, 10 * time.Second, 25 * time.Millisecond}} {
		n := int(c.during.Seconds()) * c.rate
		d := quiet.publish(t, c.rate, quiet.issues(n), t.Context())
		s.add(fmt.Sprintf("live event from one Tendril to another, %d/s", c.rate), d.String(), fmt.Sprintf("p99 ≤ %v", c.target), s.limits.String())
	}
	const rate = 50
	for _, kind := range []int{nostr.KindIssue, ephemeral} {
		within := &pair{first: quiet.first, second: &play{Tendril: quiet.first}, who: quiet.who, repo: home, kind: kind}
		d := within.publish(t, rate, within.issues(5*rate), t.Context())
		s.add(fmt.Sprintf("live event of kind %d within one Tendril, %d/s", kind, rate), d.String(), "", "")
	}
	for _, p := range []*world.Tendril{quiet.first, quiet.second.Tendril} {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}

	busy := newPair(t, s, true)
	busy.ready(t)
	issues := busy.issues(rate * int(longest.Seconds()))
	syncing, over := context.WithCancel(t.Context())
	var r result
	var running sync.WaitGroup
	running.Go(func() {
		defer over()
		r = busy.second.sync(t, s, "live")
	})
	must(t, busy.second.feed.Shut(false))
	d := busy.publish(t, rate, issues, syncing)
	running.Wait()
	s.add(fmt.Sprintf("… 50/s during a cold sync of %d, which heals comments", busy.second.total), d.String(), "p99 ≤ 60ms",
		fmt.Sprintf("synced meanwhile at %.0f events/s", r.rate(busy.second.total)))
}

// delays are how long events took, in order.
type delays []time.Duration

func (d delays) at(share float64) time.Duration { return d[min(len(d)-1, int(share*float64(len(d))))] }

func (d delays) String() string {
	if len(d) == 0 {
		return "no event"
	}
	return fmt.Sprintf("p50 %.1f ms, p90 %.1f ms, p99 %.1f ms, most %.1f ms, of %d", ms(d.at(0.5)), ms(d.at(0.9)), ms(d.at(0.99)), ms(d[len(d)-1]), len(d))
}

// issues signs events beforehand.
func (p *pair) issues(n int) []*nostr.Event {
	events := make([]*nostr.Event, n)
	for i := range events {
		events[i] = p.issue(i)
	}
	return events
}

// publish sends events at a rate until ctx ends or all are sent, and returns how long each took
// from the moment when it was due to be sent.
func (p *pair) publish(t *testing.T, rate int, issues []*nostr.Event, ctx context.Context) delays {
	t.Helper()
	subscriber, publisher := dial(t, p.second.Relay()), dial(t, p.first.Relay())
	must(t, subscriber.send(ws.OpText, fmt.Appendf(nil, `["REQ","live",{"kinds":[%d],"#a":[%q],"limit":0}]`, p.kind, p.who.Address(p.repo))))
	if err := subscriber.next(); err != nil || !bytes.HasPrefix(subscriber.text, []byte(`["EOSE"`)) {
		t.Fatalf("subscribed: %.200s, %v", subscriber.text, err)
	}
	n := len(issues)
	texts := make([][]byte, n)
	for i, ev := range issues {
		texts[i] = []byte(`["EVENT",` + ev.String() + `]`)
	}
	due, sent := make([]time.Time, n), 0
	arrived := map[string]time.Time{}
	var reading sync.WaitGroup
	answers := drain(t, &reading, publisher, func(text []byte) {
		if !bytes.Contains(text, []byte(`",true,`)) {
			t.Errorf("not accepted: %.200s", text)
		}
	})
	events := drain(t, &reading, subscriber, func(text []byte) {
		_, rest, found := bytes.Cut(text, []byte(`"id":"`))
		if id := fmt.Sprintf("%.64s", rest); !found || !arrived[id].IsZero() {
			t.Errorf("not an event, or once more: %.200s", text)
		} else {
			arrived[id] = time.Now()
		}
	})
	began := time.Now()
	for ; sent < n && ctx.Err() == nil; sent++ {
		due[sent] = began.Add(time.Duration(sent) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(due[sent]))
		must(t, publisher.send(ws.OpText, texts[sent]))
	}
	answers(sent)
	events(sent)
	reading.Wait()
	var d delays
	for i := range sent {
		if at, ok := arrived[issues[i].ID]; ok {
			d = append(d, at.Sub(due[i]))
		}
	}
	if len(d) < sent {
		t.Errorf("%d of %d events did not come", sent-len(d), sent)
	}
	slices.Sort(d)
	return d
}

// lastWait is how long the last events may take.
const lastWait = time.Minute

// drain reads what comes until as many messages have come as expect is told, or for a while after.
func drain(t *testing.T, all *sync.WaitGroup, c *client, each func(text []byte)) (expect func(n int)) {
	var mu sync.Mutex
	come, want := 0, -1
	all.Go(func() {
		for {
			if err := c.next(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if come != want {
					t.Errorf("%d of %d messages came: %v", come, want, err)
				}
				return
			}
			each(c.text)
			mu.Lock()
			come++
			over := come == want
			mu.Unlock()
			if over {
				return
			}
		}
	})
	return func(n int) {
		mu.Lock()
		defer mu.Unlock()
		if want = n; come >= want {
			c.conn.SetReadDeadline(time.Now())
			return
		}
		c.conn.SetReadDeadline(time.Now().Add(lastWait))
	}
}
