package policy_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

func TestRelease(t *testing.T) {
	t.Parallel()
	a, newer := announce(alice, "tree", 100), announce(alice, "tree", 200)
	s, older, bobs := state(alice, "tree", 200), state(alice, "tree", 150), state(bob, "tree", 150)
	pr := event(bob, 1618, 100, tag("c", strings.Repeat("b", 40)), tag("a", repo(alice, "tree")))
	expired := announce(alice, "tree", 100, tag("expiration", "1799999999"))
	release := func(ev *nostr.Event) *policy.Candidate { return action(proto.ActionRelease, ev) }
	refused := func(reason string, message string, ev *nostr.Event) want {
		w := isRejected(reason, message)
		w.drop = []string{dropped(ev)}
		return w
	}
	run(t, []row{
		{"announcement", (&world{}).hold(a), release(a), nil, isAccepted(dropped(a))},
		{"silent announcement whose data came after all", (&world{}).holdAs(proto.PhaseSilent, now, "tree", a), release(a), nil, isAccepted(dropped(a))},
		{"state", (&world{}).accept(a).hold(s), release(s), nil, isAccepted(dropped(s))},
		{"state of a held announcement", (&world{}).hold(a, s), release(s), nil, isAccepted(dropped(s))},
		{"state, and older ones of its author with it", (&world{}).accept(a).hold(s, older, bobs), release(s), nil,
			isAccepted(dropped(s), dropped(older, "superseded"))},
		{"older state alone", (&world{}).accept(a).hold(s, older), release(older), nil, isAccepted(dropped(older))},
		{"pull request", (&world{}).accept(a).holdAs(proto.PhaseWaiting, now, "tree", pr), release(pr), nil, isAccepted(dropped(pr))},
		{"accepted already", (&world{}).accept(a), release(a), nil, isDuplicate()},
		{"accepted already, and left behind as held", (&world{}).accept(a).hold(a), release(a), nil, isDuplicate(dropped(a))},
		{"not held any more", nil, release(a), nil,
			want{outcome: proto.Rejected, reason: "not_held", message: "invalid: "}},
		{"superseded announcement", (&world{}).accept(newer).hold(a), release(a), nil, isDuplicate(dropped(a, "superseded"))},
		{"superseded state", (&world{}).accept(a, s).hold(older), release(older), nil, isDuplicate(dropped(older, "superseded"))},
		{"state without authority by now", (&world{}).accept(announce(carol, "tree", 100)).hold(s), release(s), nil,
			refused("unauthorized", "invalid: author not authorized", s)},
		{"pull request without repository by now", (&world{}).holdAs(proto.PhaseWaiting, now, "tree", pr), release(pr), nil,
			refused("orphan", "invalid: ", pr)},
		{"deleted by now", (&world{}).accept(event(alice, 5, 200, tag("e", a.ID))).hold(a), release(a), nil,
			refused("deleted", "blocked: ", a)},
		{"expired by now", (&world{}).hold(expired), release(expired), nil, refused("expired", "invalid: ", expired)},
		{"author blacklisted by now", (&world{}).hold(a), release(a), func(s *config.Settings) { s.EventBlacklist = []string{npub(alice)} },
			refused("blacklisted", "blocked: ", a)},
		{"repository blacklisted by now", (&world{}).hold(a), release(a), func(s *config.Settings) { s.RepositoryBlacklist = []string{"tree"} },
			refused("blacklisted", "blocked: ", a)},
		{"not whitelisted by now", (&world{}).hold(a), release(a), func(s *config.Settings) { s.RepositoryWhitelist = []string{"bush"} },
			refused("not_whitelisted", "blocked: ", a)},
		{"our domain is another by now", (&world{}).hold(a), release(a), func(s *config.Settings) { s.Domain = "new.example.com" },
			refused("service_not_listed", "invalid: ", a)},
	})
}

