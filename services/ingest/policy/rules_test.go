package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"tendril.dev/lib/config"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
	"tendril.dev/test/fixture"
)

// The tables follow the order in which the policy checks.

func TestKnown(t *testing.T) {
	run(t, `
		list = alice 10317 100
		a = alice here 100
		note = bob 1 100 a=alice/tree
		naming = carol 1 100 e=note
		onAlice = bob 1984 100 p=alice
		onNote = carol 1984 100 e=note
		bobOnNote = bob 1984 100 e=note
		onCarol = bob 1984 100 p=carol
		ephemeral = bob 20001 100 a=alice/tree
		login = bob 22242 100 a=alice/tree
		proof = bob 27235 100 a=alice/tree
		protected = bob 1 100 a=alice/tree -
		heldProtected = bob here 100 -
		repost = carol 6 100 a=alice/tree content=protected
		expired = bob 1 100 a=alice/tree expiration=1799999999
		request = bob 5 200 e=note
		ahead = bob 1 1800000901 a=alice/tree
		farAhead = bob 1 9223372036854775807 a=alice/tree
		justAhead = bob 1 1800000900 a=alice/tree

		blacklisted before known | accepted list --event-blacklist=@alice | user list | rejected blacklisted blocked
		names what a ban hides, which has ended just now | hidden note | user naming | rejected orphan restricted misses named:naming, note
		names a blacklisted repository | --repository-blacklist=tree | user note | rejected blacklisted blocked
		report on an author | accepted a | user onAlice | accepted
		report on an event | accepted a note | user onNote | accepted
		report on a stranger | accepted a | user onCarol | rejected orphan restricted misses named:onCarol
		a report vouches for nothing | accepted bobOnNote | user note | rejected orphan restricted misses 30617:alice:tree, named:note
		accepted | accepted list | user list | duplicate
		accepted, and left behind as held | accepted a waiting a | user a | duplicate drops a
		held | waiting a | user a | duplicate purgatory
		silent, from sync | silent a | synced a | duplicate purgatory
		silent, submitted again: a new chance | silent a | user a | duplicate purgatory a
		silent, imported again too | silent a | imported a | duplicate purgatory a
		deleted by its author | accepted a request | user note | rejected deleted blocked next request renewed
		rejected before, from sync | refused list | synced list | rejected rejected_before previously expired forgotten
		rejected before, by a user: decided again | refused list | user list | accepted
		protected, by its author | accepted a | user protected | accepted
		protected, from sync | accepted a | synced protected | rejected protected blocked
		protected, of an import | accepted a | imported protected | accepted
		a repost of one | accepted a | synced repost | rejected protected blocked
		protected, and held | waiting heldProtected | release heldProtected | accepted drops heldProtected
		expired | accepted a | user expired | rejected expired invalid
		ephemeral | accepted a | user ephemeral | passed
		ephemeral, about nothing that is here | | user ephemeral | rejected orphan restricted forgotten misses 30617:alice:tree, named:ephemeral
		ephemeral, about what is only held | waiting a | user ephemeral | rejected orphan restricted forgotten misses 30617:alice:tree, named:ephemeral
		ephemeral, from sync | accepted a | synced ephemeral | rejected ephemeral restricted forgotten
		ephemeral, imported | accepted a | imported ephemeral | rejected ephemeral restricted forgotten
		ephemeral, by a banned author | accepted a --event-blacklist=@bob | user ephemeral | rejected blacklisted blocked
		a login | accepted a | user login | rejected ephemeral invalid forgotten
		a proof | accepted a | user proof | rejected ephemeral invalid forgotten
		just not too far ahead | accepted a | user justAhead | accepted
		at the end of time | accepted a | user farAhead | rejected future invalid forgotten
		ahead, from sync: not remembered | accepted a | synced ahead | rejected future invalid forgotten
	`)
}

