package policy_test

import (
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// The tables follow the order in which the policy checks.

func TestKnown(t *testing.T) {
	t.Parallel()
	list := event(alice, 10317, 100)
	refused := &world{rejected: map[string]string{list.ID: "previously expired"}}
	a := announce(alice, "tree", 100)
	note := event(bob, 1, 100, atTree)
	ephemeral := event(bob, 20001, 100, atTree)
	protected := event(bob, 1, 100, atTree, tag("-"))
	heldProtected := announce(bob, "tree", 100, tag("-"))
	repost := event(carol, 6, 100, atTree)
	repost.Content = protected.String()
	repost.ID = repost.GetID()
	expired := event(bob, 1, 100, atTree, tag("expiration", "1799999999"))
	request := event(bob, 5, 200, tag("e", note.ID))
	ahead := event(bob, 1, now.Unix()+901, atTree)
	justAhead := event(bob, 1, now.Unix()+900, atTree)
	blacklisted := func(s *config.Settings) { s.EventBlacklist = []string{npub(alice)} }
	run(t, []row{
		{"blacklisted before known", accepts(list), user(list), blacklisted, banned},
		{"names what a ban hides", &world{hidden: map[string]string{note.ID: "event." + note.ID}}, user(event(carol, 1, 100, tag("e", note.ID))), nil, orphan}, // the ban has ended just now
		{"names a blacklisted repository", nil, user(note), func(s *config.Settings) { s.RepositoryBlacklist = []string{"tree"} }, banned},
		{"report on an author", accepts(a), user(event(bob, 1984, 100, tag("p", alice))), nil, isAccepted()},
		{"report on an event", accepts(a, note), user(event(carol, 1984, 100, tag("e", note.ID))), nil, isAccepted()},
		{"report on a stranger", accepts(a), user(event(bob, 1984, 100, tag("p", carol))), nil, orphan},
		{"a report vouches for nothing", accepts(event(bob, 1984, 100, tag("e", note.ID))), user(note), nil, orphan},
		{"accepted", accepts(list), user(list), nil, isDuplicate()},
		{"accepted, and left behind as held", accepts(a).hold(a), user(a), nil, isDuplicate(dropped(a))},
		{"held", holds(a), user(a), nil, isKnown()},
		{"silent, from sync", silent(a), synced(a), nil, isKnown()},
		{"silent, submitted again: a new chance", silent(a), user(a), nil, isKnown(waiting(a))},
		{"silent, imported again too", silent(a), imported(a), nil, isKnown(waiting(a))},
		{"deleted by its author", accepts(a, request), user(note), nil, isRejected("deleted", "blocked: ")},
		{"rejected before, from sync", refused, synced(list), nil, isForgotten("rejected_before", "previously expired")},
		{"rejected before, by a user: decided again", refused, user(list), nil, isAccepted()},
		{"protected, by its author", accepts(a), user(protected), nil, isAccepted()},
		{"protected, from sync", accepts(a), synced(protected), nil, isRejected("protected", "blocked: ")},
		{"protected, of an import", accepts(a), imported(protected), nil, isAccepted()},
		{"a repost of one", accepts(a), synced(repost), nil, isRejected("protected", "blocked: ")},
		{"protected, and held", holds(heldProtected), release(heldProtected), nil, isAccepted(dropped(heldProtected))},
		{"expired", accepts(a), user(expired), nil, isRejected("expired", "invalid: ")},
		{"ephemeral", accepts(a), user(ephemeral), nil, isForgotten("ephemeral", "invalid: ")},
		{"just not too far ahead", accepts(a), user(justAhead), nil, isAccepted()},
		{"ahead, from sync: not remembered", accepts(a), synced(ahead), nil, isForgotten("future", "invalid: ")},
	})
}

func TestAnnouncement(t *testing.T) {
	t.Parallel()
	a, newer, older := announce(alice, "tree", 100), announce(alice, "tree", 200), announce(alice, "tree", 50)
	gone := announceElsewhere(alice, "tree", 200)
	bobs := announceElsewhere(bob, "tree", 100)
	naming := announce(alice, "tree", 100, namesBob)
	s, other := state(alice, "tree", 150), announce(carol, "tree", 100)
	cloneOnly := event(alice, 30617, 100, tag("d", "tree"), tag("clone", "https://"+domain+"/"+npub(alice)+"/tree.git"), tag("relays", "wss://x.org"))
	relayOnly := event(alice, 30617, 100, tag("d", "tree"), tag("clone", "https://x.org/tree.git"), tag("relays", "wss://"+domain))
	wrongOwner := event(alice, 30617, 100, tag("d", "tree"), tag("clone", "https://"+domain+"/"+npub(bob)+"/tree.git"), tag("relays", "wss://"+domain))
	list := func(white, black string) func(*config.Settings) {
		return func(s *config.Settings) {
			if white != "" {
				s.RepositoryWhitelist = []string{white}
			}
			if black != "" {
				s.RepositoryBlacklist = []string{black}
			}
		}
	}
	run(t, []row{
		{"without d", nil, user(event(alice, 30617, 100)), nil, invalid},
		{"new and listing us", nil, user(a), nil, isHeld(a)},
		{"listing us only to clone", nil, user(cloneOnly), nil, notListed},
		{"listing us only as relay", nil, user(relayOnly), nil, notListed},
		{"listing another owner's repository", nil, user(wrongOwner), nil, notListed},
		{"repository blacklisted", nil, user(a), list("", npub(alice)+"/tree"), banned},
		{"blacklist before whitelist", nil, user(a), list("tree", npub(alice)), banned},
		{"a maintainer's is blacklisted too", accepts(naming), user(bobs), list("", npub(bob)), banned},
		{"whitelisted", nil, user(a), list(npub(alice)+"/tree", ""), isHeld(a)},
		{"not whitelisted", nil, user(a), list(npub(bob), ""), unlisted},
		{"replaces an accepted one", accepts(a), user(newer), nil, isAccepted()},
		{"older than the accepted one", accepts(a), user(older), nil, isDuplicate()},
		{"replaces a held one", holds(a), user(newer), nil, isHeld(newer).and(dropped(a))},
		{"older than the held one", holds(a), user(older), nil, isDuplicate()},
		{"not listing us, and of no maintainer", nil, user(bobs), nil, notListed},
		{"a maintainer's, named by an accepted one", accepts(naming), user(bobs), nil, isAccepted()},
		{"replaces one that lists us nowhere: held for its data", accepts(announceElsewhere(alice, "tree", 50)), user(a), nil, isHeld(a)},
		{"drops us after it was accepted: hosting ends", accepts(a).hold(s), user(gone), nil, isAccepted(dropped(s))},
		{"drops us while held: what never had data vouches for nothing", holds(a, s), user(gone), nil, notListed.and(dropped(a), dropped(s))},
		{"states stay while another owner's announcement does", holds(a, s, other), user(gone), nil, notListed.and(dropped(a))},
		{"and when hosting ends", accepts(a, other).hold(s), user(gone), nil, isAccepted()},
		{"drops us, but older than what is held", holds(newer, s), user(announceElsewhere(alice, "tree", 100)), nil, isDuplicate()},
	})
}

func vouchedFor(ev *nostr.Event) want {
	return want{outcome: proto.HeldBack, message: proto.MessagePurgatory, hold: []string{ev.ID[:8] + " vouched 24h30m0s"}}
}

// TestVouching: only git data that came here makes anybody else's announcement acceptable.
func TestVouching(t *testing.T) {
	t.Parallel()
	const tree = "tree"
	maintainers := func(who ...string) nostr.Tag { return append(nostr.Tag{"maintainers"}, who...) }
	alices, newer := announce(alice, tree, 100, maintainers(bob)), announce(alice, tree, 300)
	bobs := announceElsewhere(bob, tree, 100, maintainers(carol))
	bobsNewer := announceElsewhere(bob, tree, 200)
	carols := announceElsewhere(carol, tree, 100, maintainers(bob))
	daves := announceElsewhere(dave, tree, 100)
	left := announceElsewhere(alice, tree, 200, maintainers(bob))
	silent := func(evs ...*nostr.Event) *world {
		return vouches(evs...).holdAs(proto.PhaseSilent, now, tree, alices)
	}
	whitelist := func(s *config.Settings) { s.RepositoryWhitelist = []string{npub(alice)} }
	run(t, []row{
		{"A1 held, A2 elsewhere: refused, and A1 is gone", holds(alices), user(left), nil, notListed.and(dropped(alices))},
		{"named by a held one only", holds(alices), user(bobs), nil, vouchedFor(bobs)},
		{"named by a maintainer of a held one", holds(alices).vouch(bobs), user(carols), nil, vouchedFor(carols)},
		{"named by those who are not vouched for themselves", vouches(bobs), user(carols), nil, notListed},
		{"named by a loop of those", vouches(bobs), user(announceElsewhere(carol, tree, 200, maintainers(bob))), nil, notListed},
		{"not named", holds(alices), user(daves), nil, notListed},
		{"who left us names others still", accepts(left), user(bobs), nil, isAccepted()},
		{"a maintainer's replaced, named by no other now", accepts(bobs), user(bobsNewer), nil, notListed},
		{"a held maintainer's replaced", holds(alices).vouch(bobs), user(bobsNewer), nil, vouchedFor(bobsNewer).and(dropped(bobs))},
		{"and those that it vouched for go", holds(alices).vouch(bobs, carols), user(bobsNewer), nil, vouchedFor(bobsNewer).and(dropped(bobs), dropped(carols))},
		{"what vouched is deleted: all go, in a loop too", holds(alices).vouch(bobs, carols), user(event(alice, 5, 200, tag("e", alices.ID))), nil, isAccepted(dropped(alices, "deleted by its author"), dropped(bobs), dropped(carols))},
		{"but not while another vouches", holds(alices, announce(dave, tree, 100, maintainers(carol))).vouch(bobs, carols), user(event(alice, 5, 200, tag("e", alices.ID))), nil, isAccepted(dropped(alices, "deleted by its author"))},
		{"what vouched is replaced and names no key", holds(alices).vouch(bobs), user(newer), nil, isHeld(newer).and(dropped(alices), dropped(bobs))},
		{"what vouched is replaced by what is accepted and names the same: that is for the release",
			accepts(alices).hold(announce(bob, tree, 100, maintainers(carol))).vouch(carols),
			user(announceElsewhere(bob, tree, 200, maintainers(carol))), nil, isAccepted(dropped(announce(bob, tree, 100, maintainers(carol))))},
		{"what vouched expires", silent(bobs), expire(alices), nil, isDone().and(dropped(alices, "previously expired"), dropped(bobs))},
		{"its own time over, it is kept with what vouches", holds(alices).vouch(bobs), expire(bobs), nil, isDone(bobs.ID[:8] + " vouched 24h30m0s")},
		{"or goes, and may come again", vouches(bobs), expire(bobs), nil, isRejected("service_not_listed", "invalid: ").and(dropped(bobs))},
		{"released once an accepted one names it", accepts(alices).vouch(bobs), release(bobs), nil, isAccepted(dropped(bobs))},
		{"not before", holds(alices).vouch(bobs), release(bobs), nil, isDone(bobs.ID[:8] + " vouched 24h30m0s")},
		{"no state starts its clock or makes it wait for data", holds(alices).vouch(bobs), user(state(bob, tree, 200)), nil, isHeld(state(bob, tree, 200), alices)},

		{"the whitelist does not matter to maintainers of what is hosted", accepts(alices), user(announce(bob, tree, 100)), whitelist, isHeld(announce(bob, tree, 100))},
		{"nor while what is hosted waits for data", holds(alices), user(announce(bob, tree, 100)), whitelist, isHeld(announce(bob, tree, 100))},
		{"nor at the release", accepts(alices).hold(announce(bob, tree, 100)), release(announce(bob, tree, 100)), whitelist, isAccepted(dropped(announce(bob, tree, 100)))},
		{"but to maintainers of what is elsewhere", accepts(left), user(announce(bob, tree, 100)), whitelist, unlisted},
		{"a release is followed by those whom it names", holds(alices).vouch(bobs, carols), release(alices), nil, isAccepted(dropped(alices)).before(bobs)},
	})
}

// TestACrowdIsNotVouchedIn: one held announcement that names hundreds of keys lets none of them in.
func TestACrowdIsNotVouchedIn(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, settings(), policy.Bounds{})
	names := nostr.Tag{"maintainers"}
	for n := range 500 {
		names = append(names, person(100+n))
	}
	w := holds(announce(alice, "tree", 100, names))
	for n := range 500 {
		ev := announceElsewhere(person(100+n), "tree", 100)
		d := rules.Decide(w, user(ev))
		if d.Outcome != proto.HeldBack {
			t.Fatalf("%d: %s", n, d.Outcome)
		}
		w.held = append(w.held, d.Hold...)
	}
	d := rules.Decide(w, user(event(alice, 5, 200, atTree)))
	if len(d.Drop) != 501 {
		t.Errorf("%d go with what vouched for them; want all", len(d.Drop))
	}
}

