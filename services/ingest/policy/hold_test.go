package policy_test

import (
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// TestSizes: what is larger than events of its kind may be is refused, from wherever it comes.
func TestSizes(t *testing.T) {
	t.Parallel()
	sized := func(bytes int, author string, kind int, tags ...nostr.Tag) *policy.Candidate {
		ev := event(author, kind, 100, tags...)
		ev.Content = strings.Repeat("x", bytes-len(ev.String()))
		ev.ID = ev.GetID()
		c := synced(ev)
		c.Raw = []byte(ev.String())
		return c
	}
	a := announce(alice, "tree", 50)
	commit := tag("c", strings.Repeat("b", 40))
	of := map[int]int{30617: 64 << 10, 30618: 512 << 10, 1618: 256 << 10, 5: 128 << 10, 1617: 512 << 10, 1: 128 << 10, 10317: 16 << 10}
	make := func(kind, bytes int) *policy.Candidate {
		switch kind {
		case 30617:
			return sized(bytes, alice, kind, announce(alice, "bush", 1).Tags...)
		case 30618:
			return sized(bytes, alice, kind, tag("d", "tree"))
		}
		if kind == 5 {
			return sized(bytes, bob, kind, tag("e", person(99)))
		}
		return sized(bytes, bob, kind, commit, tag("a", repo(alice, "tree")))
	}
	rules := rulesOf(t, settings(), policy.Bounds{})
	for kind, most := range of {
		fits, not := make(kind, most), make(kind, most+1)
		if len(fits.Raw) != most {
			t.Fatalf("the event has %d bytes", len(fits.Raw))
		}
		if d := rules.Decide((&world{}).accept(a), fits); d.Outcome == proto.Rejected {
			t.Errorf("kind %d of %d bytes: %s %q", kind, most, d.Outcome, d.Message)
		}
		d := rules.Decide((&world{}).accept(a), not)
		if d.Reason != "invalid" || !d.Remember || !strings.HasPrefix(d.Message, "invalid: ") {
			t.Errorf("kind %d of one more: %s %q", kind, d.Outcome, d.Message)
		}
	}
}

// TestOwnersHaveRoom: strangers fill purgatory, and a state of a served repository is held all the
// same; it can only be refused to an author who holds too much already.
func TestOwnersHaveRoom(t *testing.T) {
	t.Parallel()
	bounds := policy.Bounds{Bytes: 100, Reserved: 100_000, Author: policy.Load{Events: 2}, Client: policy.Load{Events: 1}}
	rules := rulesOf(t, settings(), bounds)
	served := announce(alice, "tree", 50, tag("maintainers", bob))
	from := func(ev *nostr.Event) *policy.Candidate {
		c := user(ev)
		c.Client = "192.0.2.1"
		return c
	}
	w := (&world{}).accept(served).hold(announce(carol, "tree", 100))
	for _, ev := range []*nostr.Event{state(alice, "tree", 100), state(alice, "tree", 101), state(bob, "tree", 100)} {
		d := rules.Decide(w, from(ev))
		if d.Outcome != proto.HeldBack || !d.Hold[0].Reserved || d.Hold[0].Client != "192.0.2.1" {
			t.Fatalf("%.4s…: %s %q", ev.PubKey, d.Outcome, d.Message)
		}
		w.held = append(w.held, d.Hold...)
	}
	for name, tc := range map[string]struct {
		ev   *nostr.Event
		want string
	}{
		"an owner with too much": {state(alice, "tree", 102), "rate-limited: too much of this author"},
		"a stranger":             {announce(dave, "tree", 100), "rate-limited: too much waits"},
		"a stranger's state":     {state(carol, "tree", 100), "rate-limited: too much waits"},
		"an owner elsewhere":     {announce(alice, "bush", 100), "rate-limited: too much waits"},
	} {
		if d := rules.Decide(w, from(tc.ev)); d.Remember || len(d.Drop) > 0 || !strings.HasPrefix(d.Message, tc.want) {
			t.Errorf("%s: %s %q, drops %d; want %q", name, d.Outcome, d.Message, len(d.Drop), tc.want)
		}
	}
}

// TestWhatMakesRoomTakesItsOwnAlong: with an announcement that has to go, its states and the
// announcements that it vouched for go; and nothing that would be left without its announcement is
// taken for it.
func TestWhatMakesRoomTakesItsOwnAlong(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, settings(), policy.Bounds{Bytes: 6000})
	first := announce(alice, "tree", 100, tag("maintainers", bob))
	vouched, states := announceElsewhere(bob, "tree", 100), state(alice, "tree", 100)
	w := (&world{}).holdAs(proto.PhaseSilent, now, "tree", first).vouch(vouched).hold(states)
	d := rules.Decide(w, user(announce(carol, "bush", 100, tag("description", strings.Repeat("x", 1000)))))
	if d.Outcome != proto.HeldBack || len(d.Drop) != 3 {
		t.Fatalf("%s %q drops %d", d.Outcome, d.Message, len(d.Drop))
	}
	d = rules.Decide((&world{}).holdAs(proto.PhaseSilent, now, "tree", first), user(event(alice, 30618, 100, tag("d", "tree"), tag("t", strings.Repeat("x", 4000)))))
	if d.Outcome != proto.Rejected || d.Remember || len(d.Drop) != 0 {
		t.Fatalf("%s %q drops %d", d.Outcome, d.Message, len(d.Drop))
	}
}
