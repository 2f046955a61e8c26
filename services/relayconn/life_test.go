package relayconn

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/time/rate"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/session"
)

var (
	quiet   = slog.New(slog.DiscardHandler)
	errGone = errors.New("gone")
	noon    = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
)

func after(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }

// open opens a relay's state in a bucket, as a worker does that has claimed the relay.
func open(t *testing.T, b *bus.Bus) *stateKeeper {
	t.Helper()
	kv, err := b.Bucket(t.Context(), proto.BucketRelays)
	must(t, err)
	s := &stateKeeper{js: b.JS, kv: kv, key: "r.example.com", kept: stateKept, log: quiet}
	must(t, s.read(t.Context()))
	return s
}

func put(t *testing.T, s *stateKeeper, worker string, repos int) error {
	t.Helper()
	return s.put(t.Context(), proto.RelayState{Worker: worker, Repos: repos})
}

// newRelayWorker works for a relay of which nothing is wanted. Its state is not kept.
func newRelayWorker(log *slog.Logger) (*relayWorker, *prometheus.Registry) {
	reg := prometheus.NewRegistry()
	rules := Rules{
		Health: health.Rules{Base: 5 * time.Second, Max: time.Hour, Stable: 5 * time.Minute, DeadAfter: 24 * time.Hour, NaughtyFor: 12 * time.Hour},
		Check:  2 * time.Second, ReconnectWindow: 15 * time.Minute, DailyMin: 23 * time.Hour, DailyMax: 25 * time.Hour,
	}
	targets := NewTargets(nil, &world{}, 0, 0, nil, quiet)
	l := &relayWorker{Env: &Env{Rules: rules, Metrics: NewMetrics(reg), Log: log}, name: "r.example.com", lease: context.Background(), log: log, target: targets.Of("r.example.com"), state: &stateKeeper{}}
	l.resume(noon)
	return l, reg
}

// successor takes the claim over, and has confirmed what that has.
func successor(l *relayWorker) *relayWorker {
	next := &relayWorker{Env: l.Env, name: l.name, lease: l.lease, state: l.state, target: l.target, log: quiet, warned: map[string]bool{}, confirmed: session.Set{First: true}}
	next.resume(time.Now())
	return next
}

// takeStatus has the session say how it stands.
func takeStatus(l *relayWorker, st session.Status) (begun bool) {
	l.Status(st)
	return l.takeStatus()
}

// TestStart: what a next connection asks for depends on what the ones before have come to an end
// with, not only on when they were.
func TestStart(t *testing.T) {
	t.Parallel()
	b, confirmed := openBus(t), session.Set{First: true}
	caughtUp := func(l *relayWorker) { l.status.CaughtUp = true; l.markConnected(after(30)) }
	end := func(l *relayWorker, minutes int, st session.Status) {
		l.status = st
		l.ended(t.Context(), after(minutes), errGone)
	}
	whole := session.Status{CaughtUp: true}
	for name, tc := range map[string]struct {
		before func(l *relayWorker)
		at     int // minutes after noon
		since  int // minutes after noon; 0: a fresh start
	}{
		"never connected":               {before: func(l *relayWorker) { l.connected = time.Time{} }, at: 1},
		"away for as long as may be":    {before: func(l *relayWorker) { end(l, 60, whole) }, at: 75, since: 45},
		"away for longer":               {before: func(l *relayWorker) { end(l, 60, whole) }, at: 76},
		"crashed: the last tick counts": {before: caughtUp, at: 40, since: 15},
		"killed while something is missing": {before: func(l *relayWorker) {
			l.status.Missing = after(10)
			l.markConnected(after(30))
		}, at: 31, since: -5},
		"nothing was confirmed":                {before: func(l *relayWorker) { end(l, 60, whole); l.confirmed = session.Set{} }, at: 61},
		"a fresh start with something missing": {before: func(l *relayWorker) { end(l, 60, session.Status{Missing: after(10)}) }, at: 61, since: -5},
		"missing something that was caught up": {before: func(l *relayWorker) { caughtUp(l); end(l, 60, session.Status{Missing: after(40)}) }, at: 61, since: 15},
		"a reconnect that was cut off":         {before: func(l *relayWorker) { end(l, 60, whole); l.start(after(70)); end(l, 80, session.Status{}) }, at: 81, since: 45},
		"a reconnect that caught up":           {before: func(l *relayWorker) { end(l, 60, whole); l.start(after(70)); end(l, 80, whole) }, at: 81, since: 65},
		"a daily start that was cut off": {before: func(l *relayWorker) {
			caughtUp(l)
			takeStatus(l, session.Status{Days: 1})
			end(l, 62, session.Status{Days: 1})
		}, at: 63, since: 47},
	} {
		l, _ := newRelayWorker(quiet)
		l.confirmed, l.state = confirmed, open(t, b)
		tc.before(l)
		connected := l.connected
		got := l.start(after(tc.at))
		if quick := tc.since != 0; (got.Since != nil) != quick || quick && (!got.Since.Time().Equal(after(tc.since)) || !got.Live.Equal(connected)) {
			t.Errorf("%s: %+v, since %v", name, got, got.Since)
		}
	}
}

