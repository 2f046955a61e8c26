package gateway

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nbd-wtf/go-nostr/nip77"
	"github.com/nbd-wtf/go-nostr/nip77/negentropy"
	"github.com/nbd-wtf/go-nostr/nip77/negentropy/storage/vector"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/relay"
	"tendril.dev/test/fixture"
)

// asking is go-nostr's side of a session.
type asking struct {
	*negentropy.Negentropy
	hearing      sync.WaitGroup
	needs, haves []string
}

func asks(events []*nostr.Event) *asking {
	v := vector.New()
	for _, ev := range events {
		v.Insert(ev.CreatedAt, ev.ID)
	}
	v.Seal()
	a := &asking{Negentropy: negentropy.New(v, 1<<20)}
	a.hearing.Go(func() {
		for id := range a.HaveNots {
			a.needs = append(a.needs, id)
		}
	})
	a.hearing.Go(func() {
		for id := range a.Haves {
			a.haves = append(a.haves, id)
		}
	})
	return a
}

// reconcile runs a whole session, and returns what the client lacks and what the relay lacks.
func (c *client) reconcile(id string, f nostr.Filter, events []*nostr.Event) (needs, haves []string) {
	c.t.Helper()
	a := asks(events)
	open, err := nip77.OpenEnvelope{SubscriptionID: id, Filter: f, Message: a.Start()}.MarshalJSON()
	must(c.t, err)
	c.say("%s", open)
	for {
		got := c.want(`["NEG-MSG",`)
		env, ok := nip77.ParseNegMessage(got).(*nip77.MessageEnvelope)
		if !ok || env.SubscriptionID != id || len(got) > 128<<10 {
			c.t.Fatalf("heard %.200s, %d bytes", got, len(got))
		}
		next, err := a.Reconcile(env.Message)
		must(c.t, err)
		if next == "" {
			c.say(`["NEG-CLOSE",%q]`, id)
			a.hearing.Wait()
			slices.Sort(a.needs)
			slices.Sort(a.haves)
			return slices.Compact(a.needs), slices.Compact(a.haves)
		}
		c.say(`["NEG-MSG",%q,%q]`, id, next)
	}
}

// TestReconcile lets go-nostr's negentropy find the differences, with the filters of every layer of
// sync, and sets that have nothing, little and much in common.
func TestReconcile(t *testing.T) {
	t.Parallel()
	sys := start(t)
	const repo = "30617:aa:thing"
	root := strings.Repeat("7", 64)
	var all []*nostr.Event
	for n := range 2_000 {
		all = append(all, fake(n, 30617, nostr.Tag{"d", fmt.Sprint(n)}), fake(n, 30618, nostr.Tag{"d", fmt.Sprint(n)}), fake(n, 1621, nostr.Tag{"a", repo}),
			fake(n, 1111, nostr.Tag{"E", root}, nostr.Tag{"A", "other"}), fake(n/50, 7, nostr.Tag{"e", root}, nostr.Tag{"q", fmt.Sprint(n)})) // crowded seconds
	}
	stored, ours := all[100:], all[:9_900] // the relay lacks the first hundred, the client the last
	sys.store(t, stored...)
	since, until := nostr.Timestamp(1_700_000_400), nostr.Timestamp(1_700_001_990)
	for name, f := range map[string]nostr.Filter{
		"everything":      {},
		"layer 2, a":      {Tags: nostr.TagMap{"a": {repo, "30617:bb:x"}}},
		"layer 2, states": {Kinds: []int{30618}, Tags: nostr.TagMap{"d": {"1", "6", "1996", "1001"}}, Authors: []string{all[0].PubKey}},
		"layer 3, e":      {Tags: nostr.TagMap{"e": {root}}},
		"layer 3, E":      {Tags: nostr.TagMap{"E": {root}}, Since: &since, Until: &until},
		"nothing":         {Kinds: []int{4711}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := sys.dial(t)
			for _, held := range [][]*nostr.Event{ours, stored, nil, all[5000:5001]} {
				// The naive answer, as REQ would have it.
				relay, mine := matching(f, stored), matching(f, held)
				needs, haves := c.reconcile("s", f, mine)
				if want := without(relay, mine); !slices.Equal(needs, want) {
					t.Errorf("needs %d, want %d", len(needs), len(want))
				}
				if want := without(mine, relay); !slices.Equal(haves, want) {
					t.Errorf("has %d, want %d", len(haves), len(want))
				}
			}
		})
	}
}

// TestBanReachesSessions: it ends one that keeps what is banned now.
func TestBanReachesSessions(t *testing.T) {
	t.Parallel()
	sys := start(t)
	ev := fake(1, 1621)
	sys.store(t, ev)
	c := sys.dial(t)
	c.hears(`["NEG-MSG","s"`, `["NEG-OPEN","s",{},"%s"]`, asks(nil).Start())
	must(t, bans.Put(t.Context(), sys.Bus.JS, bans.Subject{Event: ev.ID}, proto.Ban{}))
	eventually(t, "it is hidden", func() bool {
		v := sys.Index.View()
		defer v.Close()
		_, hidden := v.Hidden(ev.ID)
		return hidden
	})
	c.hears(`["NEG-ERR","s","closed: what is banned`, `["NEG-MSG","s","%s"]`, asks(nil).Start())
	c.hears(`["NEG-MSG","s","61000002`, `["NEG-OPEN","s",{},"%s"]`, asks(nil).Start())
}

