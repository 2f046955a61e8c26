package policy_test

import (
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// The tables follow the order in which the policy checks.

func TestKnown(t *testing.T) {
	t.Parallel()
	list := event(alice, 10317, 100)
	a := announce(alice, "tree", 100)
	note := event(bob, 1, 100, tag("a", repo(alice, "tree")))
	ephemeral := event(bob, 20001, 100, tag("a", repo(alice, "tree")))
	protected := event(bob, 1, 100, tag("a", repo(alice, "tree")), tag("-"))
	heldProtected := announce(bob, "tree", 100, tag("-"))
	repost := event(carol, 6, 100, tag("a", repo(alice, "tree")))
	repost.Content = protected.String()
	repost.ID = repost.GetID()
	expired := event(bob, 1, 100, tag("a", repo(alice, "tree")), tag("expiration", "1799999999"))
	expiring := event(bob, 1, 100, tag("a", repo(alice, "tree")), tag("expiration", "1800000001"))
	request := event(bob, 5, 200, tag("e", note.ID))
	foreign := event(carol, 5, 200, tag("e", note.ID))
	ahead := event(bob, 1, now.Unix()+901, tag("a", repo(alice, "tree")))
	justAhead := event(bob, 1, now.Unix()+900, tag("a", repo(alice, "tree")))
	blacklisted := func(s *config.Settings) { s.EventBlacklist = []string{npub(alice)} }
	run(t, []row{
		{"blacklisted author", nil, user(list), blacklisted,
			isRejected("blacklisted", "blocked: ")},
		{"blacklisted before known", (&world{}).accept(list), user(list), blacklisted,
			isRejected("blacklisted", "blocked: ")},
		{"another author is not", nil, user(event(bob, 10317, 100)), blacklisted, isAccepted()},
		{"names what a ban hides", &world{hidden: map[string]string{note.ID: "event." + note.ID}}, user(event(carol, 1, 100, tag("e", note.ID))), nil,
			isRejected("orphan", "invalid: ")}, // the ban has ended just now
		{"names a blacklisted repository", nil, user(note), func(s *config.Settings) { s.RepositoryBlacklist = []string{"tree"} },
			isRejected("blacklisted", "blocked: ")},
		{"report on an author", (&world{}).accept(a), user(event(bob, 1984, 100, tag("p", alice))), nil, isAccepted()},
		{"report on an event", (&world{}).accept(a, note), user(event(carol, 1984, 100, tag("e", note.ID))), nil, isAccepted()},
		{"report on a stranger", (&world{}).accept(a), user(event(bob, 1984, 100, tag("p", carol))), nil, isRejected("orphan", "invalid: ")},
		{"a report vouches for nothing", (&world{}).accept(event(bob, 1984, 100, tag("e", note.ID))), user(note), nil, isRejected("orphan", "invalid: ")},
		{"accepted", (&world{}).accept(list), user(list), nil, isDuplicate()},
		{"accepted, and left behind as held", (&world{}).accept(a).hold(a), user(a), nil, isDuplicate(dropped(a))},
		{"held", (&world{}).hold(a), user(a), nil, want{outcome: proto.Duplicate, message: proto.MessagePurgatory}},
		{"silent, from sync", (&world{}).holdAs(proto.PhaseSilent, now.Add(time.Hour), "tree", a), synced(a), nil,
			want{outcome: proto.Duplicate, message: proto.MessagePurgatory}},
		{"silent, submitted again: a new chance", (&world{}).holdAs(proto.PhaseSilent, now.Add(time.Hour), "tree", a), user(a), nil,
			want{outcome: proto.Duplicate, message: proto.MessagePurgatory, hold: []string{waiting(a)}}},
		{"silent, imported again too", (&world{}).holdAs(proto.PhaseSilent, now.Add(time.Hour), "tree", a), imported(a), nil,
			want{outcome: proto.Duplicate, message: proto.MessagePurgatory, hold: []string{waiting(a)}}},
		{"deleted by its author", (&world{}).accept(a, request), user(note), nil, isRejected("deleted", "blocked: ")},
		{"deletion by another is nothing", (&world{}).accept(a, foreign), user(note), nil, isAccepted()},
		{"rejected before, from sync", &world{rejected: map[string]string{list.ID: "previously expired"}}, synced(list), nil,
			want{outcome: proto.Rejected, reason: "rejected_before", message: "previously expired"}},
		{"rejected before, by a user: decided again", &world{rejected: map[string]string{list.ID: "previously expired"}}, user(list), nil,
			isAccepted()},
		{"protected, by its author", (&world{}).accept(a), user(protected), nil, isAccepted()},
		{"protected, from sync", (&world{}).accept(a), synced(protected), nil, isRejected("protected", "blocked: ")},
		{"protected, of an import", (&world{}).accept(a), imported(protected), nil, isAccepted()},
		{"a repost of one", (&world{}).accept(a), synced(repost), nil, isRejected("protected", "blocked: ")},
		{"protected, and held", (&world{}).hold(heldProtected), action(proto.ActionRelease, heldProtected), nil,
			isAccepted(dropped(heldProtected))},
		{"expired", (&world{}).accept(a), user(expired), nil, isRejected("expired", "invalid: ")},
		{"not expired yet", (&world{}).accept(a), user(expiring), nil, isAccepted()},
		{"ephemeral", (&world{}).accept(a), user(ephemeral), nil,
			want{outcome: proto.Rejected, reason: "ephemeral", message: "invalid: "}},
		{"too far ahead", (&world{}).accept(a), user(ahead), nil,
			want{outcome: proto.Rejected, reason: "future", message: "invalid: "}},
		{"just not too far ahead", (&world{}).accept(a), user(justAhead), nil, isAccepted()},
		{"ahead, from sync: not remembered", (&world{}).accept(a), synced(ahead), nil,
			want{outcome: proto.Rejected, reason: "future", message: "invalid: "}},
		{"ahead, of an import", (&world{}).accept(a), imported(ahead), nil,
			want{outcome: proto.Rejected, reason: "future", message: "invalid: "}},
	})
}

func TestAnnouncement(t *testing.T) {
	t.Parallel()
	a, newer, older := announce(alice, "tree", 100), announce(alice, "tree", 200), announce(alice, "tree", 50)
	gone := announceElsewhere(alice, "tree", 200)
	bobs := announceElsewhere(bob, "tree", 100)
	naming := announce(alice, "tree", 100, tag("maintainers", bob))
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
	blocked, unlisted := isRejected("blacklisted", "blocked: "), isRejected("not_whitelisted", "blocked: ")
	notListed := isParked("service_not_listed", "invalid: ", "d:tree")
	run(t, []row{
		{"without d", nil, user(event(alice, 30617, 100)), nil, isRejected("invalid", "invalid: ")},
		{"new and listing us", nil, user(a), nil, isHeld(a)},
		{"listing us only to clone", nil, user(cloneOnly), nil, notListed},
		{"listing us only as relay", nil, user(relayOnly), nil, notListed},
		{"listing another owner's repository", nil, user(wrongOwner), nil, notListed},
		{"repository blacklisted by owner", nil, user(a), list("", npub(alice)), blocked},
		{"by identifier", nil, user(a), list("", "tree"), blocked},
		{"by both", nil, user(a), list("", npub(alice)+"/tree"), blocked},
		{"another identifier is not", nil, user(a), list("", npub(alice)+"/bush"), isHeld(a)},
		{"blacklist before whitelist", nil, user(a), list("tree", npub(alice)), blocked},
		{"a maintainer's is blacklisted too", (&world{}).accept(naming), user(bobs), list("", npub(bob)), blocked},
		{"whitelisted by owner", nil, user(a), list(npub(alice), ""), isHeld(a)},
		{"by identifier, whitelisted", nil, user(a), list("tree", ""), isHeld(a)},
		{"by both, whitelisted", nil, user(a), list(npub(alice)+"/tree", ""), isHeld(a)},
		{"not whitelisted", nil, user(a), list(npub(bob), ""), unlisted},
		{"replaces an accepted one", (&world{}).accept(a), user(newer), nil, isAccepted()},
		{"another author's is not replaced", (&world{}).accept(other), user(a), nil, isHeld(a)},
		{"another identifier's is not replaced", (&world{}).accept(announce(alice, "bush", 100)), user(a), nil, isHeld(a)},
		{"older than the accepted one", (&world{}).accept(a), user(older), nil, isDuplicate()},
		{"replaces a held one", (&world{}).hold(a), user(newer), nil,
			want{outcome: proto.HeldBack, message: proto.MessagePurgatory, hold: []string{waiting(newer)}, drop: []string{dropped(a)}}},
		{"older than the held one", (&world{}).hold(a), user(older), nil, isDuplicate()},
		{"replaces a silent one", (&world{}).holdAs(proto.PhaseSilent, now.Add(time.Hour), "tree", a), user(newer), nil,
			want{outcome: proto.HeldBack, message: proto.MessagePurgatory, hold: []string{waiting(newer)}, drop: []string{dropped(a)}}},
		{"not listing us, and of no maintainer", nil, user(bobs), nil, notListed},
		{"a maintainer's, named by an accepted one", (&world{}).accept(naming), user(bobs), nil, isAccepted()},
		{"replaces one that lists us nowhere: held for its data", (&world{}).accept(announceElsewhere(alice, "tree", 50)), user(a), nil, isHeld(a)},
		{"named for another identifier", (&world{}).accept(announce(alice, "bush", 100, tag("maintainers", bob))), user(bobs), nil, notListed},
		{"drops us after it was accepted: hosting ends", (&world{}).accept(a).hold(s), user(gone), nil, isAccepted(dropped(s))},
		{"drops us while held: what never had data vouches for nothing", (&world{}).hold(a, s), user(gone), nil, refusedWith(notListed, dropped(a), dropped(s))},
		{"states stay while another owner's announcement does", (&world{}).hold(a, s, other), user(gone), nil, refusedWith(notListed, dropped(a))},
		{"and when hosting ends", (&world{}).accept(a, other).hold(s), user(gone), nil, isAccepted()},
		{"drops us, but older than what is held", (&world{}).hold(newer, s), user(announceElsewhere(alice, "tree", 100)), nil, isDuplicate()},
	})
}

func refusedWith(w want, drops ...string) want {
	w.drop = drops
	return w
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
	later := announceElsewhere(alice, tree, 300)
	notListed := isParked("service_not_listed", "invalid: ", "d:tree")
	silent := func(evs ...*nostr.Event) *world {
		return (&world{}).vouch(evs...).holdAs(proto.PhaseSilent, now, tree, alices)
	}
	whitelist := func(s *config.Settings) { s.RepositoryWhitelist = []string{npub(alice)} }
	run(t, []row{
		{"A1 held, A2 elsewhere: refused, and A1 is gone", (&world{}).hold(alices), user(left), nil, refusedWith(notListed, dropped(alices))},
		{"and then A3 lists us: held as any new one", nil, user(newer), nil, isHeld(newer)},
		{"named by an accepted one", (&world{}).accept(alices), user(bobs), nil, isAccepted()},
		{"named by a held one only", (&world{}).hold(alices), user(bobs), nil, vouchedFor(bobs)},
		{"named by a silent one only", silent(), user(bobs), nil, vouchedFor(bobs)},
		{"named by a maintainer of a held one", (&world{}).hold(alices).vouch(bobs), user(carols), nil, vouchedFor(carols)},
		{"named by those who are not vouched for themselves", (&world{}).vouch(bobs), user(carols), nil, notListed},
		{"named by a loop of those", (&world{}).vouch(bobs), user(announceElsewhere(carol, tree, 200, maintainers(bob))), nil, notListed},
		{"named by a maintainer who was accepted", (&world{}).accept(bobs), user(carols), nil, isAccepted()},
		{"not named", (&world{}).hold(alices), user(daves), nil, notListed},
		{"who left us names others still", (&world{}).accept(left), user(bobs), nil, isAccepted()},
		{"leaving once more is decided by the same rule", (&world{}).accept(left), user(later), nil, notListed},
		{"a maintainer's replaced, still named", (&world{}).accept(alices, bobs), user(bobsNewer), nil, isAccepted()},
		{"a maintainer's replaced, named by no other now", (&world{}).accept(bobs), user(bobsNewer), nil, notListed},
		{"a held maintainer's replaced", (&world{}).hold(alices).vouch(bobs), user(bobsNewer), nil,
			want{outcome: proto.HeldBack, message: proto.MessagePurgatory, hold: []string{bobsNewer.ID[:8] + " vouched 24h30m0s"}, drop: []string{dropped(bobs)}}},
		{"and those that it vouched for go", (&world{}).hold(alices).vouch(bobs, carols), user(bobsNewer), nil,
			want{outcome: proto.HeldBack, message: proto.MessagePurgatory, hold: []string{bobsNewer.ID[:8] + " vouched 24h30m0s"},
				drop: []string{dropped(bobs), dropped(carols)}}},
		{"submitted again it stays as it is", (&world{}).hold(alices).vouch(bobs), user(bobs), nil, want{outcome: proto.Duplicate, message: proto.MessagePurgatory}},
		{"what vouched is deleted: all go, in a loop too", (&world{}).hold(alices).vouch(bobs, carols), user(event(alice, 5, 200, tag("e", alices.ID))), nil,
			isAccepted(dropped(alices, "deleted by its author"), dropped(bobs), dropped(carols))},
		{"but not while another vouches", (&world{}).hold(alices, announce(dave, tree, 100, maintainers(carol))).vouch(bobs, carols),
			user(event(alice, 5, 200, tag("e", alices.ID))), nil, isAccepted(dropped(alices, "deleted by its author"))},
		{"what vouched is replaced and names no key", (&world{}).hold(alices).vouch(bobs), user(newer), nil,
			want{outcome: proto.HeldBack, message: proto.MessagePurgatory, hold: []string{waiting(newer)}, drop: []string{dropped(alices), dropped(bobs)}}},
		{"what vouched is replaced and names the same", (&world{}).hold(alices).vouch(bobs), user(announce(alice, tree, 300, maintainers(bob))), nil,
			want{outcome: proto.HeldBack, message: proto.MessagePurgatory, hold: []string{waiting(announce(alice, tree, 300, maintainers(bob)))}, drop: []string{dropped(alices)}}},
		{"what vouched is replaced by what is accepted and names the same: that is for the release",
			(&world{}).accept(alices).hold(announce(bob, tree, 100, maintainers(carol))).vouch(carols),
			user(announceElsewhere(bob, tree, 200, maintainers(carol))), nil, isAccepted(dropped(announce(bob, tree, 100, maintainers(carol))))},
		{"what vouched expires", silent(bobs), action(proto.ActionExpire, alices), nil,
			want{outcome: proto.Done, drop: []string{dropped(alices, "previously expired"), dropped(bobs)}}},
		{"its own time over, it is kept with what vouches", (&world{}).hold(alices).vouch(bobs), action(proto.ActionExpire, bobs), nil,
			want{outcome: proto.Done, hold: []string{bobs.ID[:8] + " vouched 24h30m0s"}}},
		{"or goes, and may come again", (&world{}).vouch(bobs), action(proto.ActionExpire, bobs), nil, refusedWith(isRejected("service_not_listed", "invalid: "), dropped(bobs))},
		{"released once an accepted one names it", (&world{}).accept(alices).vouch(bobs), action(proto.ActionRelease, bobs), nil, isAccepted(dropped(bobs))},
		{"not before", (&world{}).hold(alices).vouch(bobs), action(proto.ActionRelease, bobs), nil,
			want{outcome: proto.Done, hold: []string{bobs.ID[:8] + " vouched 24h30m0s"}}},
		{"no state starts its clock or makes it wait for data", (&world{}).hold(alices).vouch(bobs), user(state(bob, tree, 200)), nil,
			isHeld(state(bob, tree, 200), alices)},

		{"the whitelist does not matter to maintainers of what is hosted", (&world{}).accept(alices), user(announce(bob, tree, 100)), whitelist, isHeld(announce(bob, tree, 100))},
		{"nor to their maintainers", (&world{}).accept(alices, bobs), user(announce(carol, tree, 100)), whitelist, isHeld(announce(carol, tree, 100))},
		{"nor while what is hosted waits for data", (&world{}).hold(alices), user(announce(bob, tree, 100)), whitelist, isHeld(announce(bob, tree, 100))},
		{"nor at the release", (&world{}).accept(alices).hold(announce(bob, tree, 100)), action(proto.ActionRelease, announce(bob, tree, 100)), whitelist,
			isAccepted(dropped(announce(bob, tree, 100)))},
		{"but to maintainers of what is elsewhere", (&world{}).accept(left), user(announce(bob, tree, 100)), whitelist,
			isRejected("not_whitelisted", "blocked: ")},
		{"and to those of another identifier", (&world{}).accept(alices), user(announce(bob, "bush", 100)), whitelist,
			isRejected("not_whitelisted", "blocked: ")},
	})
	rules := rulesOf(t, settings(), policy.Bounds{})
	d := rules.Decide((&world{}).hold(alices).vouch(bobs, carols), action(proto.ActionRelease, alices))
	if len(d.Next) != 1 || d.Next[0].Event.ID != bobs.ID || d.Next[0].Action != proto.ActionRelease || len(d.Next[0].Raw) == 0 {
		t.Errorf("the release is followed by %+v; want the maintainer whom it names", d.Next)
	}
}

// TestACrowdIsNotVouchedIn: one held announcement that names hundreds of keys lets none of them in.
func TestACrowdIsNotVouchedIn(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, settings(), policy.Bounds{})
	names := nostr.Tag{"maintainers"}
	for n := range 500 {
		names = append(names, person(100+n))
	}
	w := (&world{}).hold(announce(alice, "tree", 100, names))
	for n := range 500 {
		ev := announceElsewhere(person(100+n), "tree", 100)
		d := rules.Decide(w, user(ev))
		if d.Outcome != proto.HeldBack {
			t.Fatalf("%d: %s", n, d.Outcome)
		}
		w.held = append(w.held, d.Hold...)
	}
	d := rules.Decide(w, user(event(alice, 5, 200, tag("a", repo(alice, "tree")))))
	if len(d.Drop) != 501 {
		t.Errorf("%d go with what vouched for them; want all", len(d.Drop))
	}
}