func TestState(t *testing.T) {
	t.Parallel()
	a := announce(alice, "tree", 100)
	naming := announce(alice, "tree", 100, namesBob)
	bobNamesCarol := announceElsewhere(bob, "tree", 100, tag("maintainers", carol))
	carolNamesAlice := announceElsewhere(carol, "tree", 100, tag("maintainers", alice))
	s, older := state(alice, "tree", 200), state(alice, "tree", 150)
	carols := state(carol, "tree", 200)
	bad := event(alice, 30618, 100, tag("d", "tree"), tag("refs/heads/..", strings.Repeat("a", 40)))
	worse := event(alice, 30618, 100, tag("d", "tree"), tag("refs/heads/main", "zzz"))
	none := isParked("no_announcement", "invalid: no announcement exists for this repository", "d:tree")
	stranger := isParked("unauthorized", "invalid: author not authorized for this repository", "d:tree")
	silent := silent(a)
	run(t, []row{
		{"without d", nil, user(event(alice, 30618, 100)), nil, invalid},
		{"illegal name", accepts(a), user(bad), nil, invalid},
		{"a made-up value is held like any other", accepts(a), user(worse), nil, isHeld(worse)},
		{"no announcement", nil, user(s), nil, none},
		{"owner's, accepted announcement", accepts(a), user(s), nil, isHeld(s)},
		{"owner's, held announcement: its clock restarts", holds(a), user(s), nil, isHeld(s, a)},
		{"owner's, silent announcement: revived", silent, user(s), nil, isHeld(s, a)},
		{"stranger's", accepts(a), user(carols), nil, stranger},
		{"maintainer's maintainer's, through accepted and held", holds(naming).accept(bobNamesCarol), user(carols), nil, isHeld(carols, naming)},
		{"a loop of maintainers ends", accepts(naming, bobNamesCarol, carolNamesAlice), user(state(dave, "tree", 200)), nil, stranger},
		{"another's held announcement keeps its clock", accepts(a).hold(announce(bob, "tree", 100)), user(s), nil, isHeld(s)},
		{"older than the accepted state", accepts(a, s), user(older), nil, isRejected("superseded", "invalid: superseded")},
		{"older than a held state: it may be the one whose data comes", accepts(a).hold(s), user(older), nil, isHeld(older)},
	})
}

