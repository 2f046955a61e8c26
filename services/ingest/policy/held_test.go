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
	a := announce(alice, "tree", 100)
	s, older, bobs := state(alice, "tree", 200), state(alice, "tree", 150), state(bob, "tree", 150)
	pr := event(bob, 1618, 100, commit, atTree)
	run(t, []row{
		{"announcement", holds(a), release(a), nil, isAccepted(dropped(a))},
		{"state", accepts(a).hold(s), release(s), nil, isAccepted(dropped(s))},
		{"state, and older ones of its author with it", accepts(a).hold(s, older, bobs), release(s), nil, isAccepted(dropped(s), dropped(older, "superseded"))},
		{"older state alone", accepts(a).hold(s, older), release(older), nil, isAccepted(dropped(older))},
		{"pull request", accepts(a).holdAs(proto.PhaseWaiting, now, "tree", pr), release(pr), nil, isAccepted(dropped(pr))},
		{"accepted already", accepts(a), release(a), nil, isDuplicate()},
		{"not held any more", nil, release(a), nil, isForgotten("not_held", "invalid: ")},
		{"superseded state", accepts(a, s).hold(older), release(older), nil, isDuplicate(dropped(older, "superseded"))},
		{"state without authority by now", accepts(announce(carol, "tree", 100)).hold(s), release(s), nil, isRejected("unauthorized", "invalid: author not authorized").and(dropped(s))},
		{"pull request without repository by now", holdsAs(proto.PhaseWaiting, now, "tree", pr), release(pr), nil, orphan.and(dropped(pr))},
		{"deleted by now", accepts(event(alice, 5, 200, tag("e", a.ID))).hold(a), release(a), nil, isRejected("deleted", "blocked: ").and(dropped(a))},
		{"author blacklisted by now", holds(a), release(a), func(s *config.Settings) { s.EventBlacklist = []string{npub(alice)} }, banned.and(dropped(a))},
		{"not whitelisted by now", holds(a), release(a), func(s *config.Settings) { s.RepositoryWhitelist = []string{"bush"} }, unlisted.and(dropped(a))},
		{"our domain is another by now", holds(a), release(a), func(s *config.Settings) { s.Domain = "new.example.com" }, isRejected("service_not_listed", "invalid: ").and(dropped(a))},
	})
}

func TestExpireAndExtend(t *testing.T) {
	t.Parallel()
	a, s, other := announce(alice, "tree", 100), state(alice, "tree", 200), announce(carol, "tree", 100)
	over, extended := now, now.Add(10*time.Minute)
	early := expire(s)
	early.Reason = "superseded by another author's state"
	done := isDone()
	const expired = "previously expired"
	run(t, []row{
		{"announcement falls silent", holdsAs(proto.PhaseWaiting, over, "tree", a), expire(a), nil, isDone(a.ID[:8] + " silent 24h0m0s")},
		{"silent announcement goes", silent(a), expire(a), nil, isDone().and(dropped(a, expired))},
		{"its states go with it", silent(a).hold(s), expire(a), nil, isDone().and(dropped(a, expired), dropped(s, expired))},
		{"but not while another owner's announcement stays", silent(a).hold(s, other), expire(a), nil, isDone().and(dropped(a, expired))},
		{"state goes", accepts(a).holdAs(proto.PhaseWaiting, over, "tree", s), expire(s), nil, isDone().and(dropped(s, expired))},
		{"a clock that was restarted is not over", accepts(a).holdAs(proto.PhaseWaiting, extended, "tree", s), expire(s), nil, done},
		{"clocks may differ a little", accepts(a).holdAs(proto.PhaseWaiting, now.Add(4*time.Second), "tree", s), expire(s), nil, isDone().and(dropped(s, expired))},
		{"with a reason it goes at once", accepts(a).holdAs(proto.PhaseWaiting, extended, "tree", s), early, nil, isDone().and(dropped(s, early.Reason))},
		{"not held", nil, expire(s), nil, done},
		{"extend", holdsAs(proto.PhaseWaiting, over, "tree", s), action(proto.ActionExtend, s), nil, isDone(waiting(s))},
		{"extend a silent announcement: revived", silent(a), action(proto.ActionExtend, a), nil, isDone(waiting(a))},
	})
}