func TestState(t *testing.T) {
	t.Parallel()
	a := announce(alice, "tree", 100)
	naming := announce(alice, "tree", 100, tag("maintainers", bob))
	bobNamesCarol := announceElsewhere(bob, "tree", 100, tag("maintainers", carol))
	carolNamesAlice := announceElsewhere(carol, "tree", 100, tag("maintainers", alice))
	s, older := state(alice, "tree", 200), state(alice, "tree", 150)
	carols := state(carol, "tree", 200)
	bad := event(alice, 30618, 100, tag("d", "tree"), tag("refs/heads/..", strings.Repeat("a", 40)))
	worse := event(alice, 30618, 100, tag("d", "tree"), tag("refs/heads/main", "zzz"))
	none := isParked("no_announcement", "invalid: no announcement exists for this repository", "d:tree")
	stranger := isParked("unauthorized", "invalid: author not authorized for this repository", "d:tree")
	silent := (&world{}).holdAs(proto.PhaseSilent, now.Add(time.Hour), "tree", a)
	run(t, []row{
		{"without d", nil, user(event(alice, 30618, 100)), nil, isRejected("invalid", "invalid: ")},
		{"illegal name", (&world{}).accept(a), user(bad), nil, isRejected("invalid", "invalid: ")},
		{"a made-up value is held like any other", (&world{}).accept(a), user(worse), nil, isHeld(worse)},
		{"no announcement", nil, user(s), nil, none},
		{"no announcement of this identifier", (&world{}).accept(announce(alice, "bush", 100)), synced(s), nil, none},
		{"owner's, accepted announcement", (&world{}).accept(a), user(s), nil, isHeld(s)},
		{"owner's, held announcement: its clock restarts", (&world{}).hold(a), user(s), nil, isHeld(s, a)},
		{"owner's, silent announcement: revived", silent, user(s), nil, isHeld(s, a)},
		{"stranger's", (&world{}).accept(a), user(carols), nil, stranger},
		{"maintainer's", (&world{}).accept(naming), user(state(bob, "tree", 200)), nil, isHeld(state(bob, "tree", 200))},
		{"maintainer's maintainer's, through accepted and held", (&world{}).hold(naming).accept(bobNamesCarol), user(carols), nil,
			isHeld(carols, naming)},
		{"a loop of maintainers ends", (&world{}).accept(naming, bobNamesCarol, carolNamesAlice), user(state(dave, "tree", 200)), nil, stranger},
		{"another's held announcement keeps its clock", (&world{}).accept(a).hold(announce(bob, "tree", 100)), user(s), nil, isHeld(s)},
		{"older than the accepted state", (&world{}).accept(a, s), user(older), nil,
			isRejected("superseded", "invalid: superseded")},
		{"older than a held state: it may be the one whose data comes", (&world{}).accept(a).hold(s), user(older), nil, isHeld(older)},
		{"newer than the accepted state", (&world{}).accept(a, older), user(s), nil, isHeld(s)},
	})
}