func TestPullRequest(t *testing.T) {
	t.Parallel()
	a := announce(alice, "tree", 100)
	pr := event(bob, 1618, 100, commit, atTree)
	two := event(bob, 1618, 100, commit, atBush, atTree)
	update := event(bob, 1619, 200, commit, tag("E", pr.ID))
	lower := event(bob, 1619, 200, commit, tag("e", pr.ID))
	issue := event(bob, 1621, 100, atTree)
	prs := &world{}
	naming := announce(alice, "tree", 100, tag("maintainers", carol))
	carols := event(bob, 1618, 100, commit, tag("a", repo(carol, "tree")))
	elsewhereFirst := event(bob, 1618, 100, commit, tag("a", repo(dave, "bush")), tag("a", repo(carol, "tree")))
	all := accepts(naming, pr, announceElsewhere(dave, "bush", 100), announceElsewhere(carol, "tree", 100))
	run(t, []row{
		{"without c", accepts(a), user(event(bob, 1618, 100, atTree)), nil, invalid},
		{"without a", accepts(a), user(event(bob, 1618, 100, commit)), nil, invalid},
		{"accepted repository", accepts(a), user(pr), nil, isHeld(pr)},
		{"held repository does not count", holds(a), user(pr), nil, orphan},
		{"unknown repository, from sync", prs, synced(pr), nil, isParked("orphan", "invalid: ", repo(alice, "tree"), policy.MissingAnnouncement("tree"))},
		{"one of two repositories", accepts(a), user(two), nil, isHeld(two)},
		{"repository of a maintainer who announces elsewhere", accepts(naming, announceElsewhere(carol, "tree", 100)), user(carols), nil, isHeld(carols)},
		{"of one whom only a held announcement names", holds(naming), user(carols), nil, orphan},
		{"update of an accepted one", accepts(a, pr), user(update), nil, isHeld(update)},
		{"update by e", accepts(a, pr), user(lower), nil, isHeld(lower)},
		{"update of a held one", accepts(a).holdAs(proto.PhaseWaiting, now, "tree", pr), synced(update), nil, isParked("orphan", "invalid: ", pr.ID)},
		{"update of no pull request", accepts(a, issue), user(event(bob, 1619, 200, commit, tag("E", issue.ID))), nil, orphan},
		{"update without its pull request", accepts(a), user(event(bob, 1619, 200, commit)), nil, invalid},
		{"belongs where it is served", all, user(two), nil, isHeld(two).at("tree")},
		{"an update where its pull request does", all, user(update), nil, isHeld(update).at("tree")},
		{"a maintainer's where the owner's does", all, user(carols), nil, isHeld(carols).at("tree")},
		{"before one that is elsewhere", all, user(elsewhereFirst), nil, isHeld(elsewhereFirst).at("tree")},
	})
}

