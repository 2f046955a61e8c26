package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

const domain = "git.example.com"

var (
	alice = strings.Repeat("a1", 32)
	bob   = strings.Repeat("b0", 32)
	carol = strings.Repeat("c0", 32)
)

// announce makes an announcement that lists our service and more: other relays, maintainers.
func announce(author, d string, created nostr.Timestamp, more ...string) *nostr.Event {
	return fixture.Unsigned(author).At(created).On(domain).Announce(d, more...)
}

// elsewhere makes an announcement that does not list us.
func elsewhere(author, d string, created nostr.Timestamp, relay string, maintainers ...string) *nostr.Event {
	return fixture.Unsigned(author).At(created).Sign(nostr.KindAnnouncement, "",
		nostr.Tag{"d", d}, nostr.Tag{"clone", "https://other.example/x.git"}, nostr.Tag{"relays", relay}, append(nostr.Tag{"maintainers"}, maintainers...))
}

func deletion(author string, created nostr.Timestamp, tag ...string) *nostr.Event {
	return fixture.Unsigned(author).At(created).Sign(nostr.KindDeletion, "", tag)
}

func vanish(author string, created nostr.Timestamp, relay string) *nostr.Event {
	return fixture.Unsigned(author).At(created).Sign(nostr.KindVanish, "", nostr.Tag{"relay", relay})
}

func ref(author, d string) string { return "30617:" + author + ":" + d }

// entry is a held announcement that a client brought at some time.
func entry(t testing.TB, ev *nostr.Event, client string, at int) *held.Entry {
	t.Helper()
	e, err := held.NewEntry(proto.Held{Event: ev, Identifier: ev.Tags.GetD(), Phase: proto.PhaseWaiting, Client: client, HeldAt: time.Unix(int64(at), 0)})
	must(t, err)
	return e
}

// lines are what targets say: the relay, and of each repository its owner, identifier and level.
func lines(all map[string]proto.Target) (lines []string) {
	for key, t := range all {
		for ref, r := range t.Repos {
			line := fmt.Sprintf("%s %s:%s %s", key, ref[6:8], ref[len("30617:")+65:], r.Level)
			lines = append(lines, line)
		}
		if len(t.Repos) == 0 {
			lines = append(lines, key)
		}
	}
	slices.Sort(lines)
	return lines
}

// TestTargets: what is accepted; what waits; the targets.
func TestTargets(t *testing.T) {
	t.Parallel()
	const r, s = "wss://r.example", "wss://s.example"
	x, expired := announce(alice, "x", 5, r), announce(alice, "x", 5, r)
	expired.Tags = append(expired.Tags, nostr.Tag{"expiration", fmt.Sprint(time.Now().Unix() - 1)})
	events := map[string]*nostr.Event{
		"x": x, "expired": expired, "newer": announce(alice, "x", 6, s), "names-bob": announce(alice, "x", 5, r, bob),
		"ours": announce(alice, "x", 5, "ws://GIT.example.com:80/", "wss://git.example.com:443"), "twice": announce(alice, "x", 5, "ws://r.example:443", "wss://R.example/"),
		"gone": elsewhere(alice, "x", 6, r), "gone-names-bob": elsewhere(alice, "x", 6, r, bob),
		"back": announce(alice, "x", 7, r), "bobs-nowhere": elsewhere(bob, "x", 5, ""), "bobs-back": announce(bob, "x", 6, s),
		"bobs": elsewhere(bob, "x", 5, s), "bobs-accepts": elsewhere(bob, "x", 5, s, alice, carol), "bobs-here": announce(bob, "x", 5, s),
		"bobs-here-carol": announce(bob, "x", 5, s, carol), "names-bob-newer": announce(alice, "x", 6, s, bob),
		"vanishes": vanish(alice, 5, "ALL_RELAYS"), "vanished-before": vanish(alice, 4, "ALL_RELAYS"), "vanishes-there": vanish(alice, 9, "wss://r.example"),
		"deleted": deletion(alice, 5, "a", ref(alice, "x")), "by-bob": deletion(bob, 9, "a", ref(alice, "x")), "by-id": deletion(bob, 9, "e", x.ID),
	}
	for _, row := range fixture.Rows(`
		nothing | | |
		held | | names-bob | r.example a1:x state
		held, and accepted by a maintainer | bobs-accepts | names-bob | r.example a1:x state
		our own relay | ours | |
		moved away | x gone | |
		moved away and back | gone | back | r.example a1:x state
		moved away since | gone | x |
		expired | expired | |
		deleted by address | x deleted | |
		deleted by a stranger | x by-bob by-id | | r.example a1:x full
		deleted and back | x deleted newer | | s.example a1:x full
		its owner vanishes | x bobs-here vanishes | | s.example b0:x full
		its owner vanishes and is back | x vanishes newer | | s.example a1:x full
		its owner vanished before | x vanished-before | | r.example a1:x full
		its owner vanishes from another relay | x vanishes-there | | r.example a1:x full
		a maintainer's | names-bob bobs | | r.example a1:x full, s.example b0:x full
		a maintainer's maintainer | names-bob bobs-accepts | | r.example a1:x full, r.example c0:x full, s.example b0:x full
		a maintainer who waits | names-bob | bobs-here | r.example a1:x full, r.example b0:x full, s.example b0:x state
		whom one who is invited names | names-bob | bobs-here-carol | r.example a1:x full, r.example b0:x full, s.example b0:x state
		what waits names who is invited | x | names-bob-newer | r.example a1:x full, r.example b0:x full, s.example a1:x state
		a maintainer who comes | names-bob bobs-nowhere | bobs-back | r.example a1:x full, s.example b0:x state
		moved away, with maintainers | names-bob gone-names-bob | |
		one relay under two names | twice | | r.example a1:x full
	`) {
		t.Run(row[0], func(t *testing.T) {
			t.Parallel()
			all := newAnnouncements(config.Rules{Home: domain})
			for _, name := range strings.Fields(row[1]) {
				all.accept(events[name])
			}
			for _, name := range strings.Fields(row[2]) {
				all.hold(name, entry(t, events[name], "c", 0))
			}
			got, refused := targets(all.wants(time.Now()), nil, defaultLimits)
			if said := strings.Join(lines(got), ", "); said != row[3] || refused != 0 {
				t.Errorf("targets are %q, want %q; %d refused", said, row[3], refused)
			}
		})
	}
}

