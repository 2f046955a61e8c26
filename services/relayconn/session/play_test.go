package session_test

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// play is a relay, an ingest and an observer, as one session sees them.
type play struct {
	t        *testing.T
	messages chan wire.Message
	changed  chan struct{}
	daily    chan time.Time
	session  *session.Session
	ctx      context.Context // of the session that runs
	end      context.CancelFunc
	done     chan error

	sync.Mutex
	asked    map[string][]nostr.Filter // open at the relay
	log      []string                  // names of requests
	offered  []candidates.Candidate
	hold     bool // verdicts are held back
	held     []func()
	fail     error
	over     string // whose budget is used up
	later    string // or what else ingest says until retry
	asksFor  []nostr.Filter
	retry    time.Time // ingest takes no more of the relay before
	statuses []session.Status
	judged   []string       // source, and whether it was a gap
	stored   []*nostr.Event // what the relay has
	mute     bool           // the relay answers no historic request
	deaf     bool           // and no live one
	adds     []wire.Message // what the relay says behind an answer
	accepted map[string]bool
	notTaken map[string]int
	refusals map[string]int
	current  session.Wanted
}

// with changes or looks at the play.
func (p *play) with(fn func()) {
	p.Lock()
	defer p.Unlock()
	fn()
}

func (p *play) muted(is bool) { p.with(func() { p.mute = is }) }

func (p *play) deafened(is bool) { p.with(func() { p.deaf = is }) }

func (p *play) holds(is bool) { p.with(func() { p.hold = is }) }

func (p *play) count() (asked, offered int) {
	p.Lock()
	defer p.Unlock()
	return len(p.log), len(p.offered)
}

func (p *play) offer(i int) candidates.Candidate {
	p.Lock()
	defer p.Unlock()
	return p.offered[i]
}

func (p *play) Req(sub string, filters []nostr.Filter) {
	p.Lock()
	defer p.Unlock()
	p.asked[sub] = filters
	p.log, p.asksFor = append(p.log, sub), append(p.asksFor, filters...)
	if p.mute && !filters[0].LimitZero || p.deaf && filters[0].LimitZero {
		return
	}
	var answer []wire.Message
	for _, f := range filters {
		n := 0
		for _, ev := range p.stored {
			if f.Matches(ev) && n < f.Limit {
				answer = append(answer, wire.Message{Kind: wire.Event, Sub: sub, Event: ev})
				n++
			}
		}
	}
	go p.say(p.ctx, append(append(answer, wire.Message{Kind: wire.EOSE, Sub: sub}), p.adds...)...)
}

// say has the relay say something, as long as the connection stands.
func (p *play) say(ctx context.Context, messages ...wire.Message) {
	for _, m := range messages {
		select {
		case p.messages <- m:
		case <-ctx.Done():
			return
		}
	}
}

// sleep waits, and then until nothing more happens.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (p *play) Unsubscribe(sub string) { p.with(func() { delete(p.asked, sub) }) }

func (p *play) NegOpen(string, nostr.Filter, []byte) {}
func (p *play) NegMsg(string, []byte)                {}
func (p *play) NegClose(string)                      {}

func (p *play) Offer(_ context.Context, c candidates.Candidate) error {
	p.Lock()
	defer p.Unlock()
	p.offered = append(p.offered, c)
	err, budget := p.fail, time.Now().Before(p.retry)
	answer := func() {
		if budget {
			c.Done(proto.Verdict{ID: c.Event.ID, Outcome: proto.Rejected, Retry: true, RetryAt: p.retry.Unix(), Message: cmp.Or(p.later, "rate-limited: this "+p.over+" has stored as much as it may today")}, &candidates.Later{Until: p.retry})
			return
		}
		p.with(func() { p.accepted[c.Event.ID] = err == nil })
		c.Done(proto.Verdict{ID: c.Event.ID, Outcome: proto.Accepted}, err)
	}
	if p.hold {
		p.held = append(p.held, answer)
	} else {
		go answer()
	}
	return nil
}

// Has implements intake.Store.
func (p *play) Has(_ context.Context, ids [][32]byte) (has []bool, err error) {
	p.Lock()
	defer p.Unlock()
	for _, id := range ids {
		has = append(has, p.accepted[hex.EncodeToString(id[:])])
	}
	return has, nil
}