func TestDeletion(t *testing.T) {
	t.Parallel()
	a, s := announce(alice, "tree", 100), state(alice, "tree", 150)
	pr := event(bob, 1618, 100, commit, atTree)
	byID := event(alice, 5, 200, tag("e", a.ID))
	byAddress := event(alice, 5, 200, atTree)
	early := event(alice, 5, 99, atTree)
	keep := func(s *config.Settings) { s.IgnoreDeletions = true }
	const by = "deleted by its author"
	run(t, []row{
		{"of nothing known: stored", nil, user(byID), nil, isAccepted()},
		{"held, by id", holds(a), user(byID), nil, isAccepted(dropped(a, by))},
		{"held, by address", holds(a), user(byAddress), nil, isAccepted(dropped(a, by))},
		{"held, by address of an earlier time", holds(a), user(early), nil, isAccepted()},
		{"held, by another author", holds(a), user(event(bob, 5, 200, tag("e", a.ID), atTree)), nil, isAccepted()},
		{"a held pull request", holdsAs(proto.PhaseWaiting, now, "tree", pr), user(event(bob, 5, 200, tag("e", pr.ID))), nil, isAccepted(dropped(pr, by))},
		{"with it go the states", holds(a, s), user(byID), nil, isAccepted(dropped(a, by), dropped(s))},
		{"states of a deleted accepted announcement go", accepts(a).hold(s), user(byAddress), nil, isAccepted(dropped(s))},
		{"unless deletions are disrespected", accepts(a).hold(s), user(byAddress), keep, isAccepted()},
		{"which held ones are not protected by", holds(a), user(byID), keep, isAccepted(dropped(a, by))},
		{"a held state by address", accepts(a).hold(s), user(event(alice, 5, 200, tag("a", "30618:"+alice+":tree"))), nil, isAccepted(dropped(s, by))},
	})
}

