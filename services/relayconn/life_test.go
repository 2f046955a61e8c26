package relayconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/session"
)

var quiet = slog.New(slog.DiscardHandler)

// states is the bucket of states, on a bus of its own.
type states struct {
	jetstream.KeyValue
	js jetstream.JetStream
}

func bucket(t *testing.T) states {
	t.Helper()
	b := openBus(t)
	kv, err := b.Bucket(t.Context(), proto.BucketRelays)
	if err != nil {
		t.Fatal(err)
	}
	return states{kv, b.JS}
}

func open(t *testing.T, kv states) *stateKeeper {
	t.Helper()
	s := &stateKeeper{js: kv.js, kv: kv, key: "r.example.com", kept: 26 * time.Hour, log: quiet}
	if err := s.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, s *stateKeeper, worker string, repos int) error {
	t.Helper()
	return s.put(t.Context(), proto.RelayState{Worker: worker, Repos: repos})
}

// TestUnreadableStateIsNone: it is written over, and does not keep the relay from being synced.
func TestUnreadableStateIsNone(t *testing.T) {
	t.Parallel()
	kv := bucket(t)
	if _, err := kv.Put(t.Context(), "r.example.com", []byte(`{"repos":7,"url":5}`)); err != nil {
		t.Fatal(err)
	}
	s := open(t, kv)
	if s.value != (proto.RelayState{}) {
		t.Errorf("read %+v", s.value)
	}
	if err := put(t, s, "a", 1); err != nil {
		t.Error(err)
	}
}

// newTargets are those of a worker.
func newTargets(js jetstream.JetStream) *Targets {
	return NewTargets(js, &world{Bus: &bus.Bus{JS: js}}, time.Millisecond, make(chan []string, 1), quiet)
}

func newLife(t *testing.T, log *slog.Logger) (*life, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	metrics := NewMetrics(reg)
	rules := Rules{ReconnectWindow: window, Health: health.Rules{Base: 5 * time.Second, Max: time.Hour, Stable: 5 * time.Minute, Dead: 24 * time.Hour, Naughty: 12 * time.Hour}, CheckEvery: 2 * time.Second}
	return &life{Env: &Env{Rules: rules, Metrics: metrics, Log: log}, name: "r.example.com", log: log, target: newTargets(nil).Of("r.example.com"), seen: health.Disconnected, health: health.Health{Rules: rules.Health}, state: &stateKeeper{}}, reg
}

// TestDeathIsTold once, as an error, when a day of failures is over and not at the next attempt
// only; and so is the end of the time on the naughty list, as an information.
func TestDeathIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		l, reg := newLife(t, slog.New(slog.NewTextHandler(&text, nil)))
		for begin := time.Now(); time.Since(begin) < 48*time.Hour; {
			l.health = l.health.Failed(time.Now(), errors.New("no"))
			if err := l.pause(t.Context(), l.wait(time.Now(), false, false)); err != nil {
				t.Fatal(err)
			}
		}
		if n := strings.Count(text.String(), "level=ERROR"); n != 1 {
			t.Errorf("death is told %d times: %s", n, text.String())
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader("# HELP ngit_sync_relays_dead_total Relays that have been failing for a day.\n# TYPE ngit_sync_relays_dead_total gauge\nngit_sync_relays_dead_total 1\n"), "ngit_sync_relays_dead_total"); err != nil {
			t.Error(err)
		}
		text.Reset()
		l.health = health.Health{Rules: l.Rules.Health}.Failed(time.Now(), &net.DNSError{IsNotFound: true})
		if err := l.pause(t.Context(), l.wait(time.Now(), false, false)+time.Minute); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(text.String(), "naughty list is over"); n != 1 {
			t.Errorf("the end of the list is told %d times: %s", n, text.String())
		}
	})
}

// TestLeavingIsNoFailure: a relay that we leave, because we stop or the claim passes on, is not to
// wait for us the longer.
func TestLeavingIsNoFailure(t *testing.T) {
	t.Parallel()
	l, _ := newLife(t, quiet)
	l.state = open(t, bucket(t))
	now := time.Now()
	l.health = health.Health{Rules: l.Rules.Health, Failures: 4}.Opened(now)
	l.target = newTargets(nil).Of("r.example.com")
	l.status = session.Status{Connection: session.Connected, CaughtUp: true, Confirmed: session.Mark{Target: 7, Log: 9}}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	l.ended(ctx, now.Add(time.Second), ctx.Err())
	s := l.state.value
	if s.Failures != 4 || s.NextAttempt.After(now.Add(time.Second)) || s.Confirmed != 7 || s.ConfirmedLog < 9 || s.Connection != 0 || s.CompleteUntil.IsZero() || s.LastError != "" {
		t.Errorf("written: %+v", s)
	}
	next := &life{Env: l.Env, state: l.state, target: l.target, log: quiet}
	next.resume(now.Add(time.Minute))
	next.confirmed = session.Set{First: true}
	if start := next.start(now.Add(time.Minute)); start.Since == nil || start.Mark.Target != 7 {
		t.Errorf("the successor begins with %+v", start)
	}
}