// TestOtherRules: what was confirmed by other rules is not confirmed by these.
func TestOtherRules(t *testing.T) {
	t.Parallel()
	l, _ := newRelayWorker(quiet)
	for rules, want := range map[string]uint64{l.Hash: 5, "other": 0} {
		l.state.value, l.status = proto.RelayState{Rules: rules, Confirmed: 5, ConfirmedLog: 5}, session.Status{}
		if l.resume(noon); l.status.Confirmed.Target != want || l.status.Confirmed.Log != want {
			t.Errorf("by rules %q: %+v", rules, l.status.Confirmed)
		}
	}
}

// TestNothingIsReadForAFreshStart: what was confirmed long ago is of no use, and is not worked out.
func TestNothingIsReadForAFreshStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, _ := newRelayWorker(quiet) // without a bus to read from
		l.connected, l.status.Confirmed = time.Now().Add(-time.Hour), session.Mark{Target: 1}
		l.target.read = true
		l.target.tell()
		go l.run(t.Context())
		synctest.Wait()
	})
}

// TestWait: bootstrap relays connect at once when they are claimed, the others spread out from then
// on, whenever the process was started, and no relay is tried before its time.
func TestWait(t *testing.T) {
	t.Parallel()
	rules := Rules{Sync: config.Sync{StartupJitterMillis: 10_000}}
	waits := func(h health.Health, now time.Time, first, bootstrap bool) (least, most time.Duration) {
		l := &relayWorker{Env: &Env{Rules: rules, Started: noon.Add(-time.Hour)}, claimed: noon, health: h}
		least = time.Hour
		for range 300 {
			w := l.wait(now, first, bootstrap)
			least, most = min(least, w), max(most, w)
		}
		return least, most
	}
	soon := noon.Add(time.Second)
	if least, most := waits(health.Health{}, soon, true, false); least != 0 || most < 8*time.Second || most >= 9*time.Second {
		t.Errorf("what was claimed a second ago is spread from %v to %v", least, most)
	}
	at := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	for name, tc := range map[string]struct {
		next, limited, now int // seconds after noon
		first, bootstrap   bool
		want               time.Duration
	}{
		"bootstrap":                  {next: 9, now: 1, first: true, bootstrap: true},
		"bootstrap, failed":          {next: 9, bootstrap: true, want: 9},
		"claimed long ago":           {now: 10, first: true},
		"claimed, but not its time":  {next: 30, first: true, want: 30},
		"dropped":                    {now: 1},
		"failed":                     {next: 3, want: 3},
		"wants quiet":                {limited: 1, want: 1},
		"wants quiet, shorter by it": {next: 2, limited: 1, want: 2},
	} {
		h := health.Health{NextAttempt: at(tc.next), Limited: at(tc.limited)}
		if least, most := waits(h, at(tc.now), tc.first, tc.bootstrap); least != tc.want*time.Second || most != least {
			t.Errorf("%s: %v to %v, want %d s", name, least, most, tc.want)
		}
	}
}

// TestTurnsAreWaitedFor: of many relays that are due at once none fails because others are connected
// to first.
func TestTurnsAreWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin, e := time.Now(), &Env{
			Rules: Rules{Health: health.Rules{Base: 5 * time.Second}}, Connects: rate.NewLimiter(rate.Every(connectApart), 1),
			Dial: func(ctx context.Context, _ string) (Connection, error) { return nil, ctx.Err() },
		}
		for n := range 100 {
			go func() {
				if _, err := e.dial(t.Context(), relayURL); err != nil {
					t.Errorf("relay %d of 100: %v", n, err)
				}
			}()
		}
		synctest.Wait()
		time.Sleep(25 * time.Second)
		synctest.Wait()
		if e.Connects.Tokens() < 0 || time.Since(begin) > 26*time.Second {
			t.Error("some are still waiting")
		}
	})
}

// TestDeathIsTold once, as an error, when a day of failures is over and not at the next attempt
// only; and so is the end of the time on the naughty list, as an information.
func TestDeathIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		l, reg := newRelayWorker(slog.New(slog.NewTextHandler(&text, nil)))
		fail := func(err error) {
			l.health = l.health.Failed(time.Now(), err)
			l.pause(t.Context(), l.wait(time.Now(), false, false)+time.Second)
		}
		for begin := time.Now(); time.Since(begin) < 48*time.Hour; {
			fail(errGone)
		}
		if n := strings.Count(text.String(), "level=ERROR"); n != 1 || metric(t, reg, "ngit_sync_relays_dead_total") != 1 {
			t.Errorf("death is told %d times: %s", n, text.String())
		}
		fail(&net.DNSError{IsNotFound: true})
		if n := strings.Count(text.String(), "naughty list is over"); n != 1 {
			t.Errorf("the end of the list is told %d times: %s", n, text.String())
		}
	})
}

