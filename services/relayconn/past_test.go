package relayconn

import (
	"errors"
	"testing"
	"time"

	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/session"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const window = 15 * time.Minute

func after(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }

// TestStart: what a next connection asks for depends on what the ones before have come to an end
// with, not only on when they were.
func TestStart(t *testing.T) {
	t.Parallel()
	confirmed := session.Set{First: true}
	caughtUp := func(l *life) { l.status.CaughtUp = true; l.held(after(30)) }
	end := func(l *life, minutes int, st session.Status) {
		l.status = st
		l.ended(t.Context(), after(minutes), errors.New("gone"))
	}
	whole := session.Status{CaughtUp: true}
	for name, tc := range map[string]struct {
		before func(l *life)
		at     int // minutes after noon
		quick  bool
		since  int // minutes after noon
	}{
		"never connected":                      {before: func(l *life) { l.connected = time.Time{} }, at: 1},
		"away for as long as may be":           {before: func(l *life) { end(l, 60, whole) }, at: 75, quick: true, since: 45},
		"away for longer":                      {before: func(l *life) { end(l, 60, whole) }, at: 76},
		"crashed: the last tick counts":        {before: caughtUp, at: 40, quick: true, since: 15},
		"nothing was confirmed":                {before: func(l *life) { end(l, 60, whole); l.confirmed = session.Set{} }, at: 61},
		"a fresh start with something missing": {before: func(l *life) { end(l, 60, session.Status{Missing: after(10)}) }, at: 61, quick: true, since: -5},
		"missing something that was caught up": {before: func(l *life) { caughtUp(l); end(l, 60, session.Status{Missing: after(40)}) }, at: 61, quick: true, since: 15},
		"a reconnect that was cut off":         {before: func(l *life) { end(l, 60, whole); l.start(after(70)); end(l, 80, session.Status{}) }, at: 81, quick: true, since: 45},
		"a reconnect that caught up":           {before: func(l *life) { end(l, 60, whole); l.start(after(70)); end(l, 80, whole) }, at: 81, quick: true, since: 65},
		"a daily start that was cut off":       {before: func(l *life) { caughtUp(l); note(l, session.Status{Days: 1}); end(l, 62, session.Status{Days: 1}) }, at: 63, quick: true, since: 47},
	} {
		l, _ := newLife(t, quiet)
		l.confirmed, l.state = confirmed, open(t, bucket(t))
		tc.before(l)
		connected := l.connected
		got := l.start(after(tc.at))
		switch {
		case (got.Since != nil) != tc.quick:
			t.Errorf("%s: %+v", name, got)
		case tc.quick && !got.Since.Time().Equal(after(tc.since)):
			t.Errorf("%s: since %v, want %v", name, got.Since.Time().UTC(), after(tc.since))
		case tc.quick && !got.Live.Equal(connected):
			t.Errorf("%s: live until %v", name, got.Live)
		}
	}
}

// TestWait: bootstrap relays connect at once when they are claimed, the others spread out from then
// on, whenever the process was started, and nobody is tried before its time.
func TestWait(t *testing.T) {
	t.Parallel()
	rules := Rules{StartupJitter: 10 * time.Second}
	waits := func(h health.Health, now time.Time, first, bootstrap bool) (least, most time.Duration) {
		l := &life{Env: &Env{Rules: rules, Started: noon.Add(-time.Hour)}, claimed: noon, health: h}
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
	for name, tc := range map[string]struct {
		health           health.Health
		now              time.Time
		first, bootstrap bool
		want             time.Duration
	}{
		"bootstrap":                  {health.Health{NextAttempt: after(9)}, soon, true, true, 0},
		"bootstrap, failed":          {health.Health{NextAttempt: after(9)}, noon, false, true, 9 * time.Minute},
		"claimed long ago":           {health.Health{}, noon.Add(10 * time.Second), true, false, 0},
		"claimed, but not its time":  {health.Health{NextAttempt: after(3)}, noon, true, false, 3 * time.Minute},
		"dropped":                    {health.Health{NextAttempt: noon}, soon, false, false, 0},
		"failed":                     {health.Health{NextAttempt: after(3)}, noon, false, false, 3 * time.Minute},
		"wants quiet":                {health.Health{NextAttempt: noon, Limited: after(1)}, noon, false, false, time.Minute},
		"wants quiet, shorter by it": {health.Health{NextAttempt: after(2), Limited: after(1)}, noon, false, false, 2 * time.Minute},
	} {
		if least, most := waits(tc.health, tc.now, tc.first, tc.bootstrap); least != tc.want || most != tc.want {
			t.Errorf("%s: %v to %v, want %v", name, least, most, tc.want)
		}
	}
}