func TestEverythingElse(t *testing.T) {
	t.Parallel()
	a := announce(alice, "tree", 100)
	patch := event(bob, 1617, 100, atTree)
	note := event(carol, 1, 100)
	profile, metadata := event(carol, 0, 100), event(carol, 30023, 100, tag("d", "post"))
	request, grasps := event(dave, 5, 100, tag("e", note.ID)), event(dave, 10317, 100, tag("e", note.ID))
	base := func() *world { return accepts(a, patch) }
	rows := []row{
		{"names nothing", base(), user(note), nil, orphan},
		{"names nothing, from sync", base(), synced(note), nil, isParked("orphan", "invalid: ", "named:"+note.ID)},
		{"names what is not there, from sync", base(), synced(event(carol, 1, 100, tag("e", note.ID), tag("a", repo(bob, "bush")))), nil, want{outcome: proto.Rejected, reason: "orphan", message: "invalid: ", remember: true, park: true}},
		{"held announcements do not count", holds(a), user(patch), nil, orphan},
		{"identifier must match", base(), user(event(bob, 1621, 100, atBush)), nil, orphan},
		{"author must match", base(), user(event(bob, 1621, 100, tag("a", repo(bob, "tree")))), nil, orphan},
		{"named by an accepted event", base().accept(event(bob, 1111, 100, tag("q", note.ID))), user(note), nil, isAccepted()},
		{"replaceable, named by address", base().accept(event(bob, 1111, 100, tag("a", "0:"+carol+":"))), user(profile), nil, isAccepted()},
		{"addressable, named by address", base().accept(event(bob, 1111, 100, tag("A", "30023:"+carol+":post"))), user(metadata), nil, isAccepted()},
		{"a deletion request vouches for nothing", base().accept(request), user(note), nil, orphan},
		{"nor does a grasp list", base().accept(grasps), user(note), nil, orphan},
		{"nor does naming one", base().accept(request, grasps), user(event(dave, 1, 100, tag("e", request.ID), tag("a", "10317:"+dave+":"))), nil, orphan},
		{"replaceable, older", base().accept(event(carol, 0, 150), event(bob, 1111, 100, tag("a", "0:"+carol+":"))), user(profile), nil, isDuplicate()},
		{"user grasp list, from anyone", nil, user(event(dave, 10317, 100)), nil, isAccepted()},
	}
	for _, name := range []string{"a", "A", "q"} {
		rows = append(rows, row{"names an accepted address by " + name, base(), user(event(carol, 1, 100, tag(name, repo(alice, "tree")))), nil, isAccepted()})
	}
	for _, name := range []string{"e", "E", "q"} {
		rows = append(rows, row{"names an accepted id by " + name, base(), user(event(carol, 1, 100, tag(name, patch.ID))), nil, isAccepted()})
	}
	for _, kind := range []int{1, 1617, 1630} {
		rows = append(rows, row{"of any kind", base(), user(event(carol, kind, 100, atTree)), nil, isAccepted()})
	}
	run(t, rows)
}