func TestExpireAndExtend(t *testing.T) {
	t.Parallel()
	a, s, other := announce(alice, "tree", 100), state(alice, "tree", 200), announce(carol, "tree", 100)
	over, extended := now, now.Add(10*time.Minute)
	expire := func(ev *nostr.Event) *policy.Candidate { return action(proto.ActionExpire, ev) }
	early := expire(s)
	early.Reason = "superseded by another author's state"
	done := want{outcome: proto.Done}
	const expired = "previously expired"
	run(t, []row{
		{"announcement falls silent", (&world{}).holdAs(proto.PhaseWaiting, over, "tree", a), expire(a), nil,
			want{outcome: proto.Done, hold: []string{a.ID[:8] + " silent 24h0m0s"}}},
		{"silent announcement goes", (&world{}).holdAs(proto.PhaseSilent, over, "tree", a), expire(a), nil,
			want{outcome: proto.Done, drop: []string{dropped(a, expired)}}},
		{"its states go with it", (&world{}).holdAs(proto.PhaseSilent, over, "tree", a).hold(s), expire(a), nil,
			want{outcome: proto.Done, drop: []string{dropped(a, expired), dropped(s, expired)}}},
		{"but not while another owner's announcement stays", (&world{}).holdAs(proto.PhaseSilent, over, "tree", a).hold(s, other), expire(a), nil,
			want{outcome: proto.Done, drop: []string{dropped(a, expired)}}},
		{"state goes", (&world{}).accept(a).holdAs(proto.PhaseWaiting, over, "tree", s), expire(s), nil,
			want{outcome: proto.Done, drop: []string{dropped(s, expired)}}},
		{"a clock that was restarted is not over", (&world{}).accept(a).holdAs(proto.PhaseWaiting, extended, "tree", s), expire(s), nil, done},
		{"clocks may differ a little", (&world{}).accept(a).holdAs(proto.PhaseWaiting, now.Add(4*time.Second), "tree", s), expire(s), nil,
			want{outcome: proto.Done, drop: []string{dropped(s, expired)}}},
		{"with a reason it goes at once", (&world{}).accept(a).holdAs(proto.PhaseWaiting, extended, "tree", s), early, nil,
			want{outcome: proto.Done, drop: []string{dropped(s, early.Reason)}}},
		{"not held", nil, expire(s), nil, done},
		{"extend", (&world{}).holdAs(proto.PhaseWaiting, over, "tree", s), action(proto.ActionExtend, s), nil,
			want{outcome: proto.Done, hold: []string{waiting(s)}}},
		{"extend a silent announcement: revived", (&world{}).holdAs(proto.PhaseSilent, over, "tree", a), action(proto.ActionExtend, a), nil,
			want{outcome: proto.Done, hold: []string{waiting(a)}}},
		{"extend what is not held", nil, action(proto.ActionExtend, s), nil, done},
	})
}

func TestArrivals(t *testing.T) {
	t.Parallel()
	a := announce(alice, "tree", 100)
	comment := event(bob, 1111, 100, tag("e", a.ID), tag("a", repo(alice, "tree")))
	for _, tc := range []struct {
		name    string
		ev      *nostr.Event
		outcome proto.Outcome
		want    []string
	}{
		{"accepted announcement", a, proto.Accepted, []string{"d:tree", a.ID, repo(alice, "tree")}},
		{"held announcement", a, proto.HeldBack, []string{"d:tree"}},
		{"comment", comment, proto.Accepted, []string{comment.ID, "named:" + a.ID, "named:" + repo(alice, "tree")}},
		{"held state", state(alice, "tree", 1), proto.HeldBack, nil},
		{"deletion", event(bob, 5, 100, tag("e", a.ID)), proto.Accepted, nil},
		{"rejected", a, proto.Rejected, nil},
		{"duplicate", a, proto.Duplicate, nil},
	} {
		if got := policy.Arrivals(tc.ev, tc.outcome); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// An orphan may name any number of events; what is remembered of it is bounded.
func TestMissingIsBounded(t *testing.T) {
	t.Parallel()
	var tags []nostr.Tag
	for range 3000 {
		tags = append(tags, tag("a", repo(person(len(tags)+10), strings.Repeat("x", len(tags)))))
	}
	p := rulesOf(t, settings(), policy.Bounds{})
	d := p.Decide(&world{}, synced(event(bob, 1, 100, tags...)))
	if d.Outcome != proto.Rejected {
		t.Fatalf("%+v", d.Outcome)
	}
	bytes := 0
	for _, key := range d.Missing {
		bytes += len(key)
	}
	if len(d.Missing) == 0 || len(d.Missing) > 64 || bytes > 64*512 {
		t.Errorf("%d keys of %d bytes", len(d.Missing), bytes)
	}
}