// TestWhatASessionSays: an event that is held does not count as served yet; an EOSE ends the row of
// failures, so that the next back-off begins at the base.
func TestWhatASessionSays(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	l, _ := newRelayWorker(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for _, outcome := range []proto.Outcome{proto.Accepted, proto.HeldBack} {
		l.Judged(&nostr.Event{}, proto.SourceLive, false, proto.Verdict{Outcome: outcome})
	}
	if n := testutil.ToFloat64(l.Metrics.synced); n != 1 || strings.Count(text.String(), `level=DEBUG msg="live event"`) != 2 {
		t.Errorf("%v events count as served:\n%s", n, &text)
	}
	l.health.Failures, l.health.Recovering = 9, true
	l.health = l.health.Opened(noon)
	for _, answered := range []bool{false, true} {
		if takeStatus(l, session.Status{Connection: session.Syncing, Answered: answered}); (l.health.Failures == 0) != answered {
			t.Errorf("answered %v, %d failures", answered, l.health.Failures)
		}
	}
	if l.health = l.health.Dropped(after(2), errGone); !l.health.NextAttempt.Equal(after(2).Add(l.Rules.Health.Base)) {
		t.Errorf("the next attempt is at %v", l.health.NextAttempt)
	}
}

// TestDayIsNotForgotten: a daily start that is due stays due until the session has begun it, though
// the connection ends first or another worker takes over. After the lease nothing is written.
func TestDayIsNotForgotten(t *testing.T) {
	t.Parallel()
	l, _ := newRelayWorker(quiet)
	l.state = open(t, openBus(t))
	over, end := context.WithCancel(t.Context())
	end()
	l.lease = over
	if l.ended(over, time.Now(), errGone); l.state.revision != 0 {
		t.Error("the state is written after the lease")
	}
	l.lease = t.Context()
	due := time.Now().Add(-time.Minute).UTC().Round(0)
	l.daily = due
	l.ended(t.Context(), time.Now(), errGone)
	l.Env.Rules.Health.NaughtyFor = 48 * time.Hour
	next := successor(l)
	if start := next.start(time.Now()); start.Since == nil || !next.daily.Equal(due) || !l.daily.Equal(due) || !next.health.Recovering {
		t.Errorf("the successor begins with %+v, due %v, healthy %v", start, next.daily, !next.health.Recovering)
	}
	if takeStatus(next, session.Status{}) || !takeStatus(next, session.Status{Days: 1}) {
		t.Error("it is not told when the day begins")
	}
	next.save(t.Context())
	if at := next.state.value.NextDaily; time.Until(at) < 22*time.Hour || time.Until(at) > 25*time.Hour {
		t.Errorf("after it has begun the next is written to be due at %v", at)
	}
	if next.state.kept != 48*time.Hour {
		t.Errorf("the state is kept for %v, and the relay naughty for longer", next.state.kept)
	}
}

// TestStateIsFenced: a worker that has lost the claim cannot write over its successor, but a worker
// finds back into its own entry. The successor may have been told an older entry than the last. An
// entry that a worker without a claim has left behind is written over at the second try.
func TestStateIsFenced(t *testing.T) {
	t.Parallel()
	nats := openBus(t)
	if _, err := open(t, nats).kv.Put(t.Context(), "r.example.com", []byte(`{"repos":7,"url":5}`)); err != nil {
		t.Fatal(err)
	}
	a, lost := open(t, nats), open(t, nats)
	if a.value != (proto.RelayState{}) {
		t.Errorf("what cannot be read is read as %+v", a.value)
	}
	write := func(s *stateKeeper, worker string, repos int, fenced bool) {
		t.Helper()
		if err := put(t, s, worker, repos); bus.IsConflict(err) != fenced || !fenced && err != nil {
			t.Fatalf("%s writes %d: %v", worker, repos, err)
		}
	}
	write(a, "a", 1, false)
	write(lost, "a", 2, false) // the answer to this was lost
	write(a, "a", 3, false)
	must(t, a.kv.Delete(t.Context(), "r.example.com"))
	write(a, "a", 4, false)
	b := open(t, nats)
	if b.value.Repos != 4 {
		t.Fatalf("the successor reads %+v", b.value)
	}
	write(a, "a", 5, false) // which b was not told of
	write(b, "b", 6, false)
	write(b, "b", 7, false)
	write(a, "a", 8, true)
	if s := open(t, nats); s.value.Repos != 7 || s.value.Worker != "b" {
		t.Fatalf("the entry is %+v", s.value)
	}
	write(b, "b", 9, false)
	write(a, "a", 10, true)
	write(a, "a", 11, false)
}

// TestAStateGoesByItself when it was not written for its time, whether it was new or an update.
func TestAStateGoesByItself(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	for updates := range 2 {
		s := open(t, b)
		s.kept = time.Second
		for n := range updates + 1 {
			must(t, put(t, s, "a", n))
		}
		eventually(t, "it has gone", func() bool {
			_, err := s.kv.Get(t.Context(), "r.example.com")
			return errors.Is(err, jetstream.ErrKeyNotFound)
		})
		if err := put(t, s, "a", 9); err != nil {
			t.Errorf("after it has gone: %v", err)
		}
		must(t, s.kv.Delete(t.Context(), "r.example.com"))
	}
}