func imported(ev *nostr.Event) *policy.Candidate {
	return &policy.Candidate{Event: ev, Lane: proto.LaneSyncHistoric, Source: proto.SourceImport}
}

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
	bobs, naming := announceElsewhere(bob, "tree", 100), announceElsewhere(alice, "tree", 300, namesBob)
	hosting := announce(alice, "tree", 100, namesBob)
	bobsHere := announce(bob, "tree", 200)
	atService := event(alice, 30617, 100, tag("d", "tree"), tag("clone", "https://grasp.example.org/"+npub(alice)+"/tree.git"))
	s := state(alice, "tree", 150)
	run(t, []row{
		{"archived", nil, synced(there), all, isHeld(there)},
		{"on the list", nil, synced(there), listed, isHeld(there)},
		{"not on the list", nil, synced(bobs), listed, notListed},
		{"at a service", nil, synced(atService), services, isHeld(atService)},
		{"blacklisted all the same", nil, synced(there), func(s *config.Settings) { all(s); s.RepositoryBlacklist = []string{"tree"} }, banned},
		{"a newer one of an archived one", accepts(there), synced(newer), all, isAccepted()},
		{"in the place of a held one", holds(there), synced(newer), all, isHeld(newer).and(dropped(there))},
		{"a maintainer's of a hosted one", accepts(hosting), synced(bobs), all, isAccepted()},
		{"named by a held one only", holds(hosting), synced(bobs), all, isHeld(bobs)},
		{"moves away and is archived from then on", accepts(here).hold(s), synced(newer), all, isAccepted()},
		{"moves away for good", accepts(here).hold(s), synced(newer), nil, isAccepted(dropped(s))},
		{"an archived one that lists us now", accepts(there), synced(hereAgain), all, isHeld(hereAgain)},
		{"lists us, and is on no list", nil, user(here), func(s *config.Settings) { all(s); s.RepositoryWhitelist = []string{"bush"} }, unlisted},
		{"lists us, named by an archived one, and is on no list", accepts(naming), user(bobsHere), func(s *config.Settings) { all(s); s.RepositoryWhitelist = []string{"bush"} }, unlisted},
		{"released", holds(there), release(there), all, isAccepted(dropped(there))},
		{"released, and not on the list any more", holds(there), release(there), services, isRejected("service_not_listed", "invalid: ").and(dropped(there))},
		{"a state of an archived one", holds(there), synced(s), all, isHeld(s, there)},
		{"a maintainer's goes with the one that names it", holds(bobs, hosting), release(hosting), all, isAccepted(dropped(hosting)).before(bobs)},
		{"and is a maintainer's", accepts(hosting).hold(bobs), release(bobs), all, isAccepted(dropped(bobs))},
	})
}