// matching returns the events that a REQ would be answered with.
func matching(f nostr.Filter, events []*nostr.Event) (found []*nostr.Event) {
	for _, ev := range events {
		if f.Matches(ev) {
			found = append(found, ev)
		}
	}
	return found
}

// without returns the ids of those events that are not among others.
func without(events, others []*nostr.Event) (ids []string) {
	known := map[string]bool{}
	for _, ev := range others {
		known[ev.ID] = true
	}
	for _, ev := range events {
		if !known[ev.ID] {
			ids = append(ids, ev.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// TestReconcileRefusals are told in NIP-77's words, and end the session that they are about.
func TestReconcileRefusals(t *testing.T) {
	t.Parallel()
	sys := startWithin(t, func(b *relay.Bounds) {
		b.MaxReconciledEvents, b.MaxOpenFiltersPerIP, b.MaxFilterSteps = 1000, 4, 50_000
	})
	var events []*nostr.Event
	for n := range 1_001 {
		events = append(events, fake(n, 1621, nostr.Tag{"a", "x"}))
	}
	sys.store(t, events...)
	c := sys.dial(t)
	refused := func(rows string) {
		t.Helper()
		for _, row := range fixture.Rows(rows) {
			c.hears(row[1], "%s", row[0])
		}
	}
	// 6100000200 is the list of no ids of everything. The second session t takes the place of the
	// first.
	refused(`
		["NEG-MSG","s","61"]                          | ["NEG-ERR","s","closed: there is no session
		["NEG-OPEN","s",{"kinds":[2]},"zz"]           | ["NEG-ERR","s","invalid: a message of NIP-77
		["NEG-OPEN","s",{"kinds":"x"},"61"]           | ["NEG-ERR","s","invalid: kinds must be
		["NEG-OPEN","s",{"kinds":[2]},"61ff"]         | ["NEG-ERR","s","invalid: not a negentropy message
		["NEG-MSG","s","61"]                          | ["NEG-ERR","s","closed:
		["NEG-OPEN","s",{"kinds":[2]},"6200"]         | ["NEG-MSG","s","61"]
		["NEG-OPEN","s",{"#a":["x"]},"6100000200"]    | ["NEG-ERR","s","blocked: too many events match, at most 1000 are reconciled
		["NEG-OPEN","s",{"kinds":[2]},"6100000200"]   | ["NEG-MSG","s","61
		["NEG-OPEN","t",{"kinds":[2]},"61"]           | ["NEG-MSG","t","61"]
		["NEG-OPEN","t",{"kinds":[2]},"61"]           | ["NEG-MSG","t","61"]
		["NEG-OPEN","u",{"kinds":[2]},"61"]           | ["NEG-MSG","u","61"]`)
	other := sys.dial(t)
	other.hears(`["NEG-MSG","s","61"]`, `["NEG-OPEN","s",{"kinds":[2]},"61"]`)
	other.hears(`["NEG-ERR","t","blocked: at most 4 open filters from one address`, `["NEG-OPEN","t",{"kinds":[2]},"61"]`)
	c.say(`["NEG-CLOSE","t"]`)
	c.say(`["NEG-CLOSE","u"]`)
	refused(`["NEG-MSG","t","61"] | ["NEG-ERR","t","closed: there is no session`)
	other.hears(`["NEG-MSG","t","61"]`, `["NEG-OPEN","t",{"kinds":[2]},"61"]`)
	// Subscriptions of the same ids are another matter.
	c.hears(`["EVENT","s",`, `["REQ","s",{"limit":1}]`)
	c.want(`["EOSE","s"]`)
}

// TestReconcileBesideIdlers: many clients open sessions and do nothing. Others reconcile and
// have their REQs answered, and what the idlers keep has a bound.
func TestReconcileBesideIdlers(t *testing.T) {
	t.Parallel()
	sys := startWithin(t, func(b *relay.Bounds) { b.ClientBytes, b.ClientBytesPerIP = 1<<20, 256<<10 }, "--trusted-proxies=127.0.0.1")
	var events []*nostr.Event
	for n := range 1_000 {
		events = append(events, fake(n, 1621, nostr.Tag{"a", "x"}))
	}
	sys.store(t, events...)
	for n := range 150 { // a dozen of them fill the memory
		idle := sys.from(t, net.IPv4(10, 1, byte(n>>8), byte(n)).String())
		for id := range 2 {
			idle.say(`["NEG-OPEN","s%d",{"#a":["x"]},"61"]`, id)
		}
	}
	c := sys.dial(t)
	for range 3 {
		if needs, haves := c.reconcile("s", nostr.Filter{Tags: nostr.TagMap{"a": {"x"}}}, events[10:]); len(needs) != 10 || len(haves) != 0 {
			t.Errorf("needs %d, has %d", len(needs), len(haves))
		}
	}
	c.say(`["REQ","r",{"limit":3}]`)
	if got := c.events("r"); len(got) != 3 {
		t.Errorf("%d events", len(got))
	}
}