func TestAnnouncement(t *testing.T) {
	run(t, `
		bare = alice 30617 100
		a = alice here 100
		newer = alice here 200
		older = alice here 50
		gone = alice elsewhere 200
		goneBefore = alice elsewhere 100
		goneFirst = alice elsewhere 50
		bobs = bob elsewhere 100
		naming = alice here 100 maintainers=bob
		s = alice state 150
		other = carol here 100
		cloneOnly = alice 30617 100 d=tree clone=https://git.example.com/@alice/tree.git relays=wss://x.org
		private = alice here 100 private=true
		relayOnly = alice 30617 100 d=tree clone=https://x.org/tree.git relays=wss://git.example.com
		wrongOwner = alice 30617 100 d=tree clone=https://git.example.com/@bob/tree.git relays=wss://git.example.com

		without d | | user bare | rejected invalid invalid
		new and listing us | | user a | held a
		listing us only to clone | | user cloneOnly | rejected service_not_listed invalid parked misses listed:30617:alice:tree
		listing us only as relay | | user relayOnly | rejected service_not_listed invalid parked misses listed:30617:alice:tree
		listing another owner's repository | | user wrongOwner | rejected service_not_listed invalid parked misses listed:30617:alice:tree
		repository blacklisted | --repository-blacklist=@alice/tree | user a | rejected blacklisted blocked
		blacklist before whitelist | --repository-whitelist=tree --repository-blacklist=@alice | user a | rejected blacklisted blocked
		a maintainer's is blacklisted too | accepted naming --repository-blacklist=@bob | user bobs | rejected blacklisted blocked
		whitelisted | --repository-whitelist=@alice/tree | user a | held a
		not whitelisted | --repository-whitelist=@bob | user a | rejected not_whitelisted blocked parked misses listed:30617:alice:tree
		replaces an accepted one | accepted a | user newer | accepted
		older than the accepted one | accepted a | user older | duplicate
		replaces a held one | waiting a | user newer | held newer drops a
		older than the held one | waiting a | user older | duplicate
		not listing us, and of no maintainer | | user bobs | rejected service_not_listed invalid parked misses listed:30617:bob:tree
		a maintainer's, named by an accepted one | accepted naming | user bobs | accepted
		replaces one that lists us nowhere: only the repository waits | accepted goneFirst | user a | accepted
		leaves under any whitelist, and hosting ends | accepted a waiting s --repository-whitelist=@bob | user newer | accepted drops s
		private | | user private | rejected private restricted | restricted: this service is public; a private repository needs a GRASP-08 service
		drops us after it was accepted: hosting ends | accepted a waiting s | user gone | accepted drops s
		drops us while held: what never had data vouches for nothing | waiting a s | user gone | rejected service_not_listed invalid parked misses listed:30617:alice:tree drops a, s
		states stay while another owner's announcement does | waiting a s other | user gone | rejected service_not_listed invalid parked misses listed:30617:alice:tree drops a
		and when hosting ends | accepted a other waiting s | user gone | accepted
		drops us, but older than what is held | waiting newer s | user goneBefore | duplicate
	`)
}

// TestVouching: only git data that came here makes anybody else's announcement acceptable.
func TestVouching(t *testing.T) {
	run(t, `
		alices = alice here 100 maintainers=bob
		newer = alice here 300
		left = alice elsewhere 200 maintainers=bob
		deletion = alice 5 200 e=alices
		bobs = bob elsewhere 100 maintainers=carol
		bobsNewer = bob elsewhere 200
		bobsHere = bob here 100
		bobAccepts = bob here 100 maintainers=alice
		bobAcceptsElsewhere = bob elsewhere 100 maintainers=alice
		bobsState = bob state 200
		bobNames = bob here 100 maintainers=carol
		bobLeft = bob elsewhere 200 maintainers=carol
		carols = carol elsewhere 100 maintainers=bob
		carolsNewer = carol elsewhere 200 maintainers=bob
		daves = dave elsewhere 100
		daveNames = dave here 100 maintainers=carol

		A1 held, A2 elsewhere: refused, and A1 is gone | waiting alices | user left | rejected service_not_listed invalid parked misses listed:30617:alice:tree drops alices
		named by a held one only | waiting alices | user bobs | held bobs vouched 24h30m0s
		named by a maintainer of a held one | waiting alices vouched bobs | user carols | held carols vouched 24h30m0s
		not named | waiting alices | user daves | rejected service_not_listed invalid parked misses listed:30617:dave:tree
		who left us names others still | accepted left | user bobs | accepted
		what replaces an accepted one is accepted, named by another or not | accepted bobs | user bobsNewer | accepted
		a held maintainer's replaced | waiting alices vouched bobs | user bobsNewer | held bobsNewer vouched 24h30m0s drops bobs
		and those that it vouched for go | waiting alices vouched bobs carols | user bobsNewer | held bobsNewer vouched 24h30m0s drops bobs, carols
		what vouched is deleted: all go, in a loop too | waiting alices vouched bobs carols | user deletion | accepted drops alices deleted by its author, bobs, carols
		but not while another vouches | waiting alices daveNames vouched bobs carols | user deletion | accepted drops alices deleted by its author
		what vouched is replaced and names no key | waiting alices vouched bobs | user newer | held newer drops alices, bobs
		what vouched is replaced by what is accepted and names the same: that is for the release | accepted alices waiting bobNames vouched carols | user bobLeft | accepted drops bobNames next carols
		what vouched expires | vouched bobs silent alices | expire alices | done drops alices previously expired, bobs
		its own time over, it is kept with what vouches | waiting alices vouched bobs | expire bobs | done bobs vouched 24h30m0s
		or goes, and may come again | vouched bobs | expire bobs | rejected service_not_listed invalid misses listed:30617:bob:tree drops bobs
		released once an accepted one names it | accepted alices vouched bobs | release bobs | accepted drops bobs
		not before | waiting alices vouched bobs | release bobs | done bobs vouched 24h30m0s
		no state starts its clock or makes it wait for data | waiting alices vouched bobAcceptsElsewhere | user bobsState | held alices, bobsState
		the whitelist does not matter to maintainers of what is hosted | accepted alices --repository-whitelist=@alice | user bobAccepts | held bobAccepts
		nor while what is hosted waits for data | waiting alices --repository-whitelist=@alice | user bobAccepts | held bobAccepts
		nor at the release | accepted alices waiting bobAccepts --repository-whitelist=@alice | release bobAccepts | accepted drops bobAccepts
		what lists us and is on no list accepts an invitation like what does not list us | accepted left --repository-whitelist=@alice | user bobsHere | accepted
		and waits with a held one | waiting alices --repository-whitelist=@alice | user bobsHere | held bobsHere vouched 24h30m0s
		or is refused | --repository-whitelist=@alice | user bobsHere | rejected not_whitelisted blocked parked misses listed:30617:bob:tree
		a release is followed by those whom it names | waiting alices vouched bobs carols | release alices | accepted drops alices next bobs
	`)
}

