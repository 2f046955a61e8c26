package policy_test

import (
	"testing"

	"tendril.dev/lib/config"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// TestArchive: lists us, then a maintainer's, then archived (GRASP-05), then rejected.
func TestArchive(t *testing.T) {
	t.Parallel()
	archive := func(set func(*config.Policy)) func(*config.Settings) {
		return func(s *config.Settings) { set(&s.Policy) }
	}
	all := archive(func(p *config.Policy) { p.ArchiveAll = true })
	listed := archive(func(p *config.Policy) { p.ArchiveWhitelist = []string{npub(alice) + "/tree", "bush"} })
	services := archive(func(p *config.Policy) { p.ArchiveServices = []string{"grasp.example.org"} })

	there, newer := announceElsewhere(alice, "tree", 100), announceElsewhere(alice, "tree", 200)
	here, hereAgain := announce(alice, "tree", 100), announce(alice, "tree", 200)
	bobs, naming := announceElsewhere(bob, "tree", 100), announceElsewhere(alice, "tree", 300, tag("maintainers", bob))
	hosting := announce(alice, "tree", 100, tag("maintainers", bob))
	bobsHere := announce(bob, "tree", 200)
	atService := event(alice, 30617, 100, tag("d", "tree"), tag("clone", "https://grasp.example.org/"+npub(alice)+"/tree.git"))
	s := state(alice, "tree", 150)
	notListed := isParked("service_not_listed", "invalid: ", "d:tree")
	run(t, []row{
		{"archived", nil, synced(there), all, isHeld(there)},
		{"submitted by a user", nil, user(there), all, isHeld(there)},
		{"on the list", nil, synced(there), listed, isHeld(there)},
		{"not on the list", nil, synced(bobs), listed, notListed},
		{"at a service", nil, synced(atService), services, isHeld(atService)},
		{"at none of the services", nil, synced(there), services, notListed},
		{"blacklisted all the same", nil, synced(there), func(s *config.Settings) { all(s); s.RepositoryBlacklist = []string{"tree"} },
			isRejected("blacklisted", "blocked: ")},
		{"a newer one of an archived one", new(world).accept(there), synced(newer), all, isAccepted()},
		{"in the place of a held one", new(world).hold(there), synced(newer), all,
			want{outcome: proto.HeldBack, message: proto.MessagePurgatory, hold: []string{waiting(newer)}, drop: []string{dropped(there)}}},
		{"a maintainer's of a hosted one", new(world).accept(hosting), synced(bobs), all, isAccepted()},
		{"named by a held one only", new(world).hold(hosting), synced(bobs), all, isHeld(bobs)},
		{"moves away and is archived from then on", new(world).accept(here).hold(s), synced(newer), all, isAccepted()},
		{"moves away for good", new(world).accept(here).hold(s), synced(newer), nil, isAccepted(dropped(s))},
		{"an archived one that lists us now", new(world).accept(there), synced(hereAgain), all, isHeld(hereAgain)},
		{"lists us, and is on no list", nil, user(here), func(s *config.Settings) { all(s); s.RepositoryWhitelist = []string{"bush"} },
			isRejected("not_whitelisted", "blocked: ")},
		{"lists us, named by an archived one, and is on no list", new(world).accept(naming), user(bobsHere),
			func(s *config.Settings) { all(s); s.RepositoryWhitelist = []string{"bush"} }, isRejected("not_whitelisted", "blocked: ")},
		{"lists us, named by a held archived one, and is on no list", new(world).hold(naming), user(bobsHere),
			func(s *config.Settings) { all(s); s.RepositoryWhitelist = []string{"bush"} }, isRejected("not_whitelisted", "blocked: ")},
		{"released", new(world).hold(there), action(proto.ActionRelease, there), all, isAccepted(dropped(there))},
		{"released, and archived no more", new(world).hold(there), action(proto.ActionRelease, there), listed, isAccepted(dropped(there))},
		{"released, and not on the list any more", new(world).hold(there), action(proto.ActionRelease, there), services,
			want{outcome: proto.Rejected, reason: "service_not_listed", message: "invalid: ", remember: true, drop: []string{dropped(there)}}},
		{"a state of an archived one", new(world).hold(there), synced(s), all,
			want{outcome: proto.HeldBack, message: proto.MessagePurgatory, hold: []string{waiting(s), waiting(there)}}},
	})
}

// TestAnArchivedMaintainersAnnouncementIsAcceptedWithTheOneThatNamesIt: in any order they
// come, a maintainer's comes before what is archived.
func TestAnArchivedMaintainersAnnouncementIsAcceptedWithTheOneThatNamesIt(t *testing.T) {
	t.Parallel()
	s := settings()
	s.ArchiveAll = true
	p := rulesOf(t, s, policy.Bounds{})
	bobs, naming := announceElsewhere(bob, "tree", 100), announce(alice, "tree", 100, tag("maintainers", bob))
	d := p.Decide(new(world).hold(bobs, naming), action(proto.ActionRelease, naming))
	if d.Outcome != proto.Accepted || len(d.Next) != 1 || d.Next[0].Event.ID != bobs.ID {
		t.Errorf("%+v; want bob's to be decided next", d)
	}
	if d = p.Decide(new(world).accept(naming).hold(bobs), action(proto.ActionRelease, bobs)); d.Outcome != proto.Accepted {
		t.Errorf("%+v", d)
	}
}

// TestRulesChangeWithTheLists, and not with their order: what was rejected by others is decided
// again.
func TestRulesChangeWithTheLists(t *testing.T) {
	t.Parallel()
	of := func(set func(*config.Policy)) string {
		var p config.Policy
		set(&p)
		return policy.Rules(p)
	}
	archive := of(func(p *config.Policy) { p.ArchiveWhitelist = []string{"bush", "shrub"} })
	if archive != of(func(p *config.Policy) { p.ArchiveWhitelist = []string{"shrub", "bush"} }) {
		t.Error("the order counts")
	}
	seen := map[string]bool{archive: true}
	for _, set := range []func(*config.Policy){
		func(*config.Policy) {}, func(p *config.Policy) { p.ArchiveAll = true }, func(p *config.Policy) { p.ContributorPRs = true },
		func(p *config.Policy) { p.RepositoryWhitelist = []string{"bush", "shrub"} },
		func(p *config.Policy) { p.RepositoryBlacklist = []string{"bush", "shrub"} },
		func(p *config.Policy) { p.EventBlacklist = []string{"bush", "shrub"} },
		func(p *config.Policy) { p.ArchiveServices = []string{"bush", "shrub"} },
	} {
		seen[of(set)] = true
	}
	if len(seen) != 8 {
		t.Errorf("%d different rules, want 8", len(seen))
	}
}