func (p *play) Status(s session.Status) {
	p.Lock()
	defer p.Unlock()
	p.statuses = append(p.statuses, s)
}

func (p *play) Judged(_ *nostr.Event, source proto.Source, gap bool, _ proto.Verdict) {
	p.Lock()
	defer p.Unlock()
	told := string(source)
	if gap {
		told += " gap"
	}
	p.judged = append(p.judged, told)
}

func (p *play) NotTaken(reason string) { p.with(func() { p.notTaken[reason]++ }) }

func (p *play) Refused(category string) { p.with(func() { p.refusals[category]++ }) }

func (p *play) status() session.Status {
	p.Lock()
	defer p.Unlock()
	return p.statuses[len(p.statuses)-1]
}

// complete sees that the relay is in step with what was wanted at a time.
func (p *play) complete(target uint64) {
	p.t.Helper()
	if st := p.status(); st.Connection != session.Connected || !st.CaughtUp || st.Confirmed.Target != target {
		p.t.Errorf("in the end %+v", st)
	}
}

// lives sees that so many live filters are open, and came that so many events have come.
func (p *play) lives(n int) {
	p.t.Helper()
	if got := len(p.open(true)); got != n {
		p.t.Errorf("%d live filters, want %d", got, n)
	}
}

func (p *play) came(n int) {
	p.t.Helper()
	if _, got := p.count(); got != n {
		p.t.Errorf("%d events were offered, want %d", got, n)
	}
}

// open returns the filters of live (limit 0) or historic subscriptions that are open.
func (p *play) open(live bool) []nostr.Filter {
	p.Lock()
	defer p.Unlock()
	var out []nostr.Filter
	for _, filters := range p.asked {
		if filters[0].LimitZero == live {
			out = append(out, filters...)
		}
	}
	return out
}

var rules = session.Rules{PageLimit: 3, AtOnce: 4, MaxFilters: 12, Calm: 6 * time.Second, Silence: time.Minute, ConsolidateWait: time.Minute, Cooldown: 65 * time.Second}

func newPlay(t *testing.T) *play {
	p := &play{t: t, messages: make(chan wire.Message), changed: make(chan struct{}), daily: make(chan time.Time), asked: map[string][]nostr.Filter{}, accepted: map[string]bool{}, notTaken: map[string]int{}, refusals: map[string]int{}, done: make(chan error, 1)}
	in := intake.New(intake.Options{Offerer: p, Stored: p})
	go in.Run(t.Context())
	p.session = session.New(session.Options{
		Rules: rules, Asker: p, Wanted: func() (w session.Wanted) { p.with(func() { w = p.current }); return w }, Intake: in.Open("wss://r.example.com"), Observer: p, Log: slog.New(slog.DiscardHandler), Warned: map[string]bool{}, Pauses: &session.Pauses{},
	})
	return p
}

// bubble runs a test with a play, in a bubble of its own time, beside others. The session ends with
// it, unless it has ended before.
func bubble(t *testing.T, test func(t *testing.T, p *play)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		test(t, p)
		p.stop()
	})
}

// asks counts requests for the past.
func (p *play) asks() (n int) {
	p.with(func() { n = strings.Count(strings.Join(p.log, " "), "h") })
	return n
}

// latest is the name that was asked for last.
func (p *play) latest() (sub string) {
	p.with(func() { sub = p.log[len(p.log)-1] })
	return sub
}

// issues are of one repository, a minute apart, the newest first and of now.
func issues(repo string, n int) (events []*nostr.Event) {
	for i := range n {
		events = append(events, issue(nostr.Now()-nostr.Timestamp(60*i), repo))
	}
	return events
}

// pastAsked returns the REQs of the past that are open, by name.
func (p *play) pastAsked() (asked map[string][]nostr.Filter) {
	p.with(func() { asked = maps.Clone(p.asked) })
	maps.DeleteFunc(asked, func(_ string, filters []nostr.Filter) bool { return filters[0].LimitZero })
	return asked
}