// TestRulesChangeWithTheLists, and not with their order: what was rejected by others is decided
// again.
func TestRulesChangeWithTheLists(t *testing.T) {
	t.Parallel()
	bushes := []string{"bush", "shrub"}
	seen := map[string]bool{}
	for _, p := range []config.Policy{
		{}, {ArchiveAll: true}, {ContributorPRs: true}, {RepositoryWhitelist: bushes}, {RepositoryBlacklist: bushes}, {EventBlacklist: bushes},
		{ArchiveServices: bushes}, {ArchiveWhitelist: bushes}, {ArchiveWhitelist: []string{"shrub", "bush"}},
	} {
		seen[policy.Rules(p)] = true
	}
	if len(seen) != 8 {
		t.Errorf("%d different rules, want 8", len(seen))
	}
}

// TestOfferedPullRequests: what its author offers below /prs/ (GRASP-06) is for any repository, and
// waits under the identifier where its commit is pushed.
func TestOfferedPullRequests(t *testing.T) {
	t.Parallel()
	on := func(s *config.Settings) { s.ContributorPRs = true }
	at := func(author, identifier string) string {
		return "https://" + domain + "/prs/" + npub(author) + "/" + identifier + ".git"
	}
	pr := event(bob, 1618, 100, commit, atTree, tag("clone", at(bob, "tree")))
	update := event(bob, 1619, 200, commit, tag("E", pr.ID), atTree, tag("clone", at(bob, "tree")))
	another := event(bob, 1618, 100, commit, atTree, tag("clone", at(carol, "tree")))
	untagged := event(bob, 1618, 100, commit, atBush, tag("clone", at(bob, "tree")))
	withoutCommit := event(bob, 1618, 100, atTree, tag("clone", at(bob, "tree")))
	both := event(bob, 1618, 100, commit, atBush, atTree, tag("clone", at(bob, "tree")))
	run(t, []row{
		{"offered here", nil, user(pr), on, isHeld(pr)},
		{"an update without its pull request", nil, user(update), on, isHeld(update)},
		{"while it is off", nil, user(pr), nil, orphan},
		{"in another author's place", nil, user(another), on, orphan},
		{"for an identifier that it does not tag", nil, user(untagged), on, orphan},
		{"without a commit", nil, user(withoutCommit), on, invalid},
		{"released", holdsAs(proto.PhaseWaiting, now.Add(time.Minute), "tree", pr), release(pr), on, isAccepted(dropped(pr))},
		{"released, and it is off since", holdsAs(proto.PhaseWaiting, now.Add(time.Minute), "tree", pr), release(pr), nil, orphan.and(dropped(pr))},
		{"of two, where its commit is pushed", accepts(announce(alice, "bush", 100)), user(both), on, isHeld(both).at("tree")},
	})
}

// counting counts how often held events are looked for.
type counting struct {
	policy.Knowledge
	looks int
}

func (k *counting) Held() *held.Directory {
	k.looks++
	return k.Knowledge.Held()
}

// TestRepeatedTagsCostNothing: a deletion request may name an address ten thousand times, or ones
// that are never held.
func TestRepeatedTagsCostNothing(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, settings(), policy.Bounds{})
	var tags nostr.Tags
	for range 1000 {
		tags = append(tags, nostr.Tag{"a", "30618:" + alice + ":x"}, nostr.Tag{"a", "30023:" + alice + ":x"})
	}
	k := &counting{Knowledge: &world{}}
	request := &nostr.Event{Kind: 5, PubKey: alice, CreatedAt: 1000, Tags: tags}
	request.ID = request.GetID()
	if d := rules.Decide(k, user(request)); d.Outcome != proto.Accepted {
		t.Fatalf("%+v", d)
	}
	if k.looks > 2 {
		t.Errorf("%d looks through what is held", k.looks)
	}
}