// TestACrowdIsNotVouchedIn: one held announcement that names hundreds of keys lets none of them in.
func TestACrowdIsNotVouchedIn(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, policy.Bounds{})
	var crowd []string
	for n := range 500 {
		crowd = append(crowd, person(100+n))
	}
	w := new(world).hold(proto.PhaseWaiting, now, event("alice here 100 maintainers="+strings.Join(crowd, ",")))
	for n, key := range crowd {
		d := rules.Decide(w, user(event(key+" elsewhere 100")))
		if d.Outcome != proto.HeldBack {
			t.Fatalf("%d: %s", n, d.Outcome)
		}
		w.held = append(w.held, d.Hold...)
	}
	if d := rules.Decide(w, user(event("alice 5 200 a=alice/tree"))); len(d.Drop) != 501 {
		t.Errorf("%d go with what vouched for them; want all", len(d.Drop))
	}
}

func TestState(t *testing.T) {
	run(t, `
		a = alice here 100
		naming = alice here 100 maintainers=bob
		bobNamesCarol = bob elsewhere 100 maintainers=alice,carol
		carolNamesBob = carol elsewhere 100 maintainers=bob
		carolLeft = carol elsewhere 100 m=carol,1,2 m=bob
		bobs = bob here 100
		bobsState = bob state 200
		twoLeads = alice here 100 M=alice M=bob
		aliceFollows = alice here 100 M=bob
		bobLeads = bob elsewhere 100 M=bob m=alice
		bobLeadsAlone = bob elsewhere 100 M=bob
		moderator = alice here 100 o=alice
		void = alice here 100 m=alice,soon
		s = alice state 200
		older = alice state 150
		bobsOlder = bob state 50
		carols = carol state 200
		daves = dave state 200
		bare = alice 30618 100
		bad = alice 30618 100 d=tree refs/heads/..=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
		worse = alice 30618 100 d=tree refs/heads/main=zzz
		longer = alice 30618 100 d=tree refs/heads/main=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa

		without d | | user bare | rejected invalid invalid
		illegal name | accepted a | user bad | rejected invalid invalid
		of git's SHA-256 format | accepted a | user longer | rejected invalid invalid
		a made-up value is held like any other | accepted a | user worse | held worse
		no announcement | | user s | rejected no_announcement invalid parked misses d:tree | invalid: no announcement exists for this repository
		owner's, accepted announcement | accepted a | user s | held s
		owner's, held announcement: its clock restarts | waiting a | user s | held a, s
		owner's, silent announcement: revived | silent a | user s | held a, s
		stranger's | accepted a | user carols | rejected unauthorized restricted parked misses by:30617:carol:tree | restricted: author not authorized for this repository
		invited, without an announcement | accepted naming | user bobsState | rejected unauthorized restricted parked misses by:30617:bob:tree | restricted: author not authorized for this repository
		invited, with an announcement of its own: for its own repository | waiting naming accepted bobs | user bobsState | held bobsState
		maintainer's maintainer's, through accepted and held | waiting naming accepted bobNamesCarol carolNamesBob | user carols | held carols, naming
		through what is silent, which it revives | silent naming accepted bobNamesCarol carolNamesBob | user carols | held carols, naming
		one that has left | accepted naming bobNamesCarol carolLeft | user carols | rejected unauthorized restricted parked misses by:30617:alice:tree, by:30617:bob:tree, by:30617:carol:tree
		a loop of maintainers ends | accepted naming bobNamesCarol carolNamesBob | user daves | rejected unauthorized restricted parked misses by:30617:dave:tree
		two leads | accepted twoLeads | user s | rejected unauthorized restricted parked misses by:30617:alice:tree, by:30617:bob:tree
		the lead's announcement is missing | accepted aliceFollows | user s | rejected unauthorized restricted parked misses by:30617:alice:tree, by:30617:bob:tree
		the lead confirms the owner | accepted aliceFollows bobLeads | user s | held s
		the lead does not | accepted aliceFollows bobLeadsAlone | user s | rejected unauthorized restricted parked misses by:30617:alice:tree, by:30617:bob:tree
		the lead's state is for the owner's repository | waiting aliceFollows accepted bobLeadsAlone | user bobsState | held aliceFollows, bobsState
		a moderator only | accepted moderator | user s | rejected unauthorized restricted parked misses by:30617:alice:tree
		a void record of the own role | accepted void | user s | rejected unauthorized restricted parked misses by:30617:alice:tree
		another's held announcement keeps its clock | accepted a waiting bobs | user s | held s
		older than the accepted state | accepted a s | user older | duplicate | duplicate: superseded by a newer event
		older than another's accepted one | waiting naming accepted bobNamesCarol carols s | user bobsOlder | held bobsOlder, naming
		older than a held state: it may be the one whose data comes | accepted a waiting s | user older | held older
	`)
}

