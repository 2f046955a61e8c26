package session_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// oddly is a relay with ways of its own of NIP-77, and an ingest that may be away.
type oddly struct {
	*reconciling
	instead  func(n int, f nostr.Filter) *wire.Message // of its nth answer; nil: it answers
	away     func() bool                               // ingest does not answer
	endless  bool                                      // there is always something left to say
	messages int
}

func (o *oddly) NegMsg(ctx context.Context, sub string, frame []byte) error {
	o.reconciling.mu.Lock()
	o.messages++
	n, f := o.messages, o.filters[sub]
	o.reconciling.mu.Unlock()
	if m := o.instead(n, f); m != nil {
		m.Sub = sub
		o.say(ctx, *m)
		return nil
	}
	return o.reconciling.NegMsg(ctx, sub, frame)
}

func (o *oddly) NegOpen(ctx context.Context, sub string, f nostr.Filter, frame []byte) error {
	o.reconciling.mu.Lock()
	o.filters[sub] = f
	o.reconciling.mu.Unlock()
	return o.NegMsg(ctx, sub, frame)
}

func (o *oddly) Begin(ctx context.Context, s query.Reconciliation) ([]byte, uint64, error) {
	if o.away() {
		return nil, 0, errors.New("away")
	}
	return o.reconciling.Begin(ctx, s)
}

func (o *oddly) Continue(ctx context.Context, s query.Reconciliation, answer []byte) (query.Step, error) {
	step, err := o.reconciling.Continue(ctx, s, answer)
	if o.endless {
		step.Message = answer
	}
	return step, err
}

// TestOddNegentropy: whatever a relay makes of NIP-77, everything comes: by id where it reconciles,
// and by REQ where it does not.
func TestOddNegentropy(t *testing.T) {
	t.Parallel()
	never := func() bool { return false }
	answers := func(int, nostr.Filter) *wire.Message { return nil }
	for name, tc := range map[string]struct {
		relay func(r *oddly)
		byREQ bool
	}{
		"too many": {func(r *oddly) {
			r.instead = func(_ int, f nostr.Filter) *wire.Message {
				if len(r.set(f, false)) > 20 {
					return &wire.Message{Kind: wire.NegErr, Reason: "blocked: too many query results"}
				}
				return nil
			}
		}, false},
		"it forgets": {func(r *oddly) {
			r.instead = func(n int, _ nostr.Filter) *wire.Message {
				if n%2 == 0 {
					return &wire.Message{Kind: wire.NegErr, Reason: "closed: took too long"}
				}
				return nil
			}
		}, false},
		"it wants quiet": {func(r *oddly) {
			r.instead = func(n int, _ nostr.Filter) *wire.Message {
				if n == 1 {
					return &wire.Message{Kind: wire.NegErr, Reason: "rate-limited: later"}
				}
				return nil
			}
		}, false},
		"garbage": {func(r *oddly) {
			r.instead = func(int, nostr.Filter) *wire.Message { return &wire.Message{Kind: wire.NegMsg} }
		}, true},
		"refused": {func(r *oddly) {
			r.instead = func(int, nostr.Filter) *wire.Message {
				return &wire.Message{Kind: wire.NegErr, Reason: "error: not here"}
			}
		}, true},
		"a notice": {func(r *oddly) {
			r.instead = func(int, nostr.Filter) *wire.Message {
				return &wire.Message{Kind: wire.Notice, Reason: "unknown command"}
			}
		}, true},
		"no end": {func(r *oddly) { r.endless = true }, true},
		"ingest is away for a moment": {func(r *oddly) {
			began := time.Now()
			r.away = func() bool { return time.Since(began) < 3*time.Second }
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var stored []*nostr.Event
				now := nostr.Now()
				for i := range 100 {
					stored = append(stored, event(t, 1621, now-nostr.Timestamp(i)*86_400, nostr.Tag{"a", repository}, nostr.Tag{"A", repository}, nostr.Tag{"q", repository}))
				}
				r := &oddly{reconciling: newReconciling(t, 0, stored...), instead: answers, away: never}
				for i, ev := range stored {
					r.accepted[ev.ID] = i%5 < 3
				}
				r.session.Asker, r.session.Negentropy.Service = r, r
				tc.relay(r)
				r.run(session.Start{})
				r.want(1, repos(repository))
				time.Sleep(5 * time.Minute)
				r.all()
				if st := r.status(); st.Connection != session.Connected || st.Repos != 1 {
					t.Errorf("status %+v", st)
				}
				if fetched := len(r.fetches()); (fetched < 40) != tc.byREQ && !r.endless {
					t.Errorf("asked by REQ: %v, %d events fetched by id", r.walked(), fetched)
				}
				r.stop()
			})
		})
	}
}
