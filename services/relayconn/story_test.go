package relayconn

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/test/fixture/nettest"
)

// TestStory: a relay becomes a target, is claimed, connected, asked for its past, heard live,
// written down, counted, and left when it is withdrawn.
func TestStory(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	judge := newIngest(t, b)
	r := newForeign(t, event(30617, "announced", time.Hour), event(1621, "issue", 2*time.Hour, nostr.Tag{"a", "30617:aa:x"}), event(1, "other", time.Hour))
	w := newWorker(t, b, "a")
	want := wanting(r.URL, "30617:aa:x")
	revision := aim(t, b, r.URL, want)
	eventually(t, "the past comes", func() bool { return judge.has("startup sync.historic announced", "startup sync.historic issue") })
	eventually(t, "it is connected", func() bool {
		s := state(t, b, r.Name)
		return s.Connection == int(session.Connected) && s.Confirmed == revision && s.Repos == 1 && s.Worker == "a" && s.URL == r.URL &&
			s.Health == 1 && !s.CompleteUntil.IsZero() && !s.NextDaily.IsZero() && s.DisconnectedAt.IsZero()
	})
	r.publish(event(1621, "live issue", 0, nostr.Tag{"a", "30617:aa:x"}))
	r.publish(event(30618, "live state", 0, nostr.Tag{"d", "x"}))
	eventually(t, "what is live comes", func() bool { return judge.has("live sync.live live issue", "live sync.live live state") })
	if taken := judge.all(); len(taken) != 4 { // "other" is not among them
		t.Errorf("taken %v", taken)
	}
	eventually(t, "verdicts are counted", func() bool { return w.metric(t, "ngit_sync_events_synced_total") == 4 })
	for name, want := range map[string]float64{
		"relay_connected": 3, "relay_status": 1, "relay_failures": 0, "connection_attempts_total": 1, "gap_events_total": -1, "relays_tracked_total": 1,
		"relays_connected_total": 1, "relays_dead_total": 0, "naughty_relays_total": 0,
	} {
		if got := w.metric(t, "ngit_sync_"+name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	aim(t, b, r.URL, proto.Target{}, want)
	eventually(t, "the connection is closed, and the claim let go", func() (closed bool) {
		r.look(func() { closed = r.ended == 1 && len(r.open) == 0 })
		return closed && holder(t, b, r.Name) == ""
	})
	if got := w.metric(t, "ngit_sync_relay_connected"); got != -1 {
		t.Errorf("a relay that is not ours any more has a metric: %v", got)
	}
}

// TestHandover: a worker that stops says goodbye and lets go, and its successor does a quick
// reconnect: only what is young. Nothing that was confirmed is asked for whole, but later what was
// confirmed in the last half minute.
func TestHandover(t *testing.T) {
	t.Parallel()
	const window, late = 15 * time.Minute, 2 * time.Hour // in which events are looked for that were published late
	began, b := time.Now(), openBus(t)
	newIngest(t, b)
	r := newForeign(t, event(1621, "issue", 48*time.Hour, nostr.Tag{"a", "30617:aa:x"}))
	workers := map[string]process{"a": newWorker(t, b, "a")}
	revision := aim(t, b, r.URL, wanting(r.URL, "30617:aa:x"))
	stands := func(s proto.RelayState) bool {
		return s.Connection == int(session.Connected) && s.Confirmed == revision && !s.CompleteUntil.IsZero()
	}
	var first proto.RelayState
	eventually(t, "one has it", func() bool {
		first = state(t, b, r.Name)
		return stands(first)
	})
	workers["b"] = newWorker(t, b, "b")
	var dials int // it may have gone from one to the other before, or be about to
	r.look(func() { r.asked, dials = nil, r.dials })
	workers[first.Worker].stop()
	eventually(t, "the other has it", func() bool {
		s := state(t, b, r.Name)
		return s.Worker != first.Worker && s.Connection == int(session.Connected) && !s.CompleteUntil.IsZero()
	})
	if next := state(t, b, r.Name).NextDaily; !next.Equal(first.NextDaily) {
		t.Errorf("the day is put off from %v to %v", first.NextDaily, next)
	}
	eventually(t, "only the last connection is open", func() (only bool) {
		r.look(func() { only = r.ended == r.dials-1 })
		return only
	})
	r.look(func() {
		if r.dials > dials+1 {
			t.Errorf("%d connections, %d before", r.dials, dials)
		}
		for _, f := range r.asked {
			if !f.LimitZero && (f.Since == nil || f.Since.Time().Before(began.Add(-window-late-time.Second)) || f.Since.Time().After(time.Now().Add(-window))) {
				t.Errorf("asked for %v, want since 15 min before the handover, or 2 h for what was published late", f)
			}
		}
	})
}

// TestQuickReconnect: a relay that drops the connection is back at once, what it said meanwhile is
// heard, and what it should have said before is a gap.
func TestQuickReconnect(t *testing.T) {
	t.Parallel()
	missing(t, 5*time.Minute, (*foreign).drop, "reconnect sync.historic missed", 2)
}

// TestDaily: a day later everything is asked for again, on the same connection.
func TestDaily(t *testing.T) {
	t.Parallel()
	missing(t, 48*time.Hour, func(*foreign) {}, "daily sync.daily missed", 1,
		func(r *Rules) { r.DailyMin, r.DailyMax = 4*time.Second, 4*time.Second })
}

// missing has a relay tell an event later than it should have, and looks what becomes of it.
func missing(t *testing.T, ago time.Duration, then func(*foreign), taken string, dials int, set ...func(*Rules)) {
	t.Helper()
	b := openBus(t)
	judge, r := newIngest(t, b), newForeign(t)
	w := startWorker(t, b, "a", byRules(false, set...))
	aim(t, b, r.URL, wanting(r.URL, "30617:aa:x"))
	connected(t, b, r)
	r.look(func() {
		r.events = append(r.events, event(1621, "missed", ago, nostr.Tag{"a", "30617:aa:x"}))
	})
	then(r)
	eventually(t, "it is heard", func() bool { return judge.has(taken) })
	eventually(t, "and a gap", func() bool { return w.metric(t, "ngit_sync_gap_events_total", r.URL) == 1 })
	r.look(func() {
		if r.dials != dials {
			t.Errorf("%d connections", r.dials)
		}
	})
}

// TestRelaysThatCannotBeHad: each is tried, counted and written down as what it is, and none
// disturbs another.
func TestRelaysThatCannotBeHad(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	newIngest(t, b)
	good, ours := newForeign(t), newForeign(t)
	closed := "ws://" + nettest.Refusing(t)
	var refused []string
	for _, code := range []int{http.StatusForbidden, http.StatusNotFound, http.StatusBadGateway} {
		refused = append(refused, serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
	}
	page := serve(t, func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("<html>")) })
	garbage := serve(t, func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		for err == nil {
			err = ws.Write(context.Background(), websocket.MessageText, []byte("garbage"))
		}
	})
	w := newWorker(t, b, "a", "--domain="+strings.TrimPrefix(ours.URL, "ws://"))
	for _, url := range append(refused, good.URL, ours.URL, closed, page, garbage) {
		aim(t, b, url, wanting(url, "30617:aa:x"))
	}
	connected(t, b, good)
	for _, url := range append(refused, closed) {
		eventually(t, "it has failed and is not naughty", func() bool {
			s := state(t, b, nameOf(t, url))
			return s.Failures == 1 && s.Health == 3 && s.Connection == 0 && s.NaughtyUntil.IsZero() && s.LastError != "" && s.LastConnected.IsZero()
		})
	}
	for _, url := range []string{page, garbage} {
		eventually(t, "it is naughty", func() bool {
			s := state(t, b, nameOf(t, url))
			return time.Until(s.NaughtyUntil) > 11*time.Hour && time.Until(s.NextAttempt) > 11*time.Hour && s.Failures == 0 && s.Health == 3
		})
	}
	eventually(t, "the naughty ones are counted", func() bool { return w.metric(t, "ngit_sync_naughty_relays_total", "protocol") == 2 })
	if n := w.metric(t, "ngit_sync_connection_attempts_total", closed, "failure"); n != 1 {
		t.Errorf("%v failures are counted", n)
	}
	ours.look(func() {
		if ours.dials != 0 {
			t.Error("we connect to ourselves")
		}
	})
}