func TestPullRequest(t *testing.T) {
	run(t, `
		a = alice here 100
		pr = bob 1618 100 c=COMMIT a=alice/tree
		two = bob 1618 100 c=COMMIT a=alice/bush a=alice/tree
		noCommit = bob 1618 100 a=alice/tree
		noAddress = bob 1618 100 c=COMMIT
		update = bob 1619 200 c=COMMIT E=pr
		lower = bob 1619 200 c=COMMIT e=pr
		lone = bob 1619 200 c=COMMIT
		named = bob 1619 200 c=COMMIT a=alice/tree
		both = bob 1619 200 c=COMMIT a=alice/tree E=pr
		issue = bob 1621 100 a=alice/tree
		ofIssue = bob 1619 200 c=COMMIT E=issue
		naming = alice here 100 maintainers=carol
		bush = dave elsewhere:bush 100
		carolsTree = carol elsewhere 100 maintainers=alice
		carols = bob 1618 100 c=COMMIT a=carol/tree
		elsewhereFirst = bob 1618 100 c=COMMIT a=dave/bush a=carol/tree

		without c | accepted a | user noCommit | rejected invalid invalid
		without a | accepted a | user noAddress | rejected invalid invalid
		accepted repository | accepted a | user pr | held pr at tree
		held repository does not count | waiting a | user pr | rejected orphan restricted misses 30617:alice:tree, d:tree
		unknown repository, from sync | | synced pr | rejected orphan restricted parked misses 30617:alice:tree, d:tree
		one of two repositories | accepted a | user two | held two at tree
		repository of a maintainer who announces elsewhere | accepted naming carolsTree | user carols | held carols at tree
		of one whom only a held announcement names | waiting naming | user carols | rejected orphan restricted misses 30617:carol:tree, d:tree
		of one who is invited and has no announcement | accepted naming | user carols | rejected orphan restricted misses 30617:carol:tree, d:tree
		update of an accepted one | accepted a pr | user update | held update at tree
		update by e | accepted a pr | user lower | held lower at tree
		update of a held one | accepted a waiting 0s pr | synced update | rejected orphan restricted parked misses pr
		update of no pull request | accepted a issue | user ofIssue | rejected orphan restricted misses issue
		update without its pull request | accepted a | user lone | rejected invalid invalid
		update that names only the repository | accepted a | user named | held named at tree
		update of a pull request that is not here | accepted a | user both | held both at tree
		belongs where it is served | accepted naming pr bush carolsTree | user two | held two at tree
		an update where its pull request does | accepted naming pr bush carolsTree | user update | held update at tree
		a maintainer's where the owner's does | accepted naming pr bush carolsTree | user carols | held carols at tree
		before one that is elsewhere | accepted naming pr bush carolsTree | user elsewhereFirst | held elsewhereFirst at tree
	`)
}

