package health_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/relayconn/health"
)

var rules = health.Rules{Base: 5 * time.Second, Max: time.Hour, Stable: 5 * time.Minute, DeadAfter: 24 * time.Hour, NaughtyFor: 12 * time.Hour}

func TestBackoff(t *testing.T) {
	t.Parallel()
	for failures, want := range map[int]time.Duration{0: 5, 1: 5, 2: 10, 3: 20, 10: 2560, 11: 3600, 1 << 40: 3600} {
		if got := rules.Backoff(failures); got != want*time.Second {
			t.Errorf("after %d failures %v, want %d s", failures, got, want)
		}
	}
	if got := (health.Rules{Base: time.Minute, Max: time.Second}).Backoff(1); got != time.Second {
		t.Errorf("a base beyond the most gives %v", got)
	}
}

// TestStory walks a relay through what may happen to it. Each line says after which time what
// happens, the state and the failures that it leads to, and when the next attempt is; "-": that
// does not matter.
func TestStory(t *testing.T) {
	t.Parallel()
	for name, story := range map[string]string{
		"failing, then connected, then stable": `
			0s fail degraded 1 5s
			5s fail degraded 2 10s
			10s open disconnected 2 -
			4m59s look disconnected 2 -
			1s look healthy 0 -
			1h drop disconnected 0 0s`,
		"an answer ends the row of failures": `
			0s fail degraded 1 5s
			5s fail degraded 2 10s
			10s fail degraded 3 20s
			20s open disconnected 3 -
			1s answer disconnected 0 -
			2m drop degraded 1 5s
			5s fail degraded 2 10s
			10s open disconnected 2 -
			0s answer disconnected 0 -
			5m drop disconnected 0 0s`,
		"a healthy relay is tried again at once, one that only accepts is not hammered": `
			0s open healthy 0 -
			1s drop degraded 1 0s
			0s open disconnected 1 -
			1s drop degraded 2 10s
			10s open disconnected 2 -
			1s drop degraded 3 20s`,
		"dead after a day, and tried once a day": `
			0s fail degraded 1 5s
			23h59m59s look degraded 1 -
			1s look dead 1 -
			0s fail dead 2 24h
			24h open disconnected 2 -
			1s drop degraded 3 20s
			20s fail degraded 4 40s`,
		"a failure of its own is kept for half a day": `
			0s unknown degraded 0 12h
			12h open disconnected 0 -
			1h babble disconnected 0 12h`,
		"failures of its own are not the way to death": `
			0s unknown degraded 0 12h
			12h unknown degraded 0 12h
			12h unknown degraded 0 12h
			12h fail degraded 1 5s
			23h59m59s look degraded 1 -
			1s look dead 1 -
			0s unknown degraded 1 12h`,
		"nor are breaches of protocol": `
			0s open healthy 0 -
			1s babble degraded 0 12h
			25h look degraded 0 -`,
		"we leave": `
			0s fail degraded 1 5s
			5s open disconnected 1 -
			1s leave disconnected 1 0s`,
		"quiet": `
			0s open healthy 0 -
			0s limit rate_limited 0 -
			64s look rate_limited 0 -
			1s look healthy 0 -
			5m limit rate_limited 0 -
			0s drop rate_limited 0 0s`,
	} {
		now, h := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), health.Health{Rules: rules}
		if h.State(now) != health.Disconnected {
			t.Fatalf("never tried: %v", h.State(now))
		}
		for _, line := range strings.Split(strings.TrimSpace(story), "\n") {
			f := strings.Fields(line)
			after, err := time.ParseDuration(f[0])
			if err != nil {
				t.Fatal(err)
			}
			now = now.Add(after)
			switch f[1] {
			case "fail":
				h = h.Failed(now, errors.New("connection refused"))
			case "unknown":
				h = h.Failed(now, &net.DNSError{IsNotFound: true})
			case "open":
				h = h.Opened(now)
			case "answer":
				h = h.Answered()
			case "drop":
				h = h.Dropped(now, nil)
			case "babble":
				h = h.Dropped(now, &netguard.ProtocolError{Err: errors.New("nonsense")})
			case "leave":
				h = h.Left(now)
			case "limit":
				h.Limited = now.Add(65 * time.Second)
			}
			h = h.Held(now)
			next, err := time.ParseDuration(f[4])
			if got := fmt.Sprint(h.State(now), h.Failures); got != f[2]+" "+f[3] || err == nil && h.NextAttempt.Sub(now) != next {
				t.Fatalf("%s: %s: %s, next in %v", name, line, got, h.NextAttempt.Sub(now))
			}
		}
	}
}