func TestPullRequest(t *testing.T) {
	t.Parallel()
	a := announce(alice, "tree", 100)
	commit := tag("c", strings.Repeat("b", 40))
	pr := event(bob, 1618, 100, commit, tag("a", repo(alice, "tree")))
	two := event(bob, 1618, 100, commit, tag("a", repo(alice, "bush")), tag("a", repo(alice, "tree")))
	update := event(bob, 1619, 200, commit, tag("E", pr.ID))
	lower := event(bob, 1619, 200, commit, tag("e", pr.ID))
	issue := event(bob, 1621, 100, tag("a", repo(alice, "tree")))
	prs := &world{}
	naming := announce(alice, "tree", 100, tag("maintainers", carol))
	carols := event(bob, 1618, 100, commit, tag("a", repo(carol, "tree")))
	elsewhereFirst := event(bob, 1618, 100, commit, tag("a", repo(dave, "bush")), tag("a", repo(carol, "tree")))
	run(t, []row{
		{"without c", (&world{}).accept(a), user(event(bob, 1618, 100, tag("a", repo(alice, "tree")))), nil, isRejected("invalid", "invalid: ")},
		{"c is no commit", (&world{}).accept(a), user(event(bob, 1618, 100, tag("c", "main"), tag("a", repo(alice, "tree")))), nil,
			isRejected("invalid", "invalid: ")},
		{"without a", (&world{}).accept(a), user(event(bob, 1618, 100, commit)), nil, isRejected("invalid", "invalid: ")},
		{"accepted repository", (&world{}).accept(a), user(pr), nil, isHeld(pr)},
		{"held repository does not count", (&world{}).hold(a), user(pr), nil, isRejected("orphan", "invalid: ")},
		{"unknown repository, from sync", prs, synced(pr), nil, isParked("orphan", "invalid: ", repo(alice, "tree"), policy.MissingAnnouncement("tree"))},
		{"the same name of another owner", (&world{}).accept(announce(carol, "tree", 100)), user(pr), nil, isRejected("orphan", "invalid: ")},
		{"one of two repositories", (&world{}).accept(a), user(two), nil, isHeld(two)},
		{"repository of a maintainer who announces elsewhere", (&world{}).accept(naming, announceElsewhere(carol, "tree", 100)), user(carols), nil, isHeld(carols)},
		{"of a maintainer who announces nothing", (&world{}).accept(naming), user(carols), nil, isHeld(carols)},
		{"of one whom only a held announcement names", (&world{}).hold(naming), user(carols), nil, isRejected("orphan", "invalid: ")},
		{"update of an accepted one", (&world{}).accept(a, pr), user(update), nil, isHeld(update)},
		{"update by e", (&world{}).accept(a, pr), user(lower), nil, isHeld(lower)},
		{"update of a held one", (&world{}).accept(a).holdAs(proto.PhaseWaiting, now, "tree", pr), synced(update), nil,
			isParked("orphan", "invalid: ", pr.ID)},
		{"update of no pull request", (&world{}).accept(a, issue), user(event(bob, 1619, 200, commit, tag("E", issue.ID))), nil,
			isRejected("orphan", "invalid: ")},
		{"update without its pull request", (&world{}).accept(a), user(event(bob, 1619, 200, commit)), nil, isRejected("invalid", "invalid: ")},
	})
	p := rulesOf(t, settings(), policy.Bounds{})
	for _, ev := range []*nostr.Event{two, update, carols, elsewhereFirst} {
		d := p.Decide((&world{}).accept(naming, pr, announceElsewhere(dave, "bush", 100), announceElsewhere(carol, "tree", 100)), user(ev))
		if len(d.Hold) != 1 || d.Hold[0].Identifier != "tree" {
			t.Errorf("kind %d belongs to %+v; want tree", ev.Kind, d.Hold)
		}
	}
}