func TestDeletion(t *testing.T) {
	run(t, `
		a = alice here 100
		s = alice state 150
		pr = bob 1618 100 c=COMMIT a=alice/tree
		byID = alice 5 200 e=a
		byAddress = alice 5 200 a=alice/tree
		early = alice 5 99 a=alice/tree
		bobs = bob 5 200 e=a a=alice/tree
		ofPR = bob 5 200 e=pr
		ofState = alice 5 200 a=30618:alice:tree
		issue = alice 1621 100 a=alice/tree
		ofIssue = alice 5 200 e=issue
		vanishes = alice 62 100 relay=wss://other.example.org
		ofRequests = alice 5 200 e=byAddress e=vanishes

		of nothing known: kept for 30 days | | user byID | accepted until 30d
		held, by id | waiting a | user byID | accepted drops a deleted by its author
		held, by address | waiting a | user byAddress | accepted drops a deleted by its author
		held, by address of an earlier time | waiting a | user early | accepted until 30d
		held, by another author | waiting a | user bobs | accepted until 30d
		a held pull request | waiting 0s pr | user ofPR | accepted drops pr deleted by its author
		with it go the states | waiting a s | user byID | accepted drops a deleted by its author, s
		states of a deleted accepted announcement go | accepted a waiting s | user byAddress | accepted drops s
		an accepted issue | accepted a issue | user ofIssue | accepted
		an accepted issue, from sync | accepted a issue | synced ofIssue | accepted
		of a request: it does nothing to these | accepted byAddress vanishes | user ofRequests | accepted until 30d
		a held state by address | accepted a waiting s | user ofState | accepted drops s deleted by its author
		disrespected: stored, and nothing is removed | accepted a waiting s --deletion-request-disrespector | user byAddress | accepted until 30d
		nothing held either | waiting a --deletion-request-disrespector | user byID | accepted until 30d
		a request that keeps something out stays | accepted a ofIssue | user issue | rejected deleted blocked next ofIssue renewed | blocked: its author has asked for its deletion
	`)
}

// TestTargets: a deletion request may name so many events and addresses, with any other tags.
func TestTargets(t *testing.T) {
	t.Parallel()
	ev := event("alice 5 200 k=1")
	for i := range 2048 {
		ev.Tags = append(ev.Tags, nostr.Tag{[]string{"e", "a"}[i%2], fmt.Sprintf("%064x", i)}, nostr.Tag{"e", fmt.Sprintf("%064x", 0)})
	}
	p := rulesOf(t, policy.Bounds{})
	if d := p.Decide(accepts(), user(ev)); d.Outcome != proto.Accepted {
		t.Errorf("2,048 targets: %+v", d)
	}
	ev.Tags = append(ev.Tags, nostr.Tag{"a", "1"})
	if d := p.Decide(accepts(), user(ev)); d.Outcome != proto.Rejected || d.Message != "invalid: a deletion request may name 2048 events and addresses at most" {
		t.Errorf("2,049 targets: %+v", d)
	}
}

