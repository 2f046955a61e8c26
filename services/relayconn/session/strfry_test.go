package session_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/history"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// strfry is a relay that answers as strfry does with its default settings: 20 subscriptions, 500
// events of a filter, an event for one of the filters only, and NOTICE without a name for what it
// does not take.
type strfry struct {
	*play
	late    bool // it answers first, and says afterwards that it was one too many
	filters int  // most filters of a REQ; 0: any number

	historic, peak   int // REQs of the past, and most of them open at once
	refused, refusal int // because of subscriptions, because of filters
	came             int
}

const (
	strfrySubscriptions = 20
	strfryLimit         = 500
	roundTrip           = 20 * time.Millisecond
)

func (r *strfry) Req(ctx context.Context, sub string, filters []nostr.Filter) error {
	var answer []wire.Message
	r.with(func() { answer = r.answer(sub, filters) })
	go func() {
		time.Sleep(roundTrip)
		for _, m := range answer {
			select {
			case r.messages <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

func (r *strfry) answer(sub string, filters []nostr.Filter) (answer []wire.Message) {
	r.log = append(r.log, "REQ "+sub)
	if r.filters > 0 && len(filters) > r.filters {
		r.refusal++
		return []wire.Message{{Kind: wire.Notice, Reason: "ERROR: bad req: too many filters"}}
	}
	full := len(r.asked) >= strfrySubscriptions
	notice := wire.Message{Kind: wire.Notice, Reason: "ERROR: too many concurrent REQs"}
	if full {
		if r.refused++; !r.late {
			return []wire.Message{notice}
		}
	} else {
		r.asked[sub] = filters
	}
	came := map[string]bool{}
	for _, f := range filters {
		n := 0
		for _, ev := range r.stored { // the newest first
			if n < min(f.Limit, strfryLimit) && !came[ev.ID] && f.Matches(ev) {
				n++
				came[ev.ID] = true
				answer = append(answer, wire.Message{Kind: wire.Event, Sub: sub, Event: ev})
			}
		}
	}
	r.came += len(answer)
	if answer = append(answer, wire.Message{Kind: wire.EOSE, Sub: sub}); full {
		answer = append(answer, notice)
	}
	if !filters[0].LimitZero {
		r.historic++
		open := 0
		for _, other := range r.asked {
			if !other[0].LimitZero {
				open++
			}
		}
		r.peak = max(r.peak, open)
	}
	return answer
}

// fill gives the relay a repository with a dense past over some years, and roots with few
// comments.
func (r *strfry) fill(t *testing.T, dense, roots int) history.Set {
	t.Helper()
	repo := "30617:aa:x"
	made := nostr.Timestamp(1_790_000_000)
	for i := range 10 {
		r.stored = append(r.stored, event(t, 30617, made-nostr.Timestamp(i), nostr.Tag{"d", fmt.Sprint(i)}))
	}
	for i := range dense {
		tags := []nostr.Tag{{"a", repo}}
		if i%3 == 0 {
			tags = []nostr.Tag{{"A", repo}, {"a", repo}}
		}
		r.stored = append(r.stored, event(t, 1621, made-nostr.Timestamp(i)*3600, tags...))
	}
	list := []string{}
	for i := range roots {
		id := fmt.Sprintf("%064x", i)
		list = append(list, id)
		r.stored = append(r.stored, event(t, 1111, made-nostr.Timestamp(i)*60, nostr.Tag{"E", id}, nostr.Tag{"e", id}))
	}
	slices.SortFunc(r.stored, func(a, b *nostr.Event) int { return int(b.CreatedAt - a.CreatedAt) })
	return history.Union(repos(repo), history.Set{Roots: list})
}

// TestStrfry: from a relay like strfry everything comes, page by page and side by side, and it need
// hardly ever refuse anything, whether it says what it takes or not.
func TestStrfry(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		document wire.Document
		late     bool
		filters  int
		refused  int  // at most
		peak     int  // at least
		room     bool // for all that should come live
	}{
		"it says what it takes":              {document: wire.Document{Limits: wire.Stated{Subscriptions: 20, Events: 500, Bytes: 131072}}, peak: 5, room: true},
		"it says nothing":                    {refused: 4, peak: 5, room: true},
		"it says nothing, and answers first": {late: true, refused: 4, peak: 5, room: true},
		"it says that it takes one":          {document: wire.Document{Limits: wire.Stated{Subscriptions: 1, Events: 1, Bytes: 1, Filters: 1}}, peak: 2},
		"it says that it takes thousands":    {document: wire.Document{Limits: wire.Stated{Subscriptions: 5000, Events: 5000, Bytes: 1 << 30, Filters: 5000}}, refused: 4, peak: 5, room: true},
		"it takes one filter":                {filters: 1, refused: 12, peak: 3, room: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t)
				p.session.Rules.PageLimit, p.session.Rules.AtOnce, p.session.Rules.MaxFilters = 500, 16, 70
				relay := &strfry{play: p, late: tc.late, filters: tc.filters}
				p.session.Asker = relay
				wanted := relay.fill(t, 3000, 400)
				document := make(chan wire.Document, 1)
				document <- tc.document
				p.session.Document = document
				p.run(session.Start{})
				began := time.Now()
				p.want(1, wanted)
				for p.status().Confirmed.Target != 1 && time.Since(began) < time.Hour {
					time.Sleep(roundTrip)
					synctest.Wait()
				}
				if took := time.Since(began); took > rules.Silence/2 {
					t.Errorf("confirmed after %v: a request that was refused was waited for", took)
				}
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				if st := p.status(); st.Connection != session.Connected || st.Confirmed.Target != 1 || st.CaughtUp != tc.room {
					t.Errorf("%+v", st)
				}
				p.with(func() {
					if len(p.accepted) != len(p.stored) {
						t.Errorf("%d of %d events", len(p.accepted), len(p.stored))
					}
					if relay.refused > tc.refused || relay.peak < tc.peak {
						t.Errorf("%d refusals, %d requests at once; want at most %d, at least %d", relay.refused, relay.peak, tc.refused, tc.peak)
					}
					if relay.refusal > 30 {
						t.Errorf("%d REQs of too many filters", relay.refusal)
					}
					t.Logf("%d REQs of the past, %d events came for %d", relay.historic, relay.came, len(p.stored))
				})
				p.stop()
			})
		})
	}
}