// listens are the live subscriptions on which an event comes.
func (p *play) listens(ev *nostr.Event) (subs []string) {
	p.with(func() {
		for sub, filters := range p.asked {
			if slices.ContainsFunc(filters, func(f nostr.Filter) bool { return f.LimitZero && f.Matches(ev) }) {
				subs = append(subs, sub)
			}
		}
	})
	return subs
}

// published tells to how many live subscriptions a new issue of a repository is sent.
func (p *play) published(repo string) int {
	ev := issue(nostr.Now(), repo)
	subs := p.listens(ev)
	for _, sub := range subs {
		p.sends(sub, ev)
	}
	synctest.Wait()
	return len(subs)
}

// withoutRoom is the last one of the first n repositories of which what quotes it is not live; "":
// all is.
func (p *play) withoutRoom(n int) string {
	for i := n - 1; i >= 0; i-- {
		repo := fmt.Sprintf("30617:aa:%03d", i)
		if len(p.listens(&nostr.Event{Kind: 1621, CreatedAt: nostr.Now(), Tags: nostr.Tags{{"q", repo}}})) == 0 {
			return repo
		}
	}
	return ""
}

func logTo(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// release ends what is held back, all with one error.
func (p *play) release(err error) {
	var held []candidates.Candidate
	p.with(func() { held, p.held = slices.Clone(p.offered[len(p.offered)-len(p.held):]), nil })
	for _, c := range held {
		c.Done(proto.Verdict{ID: c.Event.ID}, err)
	}
}

// closeHistoric closes every historic request that is open, and reports how many those were.
func (p *play) closeHistoric(reason string) int {
	open := p.pastAsked()
	for sub := range open {
		p.with(func() { delete(p.asked, sub) })
		p.closed(sub, reason)
	}
	return len(open)
}

// each runs a test with a play for each row of a table.
func each[T any](t *testing.T, rows map[string]T, test func(t *testing.T, p *play, row T)) {
	t.Parallel()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) { bubble(t, func(t *testing.T, p *play) { test(t, p, row) }) })
	}
}

// begin is a fresh start, and wants has the first repositories wanted.
func (p *play) begin() { p.run(session.Start{}) }

func (p *play) wants(n int) { p.want(uint64(n), manyRepos(0, n)) }

// What the relay says.
func (p *play) sends(sub string, events ...*nostr.Event) {
	for _, ev := range events {
		p.messages <- wire.Message{Kind: wire.Event, Sub: sub, Event: ev}
	}
}

func (p *play) eose(sub string) { p.messages <- wire.Message{Kind: wire.EOSE, Sub: sub} }

func (p *play) notice(text string) { p.messages <- wire.Message{Kind: wire.Notice, Reason: text} }

func (p *play) closed(sub, reason string) {
	p.messages <- wire.Message{Kind: wire.Closed, Sub: sub, Reason: reason}
	synctest.Wait()
}

func (p *play) run(start session.Start) {
	ctx, end := context.WithCancel(p.t.Context())
	p.ctx, p.end = ctx, end
	go func() { p.done <- p.session.Run(ctx, start, p.messages, p.changed, p.daily) }()
	synctest.Wait()
}

func (p *play) want(revision uint64, what session.Set) {
	p.with(func() { p.current = session.Wanted{Items: what, Mark: session.Mark{Target: revision}} })
	p.changed <- struct{}{}
	synctest.Wait()
}

func (p *play) stop() {
	if p.end == nil {
		return
	}
	p.end()
	if err := <-p.done; err != nil {
		p.t.Errorf("the session ends with %v", err)
	}
	p.end = nil
}

func event(kind int, at nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
	ev := &nostr.Event{Kind: kind, CreatedAt: at, Tags: tags, Content: fmt.Sprint(at)}
	if err := ev.Sign(key); err != nil {
		panic(err)
	}
	return ev
}

// issue is one of a repository.
func issue(at nostr.Timestamp, repo string) *nostr.Event {
	return event(1621, at, nostr.Tag{"a", repo})
}

func repos(refs ...string) session.Set {
	return session.Set{Full: slices.Compact(slices.Sorted(slices.Values(refs)))}
}

func manyRepos(from, to int) session.Set {
	var refs []string
	for i := from; i < to; i++ {
		refs = append(refs, fmt.Sprintf("30617:aa:%03d", i))
	}
	return repos(refs...)
}