// TestVanish: a request to vanish that is meant for this service takes away all that its author has
// written until then, and nothing else.
func TestVanish(t *testing.T) {
	run(t, `
		a = alice here 100
		waits = alice here:bush 100
		later = alice here:late 201
		s = alice state 150
		bobs = bob here 100
		pr = alice 1618 100 c=COMMIT a=bob/tree
		issue = alice 1621 200 a=bob/tree
		laterIssue = alice 1621 201 a=bob/tree
		deletion = alice 5 150 e=issue
		laterDeletion = alice 5 201 e=bobs
		carols = carol elsewhere 100
		names = alice here 100 maintainers=carol
		all = alice 62 200 relay=ALL_RELAYS
		ours = alice 62 200 relay=wss://other.example.org relay=wss://git.example.com/
		http = alice 62 200 relay=https://GIT.example.com:443
		theirs = alice 62 200 relay=wss://other.example.org
		small = alice 62 200 relay=all_relays
		none = alice 62 200
		earlier = alice 62 100 relay=ALL_RELAYS
		ofVanish = alice 5 300 e=all

		changes nothing: kept for 30 days | accepted bobs | user all | accepted until 30d vanishes
		from sync too | accepted bobs | synced all | accepted until 30d vanishes
		all relays | accepted a | user all | accepted vanishes
		all relays, from sync | accepted a | synced all | accepted vanishes
		ours among others | accepted a | user ours | accepted vanishes
		ours in another spelling | accepted a | user http | accepted vanishes
		another's: stored, does nothing | accepted a waiting waits | user theirs | accepted until 30d
		the word in small letters is none | accepted a | user small | accepted until 30d
		without a relay | accepted a | user none | accepted until 30d
		held events are dropped | accepted bobs waiting waits pr | user all | accepted vanishes drops pr deleted by its author, waits deleted by its author
		not later ones | waiting later | user all | accepted until 30d vanishes
		repositories end: what stood only with them goes | accepted names waiting s | user all | accepted vanishes drops s deleted by its author
		and what an announcement held for others' sake | waiting names vouched carols | user all | accepted vanishes drops carols, names deleted by its author
		disrespected: stored only | accepted a waiting waits --deletion-request-disrespector | user all | accepted until 30d
		events up to the time are rejected | accepted bobs a all | user issue | rejected deleted blocked | blocked: its author has asked to vanish (NIP-62)
		states too | accepted bobs a all | user s | rejected deleted blocked | blocked: its author has asked to vanish (NIP-62)
		from sync too, and remembered | accepted bobs a all | synced issue | rejected deleted blocked
		deletion requests too | accepted a all | user deletion | rejected deleted blocked
		a request that keeps something out stays | accepted bobs all | user issue | rejected deleted blocked next all renewed
		later events are welcome | accepted bobs a all | user laterIssue | accepted
		later announcements are welcome | accepted a all | user later | held later
		later deletion requests are welcome | accepted a all | user laterDeletion | accepted until 30d
		where it does nothing nothing is rejected | accepted bobs a theirs | user issue | accepted
		an earlier request to vanish is stored | accepted bobs all | user earlier | accepted until 30d vanishes
		no deletion request takes it away | accepted a all | user ofVanish | accepted until 30d
		nor does one make it new | accepted a all ofVanish | user all | duplicate
		banned | --event-blacklist=@alice | user all | rejected blacklisted blocked
	`)
}

func TestEverythingElse(t *testing.T) {
	run(t, `
		a = alice here 100
		patch = bob 1617 100 a=alice/tree
		note = carol 1 100
		astray = carol 1 100 e=note a=bob/bush
		ofBush = bob 1621 100 a=alice/bush
		ofBobs = bob 1621 100 a=bob/tree
		profile = carol 0 100
		newProfile = carol 0 150
		post = carol 30023 100 d=post
		request = dave 5 100 e=note
		grasps = dave 10317 100 e=note
		plainGrasps = dave 10317 100
		quoting = bob 1111 100 q=note
		ofProfile = bob 1111 100 a=0:carol:
		ofPost = bob 1111 100 A=30023:carol:post
		ofRequest = dave 1 100 e=request a=10317:dave:
		byLowerA = carol 1 100 a=alice/tree
		byUpperA = carol 1 100 A=alice/tree
		byQ = carol 1 100 q=alice/tree
		byLowerE = carol 1 100 e=patch
		byUpperE = carol 1 100 E=patch
		byQID = carol 1 100 q=patch
		carolsPatch = carol 1617 100 a=alice/tree
		status = carol 1630 100 a=alice/tree
		relayList = carol 10002 100
		ownersList = alice 10002 100
		strangersList = dave 10002 100
		ofRelayList = dave 1 100 a=10002:carol:

		names nothing | accepted a patch | user note | rejected orphan restricted misses named:note
		names nothing, from sync | accepted a patch | synced note | rejected orphan restricted parked misses named:note
		names what is not there, from sync | accepted a patch | synced astray | rejected orphan restricted parked misses 30617:bob:bush, named:astray, note
		held announcements do not count | waiting a | user patch | rejected orphan restricted misses 30617:alice:tree, named:patch
		identifier must match | accepted a patch | user ofBush | rejected orphan restricted misses 30617:alice:bush, named:ofBush
		author must match | accepted a patch | user ofBobs | rejected orphan restricted misses 30617:bob:tree, named:ofBobs
		named by an accepted event | accepted a patch quoting | user note | accepted
		replaceable, named by address | accepted a patch ofProfile | user profile | accepted
		addressable, named by address | accepted a patch ofPost | user post | accepted
		a deletion request vouches for nothing | accepted a patch request | user note | rejected orphan restricted misses named:note
		nor does a grasp list | accepted a patch grasps | user note | rejected orphan restricted misses named:note
		nor does naming one | accepted a patch request grasps | user ofRequest | rejected orphan restricted misses 10317:dave:, named:ofRequest, request
		replaceable, older | accepted a patch newProfile ofProfile | user profile | duplicate
		profile of an author | accepted a patch carolsPatch | user profile | accepted
		relay list of an author, from sync | accepted a patch byLowerE | synced relayList | accepted
		relay list of an owner | accepted a | user ownersList | accepted
		profile of a stranger | accepted a patch plainGrasps | user strangersList | rejected orphan restricted misses named:10002:dave:, named:strangersList
		a relay list vouches for no one | accepted a patch carolsPatch relayList | user ofRelayList | rejected orphan restricted misses 10002:carol:, named:ofRelayList
		user grasp list, from anyone | | user plainGrasps | accepted
		names an accepted address by a | accepted a patch | user byLowerA | accepted
		names an accepted address by A | accepted a patch | user byUpperA | accepted
		names an accepted address by q | accepted a patch | user byQ | accepted
		names an accepted id by e | accepted a patch | user byLowerE | accepted
		names an accepted id by E | accepted a patch | user byUpperE | accepted
		names an accepted id by q | accepted a patch | user byQID | accepted
		a patch | accepted a patch | user carolsPatch | accepted
		a status | accepted a patch | user status | accepted
	`)
}

