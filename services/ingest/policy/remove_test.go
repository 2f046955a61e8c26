package policy_test

import (
	"strings"
	"testing"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// TestRemove: with a repository goes what was accepted for it alone, by any author.
func TestRemove(t *testing.T) {
	t.Parallel()
	a, gone := announce(alice, "tree", 100), announceElsewhere(alice, "tree", 200)
	s, bobs := state(alice, "tree", 100), state(bob, "tree", 100)
	issue := event(bob, 1621, 100, tag("a", repo(alice, "tree")))
	both := event(bob, 1621, 100, tag("a", repo(alice, "tree")), tag("a", repo(carol, "tree")))
	comment := event(carol, 1111, 100, tag("E", issue.ID))
	pr := event(bob, 1618, 100, tag("c", strings.Repeat("b", 40)), tag("a", repo(alice, "tree")))
	quoting := event(bob, 1618, 100, tag("c", strings.Repeat("b", 40)), tag("a", repo(alice, "tree")), tag("q", repo(carol, "tree")))
	deletion := event(bob, 5, 200, tag("e", issue.ID))
	expiring := event(alice, 30618, 100, tag("d", "tree"), tag("expiration", "2000000000"))
	list := event(bob, 10317, 100)
	remove := func(ev *nostr.Event) *policy.Candidate { return action(proto.ActionRemove, ev) }
	stays, goes := want{outcome: proto.Done}, want{outcome: proto.Done, removes: true}
	here := "https://" + domain + "/prs/" + npub(bob) + "/tree.git"
	offered := event(bob, 1618, 100, tag("c", strings.Repeat("b", 40)), tag("a", repo(alice, "tree")), tag("clone", here))
	offeredAgain := event(bob, 1619, 200, tag("c", strings.Repeat("c", 40)), tag("E", offered.ID), tag("a", repo(alice, "tree")), tag("clone", here))
	archives := func(s *config.Settings) { s.ArchiveAll = true }
	run(t, []row{
		{"state of an archived repository", (&world{}).accept(gone, s), remove(s), archives, stays},
		{"a maintainer's state of an archived repository",
			(&world{}).accept(announceElsewhere(alice, "tree", 100, tag("maintainers", bob)), bobs), remove(bobs), archives, stays},
		{"pull request that is offered below /prs/", (&world{}).accept(offered), remove(offered), nil, stays},
		{"an update of one", (&world{}).accept(offeredAgain), remove(offeredAgain), nil, stays},
		{"what is not accepted", nil, remove(s), nil, stays},
		{"held, not accepted", (&world{}).hold(a, s), remove(s), nil, stays},
		{"state without any announcement", (&world{}).accept(s), remove(s), nil, goes},
		{"state of a hosted repository", (&world{}).accept(a, s), remove(s), nil, stays},
		{"state of a repository that waits", (&world{}).accept(s).hold(a), remove(s), nil, stays},
		{"state of a silent one", (&world{}).accept(s).holdAs(proto.PhaseSilent, now, "tree", a), remove(s), nil, stays},
		{"state of one that has moved away", (&world{}).accept(gone, s), remove(s), nil, goes},
		{"state of another identifier", (&world{}).accept(announce(alice, "bush", 100), s), remove(s), nil, goes},
		{"state of another's repository", (&world{}).accept(announce(carol, "tree", 100), s), remove(s), nil, goes},
		{"a maintainer's state", (&world{}).accept(announce(alice, "tree", 100, tag("maintainers", bob)), bobs), remove(bobs), nil, stays},
		{"a maintainer's state of one that waits", (&world{}).hold(announce(alice, "tree", 100, tag("maintainers", bob))).accept(bobs), remove(bobs), nil, stays},
		{"a maintainer's state of one that has moved away",
			(&world{}).accept(announceElsewhere(alice, "tree", 100, tag("maintainers", bob)), bobs), remove(bobs), nil, goes},
		{"a maintainer's maintainer's state", (&world{}).accept(announce(alice, "tree", 100, tag("maintainers", carol)),
			announceElsewhere(carol, "tree", 100, tag("maintainers", bob)), bobs), remove(bobs), nil, stays},
		{"issue of nothing", (&world{}).accept(issue), remove(issue), nil, goes},
		{"issue of a repository that is here", (&world{}).accept(a, issue), remove(issue), nil, stays},
		{"issue of another's repository too", (&world{}).accept(announce(carol, "tree", 100), both), remove(both), nil, stays},
		{"issue that a comment names", (&world{}).accept(issue, comment), remove(issue), nil, stays},
		{"issue of a repository that waits", (&world{}).accept(issue).hold(a), remove(issue), nil, stays},
		{"issue of a silent one", (&world{}).accept(issue).holdAs(proto.PhaseSilent, now, "tree", a), remove(issue), nil, stays},
		{"issue of one that waits for another identifier", (&world{}).accept(issue).hold(announce(alice, "bush", 100)), remove(issue), nil, goes},
		{"issue of a maintainer of a repository that is here",
			(&world{}).accept(announce(carol, "tree", 100, tag("maintainers", alice)), issue), remove(issue), nil, stays},
		{"issue of a maintainer of one that has moved away",
			(&world{}).accept(announceElsewhere(carol, "tree", 100, tag("maintainers", alice)), issue), remove(issue), nil, goes},
		{"issue that only a deletion request names", (&world{}).accept(issue, deletion), remove(issue), nil, goes},
		{"comment on an issue that is here", (&world{}).accept(issue, comment), remove(comment), nil, stays},
		{"pull request of nothing", (&world{}).accept(pr), remove(pr), nil, goes},
		{"pull request for a maintainer of a repository that is here",
			(&world{}).accept(announce(carol, "tree", 100, tag("maintainers", alice)), pr), remove(pr), nil, stays},
		{"pull request for a maintainer's maintainer", (&world{}).accept(announce(carol, "tree", 100, tag("maintainers", bob)),
			announceElsewhere(bob, "tree", 100, tag("maintainers", alice)), pr), remove(pr), nil, stays},
		{"pull request that quotes one that waits", (&world{}).hold(announce(carol, "tree", 100)).accept(quoting), remove(quoting), nil, stays},
		{"state that expires by itself", (&world{}).accept(expiring), remove(expiring), nil, stays},
		{"announcement", (&world{}).accept(gone), remove(gone), nil, stays},
		{"deletion request", (&world{}).accept(deletion), remove(deletion), nil, stays},
		{"grasp list", (&world{}).accept(list), remove(list), nil, stays},
	})
}