// TestABreachOfProtocolIsTold with how long the relay is left alone for it, like a connection that
// could not be made.
func TestABreachOfProtocolIsTold(t *testing.T) {
	t.Parallel()
	for _, end := range []func(*life, context.Context, time.Time, error){(*life).ended, (*life).failed} {
		var text bytes.Buffer
		l, _ := newLife(t, slog.New(slog.NewTextHandler(&text, nil)))
		l.state = open(t, bucket(t))
		now := time.Now()
		l.health = l.health.Opened(now)
		end(l, t.Context(), now.Add(time.Second), fmt.Errorf("session: %w", &netguard.ProtocolError{Err: errors.New("101 events that it should not have sent")}))
		if s := text.String(); !strings.Contains(s, "again_in=12h0m0s naughty=true cause=protocol") || !strings.Contains(s, "101 events") {
			t.Errorf("told: %s", s)
		}
	}
}

// TestServedEventsAreCounted: an event that is held is not served yet.
func TestServedEventsAreCounted(t *testing.T) {
	t.Parallel()
	l, reg := newLife(t, quiet)
	for _, outcome := range []proto.Outcome{proto.Accepted, proto.HeldBack} {
		l.Judged(&nostr.Event{}, proto.SourceLive, false, proto.Verdict{Outcome: outcome})
	}
	const want = "# HELP ngit_sync_events_synced_total Events from relays that are served now and were not before.\n# TYPE ngit_sync_events_synced_total counter\nngit_sync_events_synced_total 1\n"
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "ngit_sync_events_synced_total"); err != nil {
		t.Error(err)
	}
}

// note has the session say how it stands.
func note(l *life, st session.Status) (begun bool) {
	l.Status(st)
	return l.note()
}

// TestAnAnswerEndsTheFailures, and the next back-off begins at the base.
func TestAnAnswerEndsTheFailures(t *testing.T) {
	t.Parallel()
	l, _ := newLife(t, quiet)
	now := time.Now()
	l.health = health.Health{Rules: l.Rules.Health, Failures: 9, Recovering: true}.Opened(now)
	note(l, session.Status{Connection: session.Syncing})
	if l.health.Failures != 9 {
		t.Errorf("%d failures before the relay has answered", l.health.Failures)
	}
	note(l, session.Status{Connection: session.Syncing, Answered: true})
	l.health = l.health.Dropped(now.Add(2*time.Minute), errors.New("reset"))
	if wait := l.health.NextAttempt.Sub(now.Add(2 * time.Minute)); wait != l.Rules.Health.Base {
		t.Errorf("the next attempt is in %v", wait)
	}
}

// TestDayIsNotForgotten: a daily start that is due stays due until the session has begun it, though
// the connection ends first or another worker takes over.
func TestDayIsNotForgotten(t *testing.T) {
	t.Parallel()
	l, _ := newLife(t, quiet)
	l.Rules.DailyMin, l.Rules.DailyMax = 23*time.Hour, 25*time.Hour
	l.state = open(t, bucket(t))
	due := time.Now().Add(-time.Minute).UTC().Round(0)
	l.daily = due
	l.ended(t.Context(), time.Now(), errors.New("gone"))
	if !l.daily.Equal(due) || !l.state.value.NextDaily.Equal(due) {
		t.Errorf("after the connection: due %v, written %v, want %v", l.daily, l.state.value.NextDaily, due)
	}
	next := &life{Env: l.Env, name: l.name, state: l.state, target: l.target, log: quiet}
	next.resume(time.Now())
	next.confirmed = session.Set{First: true}
	if start := next.start(time.Now()); start.Since == nil || !next.daily.Equal(due) {
		t.Errorf("the successor begins with %+v, due %v", start, next.daily)
	}
	if note(next, session.Status{}) || !note(next, session.Status{Days: 1}) {
		t.Error("it is not told when the day begins")
	}
	next.save(t.Context())
	if at := next.state.value.NextDaily; time.Until(at) < 22*time.Hour || time.Until(at) > 25*time.Hour {
		t.Errorf("after it has begun the next is written to be due at %v", at)
	}
}