// TestArchive: lists us, then a maintainer's, then archived (GRASP-05), then rejected.
func TestArchive(t *testing.T) {
	run(t, `
		there = alice elsewhere 100
		newer = alice elsewhere 200
		naming = alice elsewhere 300 maintainers=bob
		here = alice here 100
		hereAgain = alice here 200
		hosting = alice here 100 maintainers=bob
		bobs = bob elsewhere 100
		bobsHere = bob here 200
		atService = alice 30617 100 d=tree clone=https://grasp.example.org/@alice/tree.git
		s = alice state 150

		archived | --archive-all | synced there | held there
		on the list | --archive-whitelist=@alice/tree,bush | synced there | held there
		not on the list | --archive-whitelist=@alice/tree,bush | synced bobs | rejected service_not_listed invalid parked misses listed:30617:bob:tree
		at a service | --archive-grasp-services=grasp.example.org | synced atService | held atService
		blacklisted all the same | --archive-all --repository-blacklist=tree | synced there | rejected blacklisted blocked
		a newer one of an archived one | accepted there --archive-all | synced newer | accepted
		in the place of a held one | waiting there --archive-all | synced newer | held newer drops there
		a maintainer's of a hosted one | accepted hosting --archive-all | synced bobs | accepted
		named by a held one only | waiting hosting --archive-all | synced bobs | held bobs
		moves away and is archived from then on | accepted here waiting s --archive-all | synced newer | accepted
		moves away for good | accepted here waiting s | synced newer | accepted drops s
		an archived one that lists us now | accepted there --archive-all | synced hereAgain | accepted
		lists us, and is on no list | --archive-all --repository-whitelist=bush | user here | rejected not_whitelisted blocked parked misses listed:30617:alice:tree
		lists us, is on no list, and accepts an invitation | accepted naming --archive-all --repository-whitelist=bush | user bobsHere | accepted
		released | waiting there --archive-all | release there | accepted drops there
		released, and not on the list any more | waiting there --archive-grasp-services=grasp.example.org | release there | rejected service_not_listed invalid misses listed:30617:alice:tree drops there
		a state of an archived one | waiting there --archive-all | synced s | held s, there
		a maintainer's goes with the one that names it | waiting bobs hosting --archive-all | release hosting | accepted drops hosting next bobs
		and is a maintainer's | accepted hosting waiting bobs --archive-all | release bobs | accepted drops bobs
	`)
}

// TestRulesChangeWithTheSettings, and not with the order of a list: what was rejected by others is
// decided again.
func TestRulesChangeWithTheSettings(t *testing.T) {
	t.Parallel()
	bushes := []string{"bush", "shrub"}
	seen := map[string]bool{}
	for _, p := range []config.Policy{
		{}, {IgnoreDeletions: true}, {ArchiveAll: true}, {ContributorPRs: true}, {RepositoryWhitelist: bushes}, {RepositoryBlacklist: bushes}, {EventBlacklist: bushes},
		{ArchiveServices: bushes}, {ArchiveWhitelist: bushes}, {ArchiveWhitelist: []string{"shrub", "bush"}},
	} {
		for _, domain := range []string{"git.example.com", "git.example.org"} {
			seen[config.Settings{Service: config.Service{Domain: domain}, Policy: p}.RulesHash()] = true
		}
	}
	if len(seen) != 18 {
		t.Errorf("%d different rules, want 18", len(seen))
	}
}