func TestDeletion(t *testing.T) {
	t.Parallel()
	a, s, other := announce(alice, "tree", 100), state(alice, "tree", 150), announce(carol, "tree", 100)
	pr := event(bob, 1618, 100, tag("c", strings.Repeat("b", 40)), tag("a", repo(alice, "tree")))
	byID := event(alice, 5, 200, tag("e", a.ID))
	byAddress := event(alice, 5, 200, tag("a", repo(alice, "tree")))
	early := event(alice, 5, 99, tag("a", repo(alice, "tree")))
	keep := func(s *config.Settings) { s.IgnoreDeletions = true }
	const by = "deleted by its author"
	run(t, []row{
		{"of nothing known: stored", nil, user(byID), nil, isAccepted()},
		{"held, by id", (&world{}).hold(a), user(byID), nil, isAccepted(dropped(a, by))},
		{"held, by address", (&world{}).hold(a), user(byAddress), nil, isAccepted(dropped(a, by))},
		{"held and silent", (&world{}).holdAs(proto.PhaseSilent, now, "tree", a), user(byAddress), nil, isAccepted(dropped(a, by))},
		{"held, by address of an earlier time", (&world{}).hold(a), user(early), nil, isAccepted()},
		{"held, by another author", (&world{}).hold(a), user(event(bob, 5, 200, tag("e", a.ID), tag("a", repo(alice, "tree")))), nil, isAccepted()},
		{"a held pull request", (&world{}).holdAs(proto.PhaseWaiting, now, "tree", pr), user(event(bob, 5, 200, tag("e", pr.ID))), nil,
			isAccepted(dropped(pr, by))},
		{"with it go the states", (&world{}).hold(a, s), user(byID), nil, isAccepted(dropped(a, by), dropped(s))},
		{"states stay while another owner's announcement does", (&world{}).hold(a, s, other), user(byID), nil, isAccepted(dropped(a, by))},
		{"states of a deleted accepted announcement go", (&world{}).accept(a).hold(s), user(byAddress), nil, isAccepted(dropped(s))},
		{"unless deletions are disrespected", (&world{}).accept(a).hold(s), user(byAddress), keep, isAccepted()},
		{"which held ones are not protected by", (&world{}).hold(a), user(byID), keep, isAccepted(dropped(a, by))},
		{"a held state by address", (&world{}).accept(a).hold(s), user(event(alice, 5, 200, tag("a", "30618:"+alice+":tree"))), nil,
			isAccepted(dropped(s, by))},
	})
}