// TestStrangersAreBounded: what one announcement, and what one party, may ask for. A relay that is a
// target is asked for the states of all that is held: of a large service that an archive joins,
// everything is at first.
func TestStrangersAreBounded(t *testing.T) {
	t.Parallel()
	relays := func(prefix string, n int) (urls []string) {
		for i := range n {
			urls = append(urls, fmt.Sprintf("wss://%s%03d.example", prefix, i))
		}
		return urls
	}
	all := newAnnouncements(config.Rules{Home: domain})
	all.accept(announce(alice, "x", 1, relays("a", 60)...))
	all.hold("1", entry(t, announce(bob, "y", 1, relays("b", 60)...), "c", 1))
	got, refused := targets(all.wants(time.Now()), nil, defaultLimits)
	if len(got) != maxServedRelays+maxHeldRelays || refused != 0 || all.held["1"].cut != 60-maxHeldRelays {
		t.Errorf("%d targets, %d refused, %d cut", len(got), refused, all.held["1"].cut)
	}

	// Of the relays that are allowed each party gets its share, and the first of each comes first.
	got, refused = targets(all.wants(time.Now()), []nostr.RelayURL{"wss://boot.example"}, limits{served: 10, held: 3})
	if len(got) != 14 || refused != 57 || !got["a000.example"].Exists() || !got["b002.example"].Exists() || !got["boot.example"].Bootstrap {
		t.Errorf("%d targets, %d refused", len(got), refused)
	}
	all.accept(announce(carol, "z", 1, "wss://z.example"))
	for n := range 5 {
		all.hold(fmt.Sprint("2", n), entry(t, announce(bob, fmt.Sprint("n", n), 1, "wss://a000.example", fmt.Sprintf("wss://n%d.example", n)), "other", 2+n))
	}
	all.hold("3", entry(t, announce(carol, "late", 1, "wss://late.example", "wss://a000.example"), "late", 9))
	got, _ = targets(all.wants(time.Now()), nil, limits{served: 2, held: 3})
	if want := []string{"a000.example a1:x full", "a000.example b0:n0 state", "a000.example b0:n1 state", "a000.example b0:n2 state",
		"a000.example b0:n3 state", "a000.example b0:n4 state", "a000.example c0:late state", "b000.example b0:y state",
		"late.example c0:late state", "n0.example b0:n0 state", "z.example c0:z full"}; !slices.Equal(lines(got), want) {
		t.Errorf("targets are\n\t%q, want\n\t%q", lines(got), want)
	}

	many := []string{"wss://r.example"}
	for n := range 400 {
		many = append(many, fmt.Sprintf("%064x", n))
	}
	all = newAnnouncements(config.Rules{Home: domain})
	all.accept(announce(alice, "x", 1, many...))
	all.hold("1", entry(t, announce(bob, "y", 1, many...), "c", 1))
	got, _ = targets(all.wants(time.Now()), nil, defaultLimits)
	if r := got["r.example"]; len(r.Repos) != maxMaintainers+1 {
		t.Errorf("%d repositories", len(r.Repos))
	}
}