// TestOfferedPullRequests: what its author offers below /prs/ (GRASP-06) is for any repository, and
// waits under the identifier where its commit is pushed.
func TestOfferedPullRequests(t *testing.T) {
	run(t, `
		bush = alice here:bush 100
		pr = bob 1618 100 c=COMMIT a=alice/tree clone=https://git.example.com/prs/@bob/tree.git
		update = bob 1619 200 c=COMMIT E=pr a=alice/tree clone=https://git.example.com/prs/@bob/tree.git
		another = bob 1618 100 c=COMMIT a=alice/tree clone=https://git.example.com/prs/@carol/tree.git
		untagged = bob 1618 100 c=COMMIT a=alice/bush clone=https://git.example.com/prs/@bob/tree.git
		noCommit = bob 1618 100 a=alice/tree clone=https://git.example.com/prs/@bob/tree.git
		both = bob 1618 100 c=COMMIT a=alice/bush a=alice/tree clone=https://git.example.com/prs/@bob/tree.git

		offered here | --grasp06-enable | user pr | held pr at tree
		an update without its pull request | --grasp06-enable | user update | held update at tree
		while it is off | | user pr | rejected orphan restricted misses 30617:alice:tree, d:tree
		in another author's place | --grasp06-enable | user another | rejected orphan restricted misses 30617:alice:tree, d:tree
		for an identifier that it does not tag | --grasp06-enable | user untagged | rejected orphan restricted misses 30617:alice:bush, d:bush
		without a commit | --grasp06-enable | user noCommit | rejected invalid invalid
		released | waiting pr --grasp06-enable | release pr | accepted drops pr
		released, and it is off since | waiting pr | release pr | rejected orphan restricted misses 30617:alice:tree, d:tree drops pr
		of two, where its commit is pushed | accepted bush --grasp06-enable | user both | held both at tree
	`)
}

// TestTheServicesOwnKey: what it signs needs no reference, and kind 19843 is taken from it alone. Bans
// hold for it, and rules of a kind.
func TestTheServicesOwnKey(t *testing.T) {
	t.Parallel()
	p := rulesOf(t, policy.DefaultBounds)
	own, other := fixture.NewPerson().At(100), fixture.NewPerson().At(100)
	p.Own = func() string { return own.PubKey }
	for _, c := range []struct {
		who  *fixture.Person
		kind int
		want proto.Outcome
	}{
		{own, 9842, proto.Accepted}, {other, 9842, proto.Rejected}, {own, 19843, proto.Accepted}, {other, 19843, proto.Rejected},
		{own, 29846, proto.PassedOn}, {own, 30618, proto.Rejected},
	} {
		if got := p.Decide(&world{}, user(c.who.Sign(c.kind, ""))); got.Outcome != c.want {
			t.Errorf("kind %d of the own key (%t): %+v", c.kind, c.who == own, got)
		}
	}
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
	line := "alice 5 1000"
	for range 1000 {
		line += " a=30618:alice:x a=30023:alice:x"
	}
	k := &counting{Knowledge: &world{}}
	if d := rulesOf(t, policy.Bounds{}).Decide(k, user(event(line))); d.Outcome != proto.Accepted || k.looks > 2 {
		t.Errorf("%+v after %d looks through what is held", d, k.looks)
	}
}

// TestMembersAnnounce: on a private service members alone announce; on a public one nobody announces a
// repository that is to be private.
func TestMembersAnnounce(t *testing.T) {
	t.Parallel()
	member, stranger := fixture.NewPerson(), fixture.NewPerson()
	closed := rulesOf(t, policy.DefaultBounds, "--private-mode", "--private-members="+member.Npub)
	private := nostr.Tag{"private", "true"}
	for _, c := range []struct {
		rules *policy.Policy
		who   *fixture.Person
		tag   nostr.Tag
		want  proto.Outcome
		says  string
	}{
		{closed, member, private, proto.HeldBack, "purgatory: "}, {closed, stranger, private, proto.Rejected, "restricted: "},
		{rulesOf(t, policy.DefaultBounds), member, private, proto.Rejected, "restricted: this service is public; a private repository needs a GRASP-08 service"},
	} {
		announcement := c.who.On("git.example.com").At(nostr.Timestamp(now.Unix()) - 10).Announce("tree")
		announcement.Tags = append(announcement.Tags, c.tag)
		must(t, announcement.Sign(c.who.Secret))
		d := c.rules.Decide(&world{}, user(announcement))
		if d.Outcome != c.want || !strings.HasPrefix(d.Message, c.says) || d.Remember && c.rules == closed {
			t.Errorf("the decision is %+v", d)
		}
	}
}
