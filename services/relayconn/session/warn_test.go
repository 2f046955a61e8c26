package session_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// lines counts log records above debug.
type lines struct {
	slog.Handler
	n *int
}

func (l lines) Write(b []byte) (int, error) { *l.n++; return len(b), nil }

// TestOneWarningForEachCause, however often it happens, and on however many connections.
func TestOneWarningForEachCause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, warned := 0, map[string]bool{}
		for range 3 { // connections
			p := newPlay(t)
			options := p.session.Options
			options.Warned = warned
			options.Log = slog.New(slog.NewTextHandler(lines{n: &n}, &slog.HandlerOptions{Level: slog.LevelInfo}))
			p.session = session.New(options)
			p.mute = true
			p.run(session.Start{})
			for i := range 20 {
				p.want(uint64(i+1), manyRepos(i, i+1))
				time.Sleep(rules.Silence + time.Second)
				p.messages <- wire.Message{Kind: wire.Event, Sub: "l1", Event: event(t, 1, 5)}
				p.messages <- wire.Message{Kind: wire.Notice, Reason: "rate-limited"}
				sleep(rules.Cooldown + time.Second)
			}
			p.stop()
		}
		if n != 4 {
			t.Errorf("%d warnings, want one for incomplete sync, one for quiet, one for what was not asked, one for the room", n)
		}
	})
}