func TestEverythingElse(t *testing.T) {
	t.Parallel()
	a := announce(alice, "tree", 100)
	patch := event(bob, 1617, 100, tag("a", repo(alice, "tree")))
	note := event(carol, 1, 100)
	profile, metadata := event(carol, 0, 100), event(carol, 30023, 100, tag("d", "post"))
	request, grasps := event(dave, 5, 100, tag("e", note.ID)), event(dave, 10317, 100, tag("e", note.ID))
	orphan := isRejected("orphan", "invalid: ")
	base := func() *world { return (&world{}).accept(a, patch) }
	rows := []row{
		{"names nothing", base(), user(note), nil, orphan},
		{"names nothing, from sync", base(), synced(note), nil, isParked("orphan", "invalid: ", "named:"+note.ID)},
		{"names what is not there, from sync", base(), synced(event(carol, 1, 100, tag("e", note.ID), tag("a", repo(bob, "bush")))), nil,
			want{outcome: proto.Rejected, reason: "orphan", message: "invalid: ", remember: true, park: true}},
		{"held announcements do not count", (&world{}).hold(a), user(patch), nil, orphan},
		{"identifier must match", base(), user(event(bob, 1621, 100, tag("a", repo(alice, "bush")))), nil, orphan},
		{"author must match", base(), user(event(bob, 1621, 100, tag("a", repo(bob, "tree")))), nil, orphan},
		{"kind must match", base(), user(event(bob, 1621, 100, tag("a", "30618:"+alice+":tree"))), nil, orphan},
		{"named by an accepted event", base().accept(event(bob, 1111, 100, tag("q", note.ID))), user(note), nil, isAccepted()},
		{"replaceable, named by address", base().accept(event(bob, 1111, 100, tag("a", "0:"+carol+":"))), user(profile), nil, isAccepted()},
		{"addressable, named by address", base().accept(event(bob, 1111, 100, tag("A", "30023:"+carol+":post"))), user(metadata), nil, isAccepted()},
		{"a deletion request vouches for nothing", base().accept(request), user(note), nil, orphan},
		{"nor does a grasp list", base().accept(grasps), user(note), nil, orphan},
		{"nor does naming one", base().accept(request, grasps), user(event(dave, 1, 100, tag("e", request.ID), tag("a", "10317:"+dave+":"))), nil, orphan},
		{"replaceable, newest", base().accept(event(carol, 0, 50), event(bob, 1111, 100, tag("a", "0:"+carol+":"))), user(profile), nil, isAccepted()},
		{"replaceable, older", base().accept(event(carol, 0, 150), event(bob, 1111, 100, tag("a", "0:"+carol+":"))), user(profile), nil, isDuplicate()},
		{"user grasp list, from anyone", nil, user(event(dave, 10317, 100)), nil, isAccepted()},
		{"older user grasp list", (&world{}).accept(event(dave, 10317, 200)), user(event(dave, 10317, 100)), nil, isDuplicate()},
	}
	for _, name := range []string{"a", "A", "q"} {
		rows = append(rows, row{"names an accepted address by " + name, base(), user(event(carol, 1, 100, tag(name, repo(alice, "tree")))), nil, isAccepted()})
	}
	for _, name := range []string{"e", "E", "q"} {
		rows = append(rows, row{"names an accepted id by " + name, base(), user(event(carol, 1, 100, tag(name, patch.ID))), nil, isAccepted()})
	}
	for _, kind := range []int{1, 7, 1111, 1617, 1621, 1630, 1633} {
		rows = append(rows, row{"of any kind", base(), user(event(carol, kind, 100, tag("a", repo(alice, "tree")))), nil, isAccepted()})
	}
	run(t, rows)
}

// At equal time the lower id wins.
func TestEqualTime(t *testing.T) {
	t.Parallel()
	low, high := event(dave, 10317, 100, tag("g", "1")), event(dave, 10317, 100, tag("g", "2"))
	if low.ID > high.ID {
		low, high = high, low
	}
	run(t, []row{
		{"higher id after lower", (&world{}).accept(low), user(high), nil, isDuplicate()},
		{"lower id after higher", (&world{}).accept(high), user(low), nil, isAccepted()},
	})
}

func imported(ev *nostr.Event) *policy.Candidate {
	return &policy.Candidate{Event: ev, Lane: proto.LaneSyncHistoric, Source: proto.SourceImport}
}
