package health_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/relayconn/health"
)

var rules = health.Rules{Base: 5 * time.Second, Max: time.Hour, Stable: 5 * time.Minute, Dead: 24 * time.Hour, Naughty: 12 * time.Hour}

var (
	start   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	errDial = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	errDNS  = &net.DNSError{Err: "no such host", IsNotFound: true}
	errTalk = &netguard.ProtocolError{Err: errors.New("nonsense")}
)

func TestBackoff(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		failures int
		want     time.Duration
	}{{0, 5 * time.Second}, {1, 5 * time.Second}, {2, 10 * time.Second}, {3, 20 * time.Second}, {10, 2560 * time.Second}, {11, time.Hour}, {1 << 40, time.Hour}} {
		if got := rules.Backoff(tc.failures); got != tc.want {
			t.Errorf("after %d failures %v, want %v", tc.failures, got, tc.want)
		}
	}
	if got := (health.Rules{Base: time.Minute, Max: time.Second}).Backoff(1); got != time.Second {
		t.Errorf("a base beyond the most gives %v", got)
	}
}

// TestStory walks a relay through what may happen to it; each step says what it leads to and when
// the next attempt is.
func TestStory(t *testing.T) {
	t.Parallel()
	type step struct {
		after time.Duration
		do    string
		err   error
		state health.State
		fails int
		next  time.Duration // from now; -1: do not look
	}
	for name, steps := range map[string][]step{
		"failing, then connected, then stable": {
			{do: "fail", err: errDial, state: health.Degraded, fails: 1, next: 5 * time.Second},
			{after: 5 * time.Second, do: "fail", err: errDial, state: health.Degraded, fails: 2, next: 10 * time.Second},
			{after: 10 * time.Second, do: "open", state: health.Disconnected, fails: 2, next: -1},
			{after: 5*time.Minute - time.Second, do: "look", state: health.Disconnected, fails: 2, next: -1},
			{after: time.Second, do: "look", state: health.Healthy, fails: 0, next: -1},
			{after: time.Hour, do: "drop", state: health.Disconnected, fails: 0, next: 0},
		},
		"an answer ends the row of failures": {
			{do: "fail", err: errDial, state: health.Degraded, fails: 1, next: 5 * time.Second},
			{after: 5 * time.Second, do: "fail", err: errDial, state: health.Degraded, fails: 2, next: 10 * time.Second},
			{after: 10 * time.Second, do: "fail", err: errDial, state: health.Degraded, fails: 3, next: 20 * time.Second},
			{after: 20 * time.Second, do: "open", state: health.Disconnected, fails: 3, next: -1},
			{after: time.Second, do: "answer", state: health.Disconnected, fails: 0, next: -1},
			{after: 2 * time.Minute, do: "drop", state: health.Degraded, fails: 1, next: 5 * time.Second},
			{after: 5 * time.Second, do: "fail", err: errDial, state: health.Degraded, fails: 2, next: 10 * time.Second},
			{after: 10 * time.Second, do: "open", state: health.Disconnected, fails: 2, next: -1},
			{do: "answer", state: health.Disconnected, fails: 0, next: -1},
			{after: 5 * time.Minute, do: "drop", state: health.Disconnected, fails: 0, next: 0},
		},
		"a healthy relay is tried again at once, one that only accepts is not hammered": {
			{do: "open", state: health.Healthy, next: -1},
			{after: time.Second, do: "drop", state: health.Degraded, fails: 1, next: 0},
			{do: "open", state: health.Disconnected, fails: 1, next: -1},
			{after: time.Second, do: "drop", state: health.Degraded, fails: 2, next: 10 * time.Second},
			{after: 10 * time.Second, do: "open", state: health.Disconnected, fails: 2, next: -1},
			{after: time.Second, do: "drop", state: health.Degraded, fails: 3, next: 20 * time.Second},
		},
		"dead after a day, and tried once a day": {
			{do: "fail", err: errDial, state: health.Degraded, fails: 1, next: 5 * time.Second},
			{after: 24*time.Hour - time.Second, do: "look", state: health.Degraded, fails: 1, next: -1},
			{after: time.Second, do: "look", state: health.Dead, fails: 1, next: -1},
			{do: "fail", err: errDial, state: health.Dead, fails: 2, next: 24 * time.Hour},
			{after: 24 * time.Hour, do: "open", state: health.Disconnected, fails: 2, next: -1},
			{after: time.Second, do: "drop", state: health.Degraded, fails: 3, next: 20 * time.Second},
			{after: 20 * time.Second, do: "fail", err: errDial, state: health.Degraded, fails: 4, next: 40 * time.Second},
		},
		"a failure of its own is kept for half a day": {
			{do: "fail", err: errDNS, state: health.Degraded, fails: 1, next: 12 * time.Hour},
			{after: 12 * time.Hour, do: "open", state: health.Disconnected, fails: 1, next: -1},
			{after: time.Hour, do: "drop", err: errTalk, state: health.Disconnected, fails: 0, next: 12 * time.Hour},
		},
		"failures of its own are not the way to death": {
			{do: "fail", err: errDNS, state: health.Degraded, fails: 1, next: 12 * time.Hour},
			{after: 12 * time.Hour, do: "fail", err: errDNS, state: health.Degraded, fails: 2, next: 12 * time.Hour},
			{after: 12 * time.Hour, do: "fail", err: errDNS, state: health.Degraded, fails: 3, next: 12 * time.Hour},
			{after: 12 * time.Hour, do: "fail", err: errDial, state: health.Degraded, fails: 4, next: 40 * time.Second},
			{after: 24*time.Hour - time.Second, do: "look", state: health.Degraded, fails: 4, next: -1},
			{after: time.Second, do: "look", state: health.Dead, fails: 4, next: -1},
			{do: "fail", err: errDNS, state: health.Degraded, fails: 5, next: 12 * time.Hour},
		},
		"nor are breaches of protocol": {
			{do: "open", state: health.Healthy, next: -1},
			{after: time.Second, do: "drop", err: errTalk, state: health.Degraded, fails: 1, next: 12 * time.Hour},
			{after: 25 * time.Hour, do: "look", state: health.Degraded, fails: 1, next: -1},
		},
		"we leave": {
			{do: "fail", err: errDial, state: health.Degraded, fails: 1, next: 5 * time.Second},
			{after: 5 * time.Second, do: "open", state: health.Disconnected, fails: 1, next: -1},
			{after: time.Second, do: "leave", state: health.Disconnected, fails: 1, next: 0},
		},
		"quiet": {
			{do: "open", state: health.Healthy, next: -1},
			{do: "limit", state: health.RateLimited, next: -1},
			{after: 64 * time.Second, do: "look", state: health.RateLimited, next: -1},
			{after: time.Second, do: "look", state: health.Healthy, next: -1},
			{after: 5 * time.Minute, do: "limit", state: health.RateLimited, next: -1},
			{do: "drop", state: health.RateLimited, next: 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now, h := start, health.Health{Rules: rules}
			if h.State(now) != health.Disconnected {
				t.Fatalf("never tried: %v", h.State(now))
			}
			for i, s := range steps {
				now = now.Add(s.after)
				switch s.do {
				case "fail":
					h = h.Failed(now, s.err)
				case "open":
					h = h.Opened(now)
				case "answer":
					h = h.Answered()
				case "drop":
					h = h.Dropped(now, s.err)
				case "leave":
					h = h.Left(now)
				case "limit":
					h.Limited = now.Add(65 * time.Second)
				}
				h = h.Held(now)
				if h.State(now) != s.state || h.Failures != s.fails || s.next >= 0 && h.NextAttempt.Sub(now) != s.next {
					t.Fatalf("step %d, %s: %v, %d failures, next in %v; want %+v", i, s.do, h.State(now), h.Failures, h.NextAttempt.Sub(now), s)
				}
			}
		})
	}
}
