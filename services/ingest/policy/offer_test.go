package policy_test

import (
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// TestOfferedPullRequests: what its author offers below /prs/ (GRASP-06) is for any repository, and
// waits under the identifier where its commit is pushed.
func TestOfferedPullRequests(t *testing.T) {
	t.Parallel()
	on := func(s *config.Settings) { s.ContributorPRs = true }
	commit := tag("c", strings.Repeat("b", 40))
	at := func(author, identifier string) string {
		return "https://" + domain + "/prs/" + npub(author) + "/" + identifier + ".git"
	}
	pr := event(bob, 1618, 100, commit, tag("a", repo(alice, "tree")), tag("clone", at(bob, "tree")))
	update := event(bob, 1619, 200, commit, tag("E", pr.ID), tag("a", repo(alice, "tree")), tag("clone", at(bob, "tree")))
	another := event(bob, 1618, 100, commit, tag("a", repo(alice, "tree")), tag("clone", at(carol, "tree")))
	untagged := event(bob, 1618, 100, commit, tag("a", repo(alice, "bush")), tag("clone", at(bob, "tree")))
	withoutCommit := event(bob, 1618, 100, tag("a", repo(alice, "tree")), tag("clone", at(bob, "tree")))
	orphan := isRejected("orphan", "invalid: ")
	run(t, []row{
		{"offered here", nil, user(pr), on, isHeld(pr)},
		{"offered here, from sync", nil, synced(pr), on, isHeld(pr)},
		{"an update without its pull request", nil, user(update), on, isHeld(update)},
		{"while it is off", nil, user(pr), nil, orphan},
		{"in another author's place", nil, user(another), on, orphan},
		{"for an identifier that it does not tag", nil, user(untagged), on, orphan},
		{"without a commit", nil, user(withoutCommit), on, isRejected("invalid", "invalid: ")},
		{"released", new(world).holdAs(proto.PhaseWaiting, now.Add(time.Minute), "tree", pr), action(proto.ActionRelease, pr), on, isAccepted(dropped(pr))},
		{"released, and it is off since", new(world).holdAs(proto.PhaseWaiting, now.Add(time.Minute), "tree", pr), action(proto.ActionRelease, pr), nil,
			want{outcome: proto.Rejected, reason: "orphan", message: "invalid: ", remember: true, drop: []string{dropped(pr)}}},
	})
	s := settings()
	on(&s)
	p := rulesOf(t, s, policy.Bounds{})
	both := event(bob, 1618, 100, commit, tag("a", repo(alice, "bush")), tag("a", repo(alice, "tree")), tag("clone", at(bob, "tree")))
	d := p.Decide(new(world).accept(announce(alice, "bush", 100)), user(both))
	if len(d.Hold) != 1 || d.Hold[0].Identifier != "tree" {
		t.Errorf("%+v; want it under tree, where its commit is pushed", d.Hold)
	}
}
