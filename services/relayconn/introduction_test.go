package relayconn

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/wire"
	"tendril.dev/test/fixture"
)

// indexRelay is a relay where people look for profiles.
type indexRelay struct {
	has      []*nostr.Event
	failures int  // connections that fail first
	guarded  bool // it wants to know who asks
	private  bool // a public service stays away from it (GRASP-08)
	given    []*nostr.Event
}

// visitToIndex is a connection to one.
type visitToIndex struct {
	Connection
	*indexRelay
	messages chan wire.Message
	closed   chan struct{}
	once     sync.Once
	proved   bool
}

func (v *visitToIndex) Read(ctx context.Context, fn func(wire.Message) error) error {
	for {
		select {
		case m := <-v.messages:
			if err := fn(m); err != nil {
				return err
			}
		case <-v.closed:
			return errors.New("closed")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (v *visitToIndex) Close()                              { v.once.Do(func() { close(v.closed) }) }
func (v *visitToIndex) KeepAlive(ctx context.Context) error { <-ctx.Done(); return nil }
func (v *visitToIndex) Auth(nostr.Event)                    { v.proved = true }

func (v *visitToIndex) Publish(ev *nostr.Event) {
	if v.proved || !v.guarded {
		v.given, v.has = append(v.given, ev), append(v.has, ev)
	}
}

func (v *visitToIndex) Req(sub string, filters []nostr.Filter) {
	if v.guarded && !v.proved {
		v.messages <- wire.Message{Kind: wire.Closed, Sub: sub, Reason: "auth-required: who are you?"}
		v.messages <- wire.Message{Kind: wire.Auth, Reason: "x"}
		return
	}
	for _, ev := range v.has {
		v.messages <- wire.Message{Kind: wire.Event, Sub: sub, Event: ev}
	}
	v.messages <- wire.Message{Kind: wire.EOSE, Sub: sub}
}

// ownLog is what of the service's own is in the log.
type ownLog struct {
	query.Source
	events []*nostr.Event
}

func (l ownLog) Query(context.Context, nostr.Filter) iter.Seq2[*nostr.Event, error] {
	return func(yield func(*nostr.Event, error) bool) {
		for _, ev := range l.events {
			if !yield(ev, nil) {
				return
			}
		}
	}
}

// taken notes what ingest is offered.
type taken struct{ events chan *nostr.Event }

func (t taken) Offer(_ context.Context, c candidates.Candidate) error {
	t.events <- c.Event
	return nil
}

// TestIntroduction: the service's profile and relay list are published where nobody has anything of
// its key, and only after every relay has answered. What an operator has published stays, and comes
// here.
func TestIntroduction(t *testing.T) {
	t.Parallel()
	own := fixture.NewPerson()
	profile, list := own.Sign(nostr.KindProfile, "{}"), own.Sign(nostr.KindRelayList, "")
	operators := own.At(profile.CreatedAt-1000).Sign(nostr.KindProfile, `{"name":"the operator's"}`)
	forged := *operators
	forged.Sig = profile.Sig
	for name, c := range map[string]struct {
		first, second *indexRelay
		given         [2]int // events
		offered       []*nostr.Event
	}{
		"nobody has anything": {&indexRelay{}, &indexRelay{}, [2]int{2, 2}, nil},
		"one has the same":    {&indexRelay{has: []*nostr.Event{profile, list}}, &indexRelay{}, [2]int{0, 2}, nil},
		"one has the operator's profile": {&indexRelay{}, &indexRelay{has: []*nostr.Event{operators}}, [2]int{1, 1},
			[]*nostr.Event{operators}},
		"a forged one":                 {&indexRelay{}, &indexRelay{has: []*nostr.Event{&forged}}, [2]int{2, 2}, nil},
		"one does not answer at first": {&indexRelay{}, &indexRelay{failures: 2}, [2]int{2, 2}, nil},
		"one never answers":            {&indexRelay{}, &indexRelay{failures: 1 << 30}, [2]int{0, 0}, nil},
		"one asks who we are":          {&indexRelay{}, &indexRelay{guarded: true}, [2]int{2, 2}, nil},
		"one is a private service":     {&indexRelay{}, &indexRelay{private: true}, [2]int{0, 0}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
				defer cancel()
				relays := map[string]*indexRelay{"wss://one.example": c.first, "wss://two.example": c.second}
				offered := taken{make(chan *nostr.Event, 10)}
				in := intake.New(intake.Options{Offerer: offered})
				ended := make(chan error, 1)
				go func() { ended <- in.Run(ctx) }()
				env := &Env{Intake: in, Log: slog.New(slog.DiscardHandler), Sign: func(ev *nostr.Event) error { return ev.Sign(own.Secret) },
					Document: func(_ context.Context, url string) (wire.Stated, error) {
						return wire.Stated{Private: relays[url].private}, nil
					},
					Dial: func(_ context.Context, url string) (Connection, error) {
						r := relays[url]
						if r.failures--; r.failures >= 0 {
							return nil, errors.New("not today")
						}
						return &visitToIndex{indexRelay: r, messages: make(chan wire.Message, 100), closed: make(chan struct{})}, nil
					}}
				env.Rules.Health.Base = time.Minute
				(&introduction{Env: env, relays: []nostr.RelayURL{"wss://one.example", "wss://two.example"},
					accepted: ownLog{events: []*nostr.Event{profile, list}}}).run(ctx, func() (string, error) { return own.PubKey, nil })
				synctest.Wait()
				if got := [2]int{len(c.first.given), len(c.second.given)}; got != c.given {
					t.Errorf("the relays were given %d events, want %d", got, c.given)
				}
				var got []*nostr.Event
				for len(offered.events) > 0 {
					got = append(got, <-offered.events)
				}
				if !slices.Equal(got, c.offered) {
					t.Errorf("ingest was offered %v", got)
				}
				cancel()
				<-ended
			})
		})
	}
}
