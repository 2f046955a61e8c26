package writer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/known"
	"tendril.dev/services/ingest/policy"
)

// amongStrangers is a draft in which alice, whose lead is bob, and carol maintain the accepted
// repository "x", among so many strangers who announce the same identifier: half of them are
// accepted, the others held. All list these three, and each second one names bob as lead.
func amongStrangers(t testing.TB, strangers int) (d *draft, p *policy.Policy, alice, bob, carol person) {
	t.Helper()
	alice, bob, carol = newPerson(1), newPerson(2), newPerson(3)
	role := func(letter string, key person) nostr.Tag { return nostr.Tag{letter, string(key)} }
	announce := func(who person, at int64, roles ...nostr.Tag) *nostr.Event {
		here := who.announcement("x", at)
		return who.event(30617, at, "", append(here.Tags, roles...)...)
	}
	records := []eventdb.Record{
		{Seq: 1, Event: announce(alice, 100, role("M", bob), role("m", alice), role("m", carol))},
		{Seq: 2, Event: announce(bob, 100, role("M", bob), role("m", alice))},
		{Seq: 3, Event: announce(carol, 100, role("m", carol), role("m", alice))},
	}
	var waiting []*held.Entry
	for i := range strangers {
		letter := map[bool]string{true: "M", false: "m"}[i%4 < 2]
		ev := &nostr.Event{PubKey: fmt.Sprintf("%064x", 1<<32+i), Kind: 30617, CreatedAt: nostr.Timestamp(200 + i), Sig: strings.Repeat("0", 128),
			Tags: append(announce(alice, 100).Tags, role(letter, bob), role("m", alice), role("m", carol))}
		ev.ID = ev.GetID()
		if i%2 == 0 {
			records = append(records, eventdb.Record{Seq: uint64(len(records) + 1), Event: ev})
			continue
		}
		e, err := held.NewEntry(proto.Held{Event: ev, Identifier: "x", Phase: proto.PhaseWaiting, Source: proto.SourceLive})
		must(t, err)
		waiting = append(waiting, e)
	}
	index, err := eventdb.Open("", eventdb.Options{})
	must(t, err)
	t.Cleanup(func() { index.Close() })
	must(t, index.Apply(records))
	w := &Writer{Node: &node.Node{Index: index, Settings: testSettings()}, Held: held.NewSet(nil, quiet, nil), Rejected: known.NewRejected(nil, quiet, time.Hour, "")}
	d = newDraft(w)
	t.Cleanup(func() { d.view.Close() })
	for _, e := range waiting {
		d.held.Add(e)
		d.room.Add(e)
	}
	d.begin(t.Context())
	bounds := policy.DefaultBounds
	bounds.Bytes = 1 << 40
	p, err = policy.New(w.Settings, noBans(t), bounds, time.Now)
	must(t, err)
	return d, p, alice, bob, carol
}

// stateOf is the candidate of a state that a user sends.
func stateOf(who person, at int64) *policy.Candidate {
	ev := who.state("x", at)
	return &policy.Candidate{Event: ev, Raw: nostr.Encode(ev), Lane: proto.LaneUser, Source: proto.SourceUser}
}

// TestStrangersAreNotRead: a decision about a state reads the announcements that its author's chain
// reaches, and of those who name the lead a bounded number, however many strangers announce the
// same identifier and list its people. So does a decision about an announcement, also of one that
// lists nobody.
func TestStrangersAreNotRead(t *testing.T) {
	t.Parallel()
	const strangers = 10_000
	d, p, alice, bob, carol := amongStrangers(t, strangers)
	stranger, invited := newPerson(4), newPerson(5)
	at := int64(1_000_000)
	for _, c := range []struct {
		who     person
		outcome proto.Outcome
		most    int // announcements that are read
	}{
		{alice, proto.HeldBack, 3 + 65}, {bob, proto.HeldBack, 3 + 65}, {carol, proto.HeldBack, 3 + 65}, {stranger, proto.Rejected, 1},
	} {
		d.begin(t.Context())
		at++
		if got := p.Decide(d, stateOf(c.who, at)); got.Outcome != c.outcome || d.failure() != nil {
			t.Fatalf("%+v", got)
		}
		if len(d.parsed) > c.most {
			t.Errorf("%d accepted announcements were read", len(d.parsed))
		}
	}
	d.begin(t.Context())
	list := alice.event(30617, at, "", append(alice.announcement("x", at).Tags, nostr.Tag{"M", string(bob)}, nostr.Tag{"m", string(alice)},
		nostr.Tag{"m", string(carol)}, nostr.Tag{"m", string(invited)})...)
	d.Accept(list, proto.Request{})
	accepts := invited.elsewhere("x", at+1, alice)
	for _, c := range []struct {
		why     string
		ev      *nostr.Event
		outcome proto.Outcome
	}{
		{"who is invited accepts", accepts, proto.Accepted},
		{"who is invited leaves, and lists nobody", invited.elsewhere("x", at+2), proto.Accepted},
		{"who is listed by nobody", newPerson(6).elsewhere("x", at), proto.Rejected},
		{"a new one that lists us", newPerson(7).announcement("x", at), proto.HeldBack},
	} {
		d.parsed = map[string]*held.Entry{}
		candidate := &policy.Candidate{Event: c.ev, Raw: nostr.Encode(c.ev), Lane: proto.LaneUser, Source: proto.SourceUser}
		if got := p.Decide(d, candidate); got.Outcome != c.outcome || len(d.parsed) > 4 {
			t.Errorf("%s: %+v; %d were read", c.why, got, len(d.parsed))
		}
	}
}

// BenchmarkState measures the decision on a state in a batch of its own, cold, among so many
// announcements of its identifier.
func BenchmarkState(b *testing.B) {
	for _, strangers := range []int{0, 10_000} {
		d, p, alice, bob, carol := amongStrangers(b, strangers)
		for name, who := range map[string]person{"owner": alice, "lead": bob, "maintainer": carol, "stranger": newPerson(4)} {
			b.Run(fmt.Sprintf("%s/%d", name, strangers), func(b *testing.B) {
				c := stateOf(who, 1_000_000)
				for b.Loop() {
					d.begin(b.Context())
					p.Decide(d, c)
				}
			})
		}
	}
}