func TestArrivals(t *testing.T) {
	t.Parallel()
	a := announce(alice, "tree", 100)
	comment := event(bob, 1111, 100, tag("e", a.ID), atTree)
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

// TestRemove: with a repository goes what was accepted for it alone, by any author.
func TestRemove(t *testing.T) {
	t.Parallel()
	a, gone := announce(alice, "tree", 100), announceElsewhere(alice, "tree", 200)
	s, bobs := state(alice, "tree", 100), state(bob, "tree", 100)
	issue := event(bob, 1621, 100, atTree)
	both := event(bob, 1621, 100, atTree, tag("a", repo(carol, "tree")))
	comment := event(carol, 1111, 100, tag("E", issue.ID))
	pr := event(bob, 1618, 100, commit, atTree)
	quoting := event(bob, 1618, 100, commit, atTree, tag("q", repo(carol, "tree")))
	deletion := event(bob, 5, 200, tag("e", issue.ID))
	expiring := event(alice, 30618, 100, tag("d", "tree"), tag("expiration", "2000000000"))
	list := event(bob, 10317, 100)
	remove := func(ev *nostr.Event) *policy.Candidate { return action(proto.ActionRemove, ev) }
	stays, goes := isDone(), want{outcome: proto.Done, removes: true}
	here := "https://" + domain + "/prs/" + npub(bob) + "/tree.git"
	offered := event(bob, 1618, 100, commit, atTree, tag("clone", here))
	archives := func(s *config.Settings) { s.ArchiveAll = true }
	run(t, []row{
		{"state of an archived repository", accepts(gone, s), remove(s), archives, stays},
		{"pull request that is offered below /prs/", accepts(offered), remove(offered), nil, stays},
		{"what is not accepted", nil, remove(s), nil, stays},
		{"held, not accepted", holds(a, s), remove(s), nil, stays},
		{"state without any announcement", accepts(s), remove(s), nil, goes},
		{"state of a hosted repository", accepts(a, s), remove(s), nil, stays},
		{"state of a repository that waits", accepts(s).hold(a), remove(s), nil, stays},
		{"state of one that has moved away", accepts(gone, s), remove(s), nil, goes},
		{"state of another's repository", accepts(announce(carol, "tree", 100), s), remove(s), nil, goes},
		{"a maintainer's state of one that waits", holds(announce(alice, "tree", 100, namesBob)).accept(bobs), remove(bobs), nil, stays},
		{"a maintainer's state of one that has moved away", accepts(announceElsewhere(alice, "tree", 100, namesBob), bobs), remove(bobs), nil, goes},
		{"a maintainer's maintainer's state", accepts(announce(alice, "tree", 100, tag("maintainers", carol)), announceElsewhere(carol, "tree", 100, namesBob), bobs), remove(bobs), nil, stays},
		{"issue of nothing", accepts(issue), remove(issue), nil, goes},
		{"issue of a repository that is here", accepts(a, issue), remove(issue), nil, stays},
		{"issue of another's repository too", accepts(announce(carol, "tree", 100), both), remove(both), nil, stays},
		{"issue that a comment names", accepts(issue, comment), remove(issue), nil, stays},
		{"issue of a repository that waits", accepts(issue).hold(a), remove(issue), nil, stays},
		{"issue of a maintainer of a repository that is here", accepts(announce(carol, "tree", 100, tag("maintainers", alice)), issue), remove(issue), nil, stays},
		{"issue that only a deletion request names", accepts(issue, deletion), remove(issue), nil, goes},
		{"pull request of nothing", accepts(pr), remove(pr), nil, goes},
		{"pull request for a maintainer's maintainer", accepts(announce(carol, "tree", 100, namesBob), announceElsewhere(bob, "tree", 100, tag("maintainers", alice)), pr), remove(pr), nil, stays},
		{"pull request that quotes one that waits", holds(announce(carol, "tree", 100)).accept(quoting), remove(quoting), nil, stays},
		{"state that expires by itself", accepts(expiring), remove(expiring), nil, stays},
		{"announcement", accepts(gone), remove(gone), nil, stays},
		{"deletion request", accepts(deletion), remove(deletion), nil, stays},
		{"grasp list", accepts(list), remove(list), nil, stays},
	})
}

// TestSizes: what is larger than events of its kind may be is refused, from wherever it comes.
func TestSizes(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, settings(), policy.Bounds{})
	w, tags := accepts(announce(alice, "tree", 50), announce(alice, "bush", 50)), append(announce(alice, "bush", 1).Tags, commit, atTree)
	for kind, most := range map[int]int{30617: 64 << 10, 30618: 512 << 10, 1618: 256 << 10, 5: 128 << 10, 1617: 512 << 10, 1: 128 << 10, 10317: 16 << 10} {
		for _, bytes := range []int{most, most + 1} {
			ev := event(alice, kind, 100, tags...)
			ev.Content = strings.Repeat("x", bytes-len(ev.String()))
			ev.ID = ev.GetID()
			c := synced(ev)
			c.Raw = []byte(ev.String())
			d := rules.Decide(w, c)
			if (bytes > most) != (d.Reason == "invalid" && d.Remember && strings.HasPrefix(d.Message, "invalid: ")) || len(c.Raw) != bytes || bytes == most && d.Outcome == proto.Rejected {
				t.Errorf("kind %d of %d bytes: %s %q", kind, bytes, d.Outcome, d.Message)
			}
		}
	}
}

// TestOwnersHaveRoom: strangers fill purgatory, and a state of a served repository is held all the
// same; it can only be refused to an author who holds too much already.
func TestOwnersHaveRoom(t *testing.T) {
	t.Parallel()
	bounds := policy.Bounds{Bytes: 100, Reserved: 100_000, Author: policy.Load{Events: 2}, Client: policy.Load{Events: 1}}
	rules := rulesOf(t, settings(), bounds)
	served := announce(alice, "tree", 50, namesBob)
	from := func(ev *nostr.Event) *policy.Candidate {
		c := user(ev)
		c.Client = "192.0.2.1"
		return c
	}
	w := accepts(served).hold(announce(carol, "tree", 100))
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
	first := announce(alice, "tree", 100, namesBob)
	vouched, states := announceElsewhere(bob, "tree", 100), state(alice, "tree", 100)
	w := silent(first).vouch(vouched).hold(states)
	d := rules.Decide(w, user(announce(carol, "bush", 100, tag("description", strings.Repeat("x", 1000)))))
	if d.Outcome != proto.HeldBack || len(d.Drop) != 3 {
		t.Fatalf("%s %q drops %d", d.Outcome, d.Message, len(d.Drop))
	}
	d = rules.Decide(silent(first), user(event(alice, 30618, 100, tag("d", "tree"), tag("t", strings.Repeat("x", 4000)))))
	if d.Outcome != proto.Rejected || d.Remember || len(d.Drop) != 0 {
		t.Fatalf("%s %q drops %d", d.Outcome, d.Message, len(d.Drop))
	}
}
