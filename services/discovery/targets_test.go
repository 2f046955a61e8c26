package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/config"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const domain = "git.example.com"

var (
	alice = strings.Repeat("a1", 32)
	bob   = strings.Repeat("b0", 32)
	carol = strings.Repeat("c0", 32)
)

// announce makes an announcement that lists our service and other relays.
func announce(author, d string, created nostr.Timestamp, relays ...string) *nostr.Event {
	npub, err := nip19.EncodePublicKey(author)
	if err != nil {
		panic(err)
	}
	return finish(&nostr.Event{PubKey: author, Kind: nostr.KindAnnouncement, CreatedAt: created, Tags: nostr.Tags{
		{"d", d}, {"clone", fmt.Sprintf("https://%s/%s/%s.git", domain, npub, d)}, append(nostr.Tag{"relays", "wss://" + domain}, relays...),
	}})
}

// elsewhere makes an announcement that does not list us.
func elsewhere(author, d string, created nostr.Timestamp, relays ...string) *nostr.Event {
	return finish(&nostr.Event{PubKey: author, Kind: nostr.KindAnnouncement, CreatedAt: created, Tags: nostr.Tags{
		{"d", d}, {"clone", "https://other.example/x.git"}, append(nostr.Tag{"relays"}, relays...),
	}})
}

func with(ev *nostr.Event, tag ...string) *nostr.Event {
	ev.Tags = append(ev.Tags, tag)
	return finish(ev)
}

func deletion(author string, created nostr.Timestamp, tag ...string) *nostr.Event {
	return finish(&nostr.Event{PubKey: author, Kind: nostr.KindDeletion, CreatedAt: created, Tags: nostr.Tags{tag}})
}

func finish(ev *nostr.Event) *nostr.Event {
	ev.ID, ev.Sig = ev.GetID(), strings.Repeat("0", 128)
	return ev
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
			for _, author := range r.Authors {
				line += " " + author[:2]
			}
			lines = append(lines, line)
		}
		if len(t.Repos) == 0 {
			lines = append(lines, key)
		}
	}
	slices.Sort(lines)
	return lines
}

func TestTargets(t *testing.T) {
	t.Parallel()
	now := nostr.Timestamp(time.Now().Unix())
	x := announce(alice, "x", 5, "wss://r.example")
	vouching := with(announce(alice, "x", 5, "wss://r.example"), "maintainers", bob)
	for name, tc := range map[string]struct {
		accepted []*nostr.Event
		held     []*nostr.Event
		want     []string
	}{
		"nothing":               {},
		"held":                  {nil, []*nostr.Event{vouching}, []string{"r.example a1:x state a1 b0"}},
		"our own relay":         {[]*nostr.Event{announce(alice, "x", 5, "ws://GIT.example.com:80/", "wss://git.example.com:443")}, nil, nil},
		"moved away":            {[]*nostr.Event{x, elsewhere(alice, "x", 6, "wss://r.example")}, nil, nil},
		"moved away and back":   {[]*nostr.Event{elsewhere(alice, "x", 6)}, []*nostr.Event{announce(alice, "x", 7, "wss://r.example")}, []string{"r.example a1:x state a1"}},
		"moved away since":      {[]*nostr.Event{elsewhere(alice, "x", 6)}, []*nostr.Event{x}, nil},
		"expired":               {[]*nostr.Event{with(announce(alice, "x", 5, "wss://r.example"), "expiration", fmt.Sprint(now-1))}, nil, nil},
		"deleted by address":    {[]*nostr.Event{x, deletion(alice, 5, "a", ref(alice, "x"))}, nil, nil},
		"deleted by a stranger": {[]*nostr.Event{x, deletion(bob, 9, "a", ref(alice, "x")), deletion(bob, 9, "e", x.ID)}, nil, []string{"r.example a1:x full"}},
		"deleted and back":      {[]*nostr.Event{x, deletion(alice, 5, "a", ref(alice, "x")), announce(alice, "x", 6, "wss://s.example")}, nil, []string{"s.example a1:x full"}},
		"a maintainer's": {[]*nostr.Event{vouching, elsewhere(bob, "x", 5, "wss://s.example")}, nil,
			[]string{"r.example a1:x full", "s.example b0:x full"}},
		"a maintainer's maintainer":    {[]*nostr.Event{vouching, with(elsewhere(bob, "x", 5, "wss://s.example"), "maintainers", carol)}, nil, []string{"r.example a1:x full", "r.example c0:x full", "s.example b0:x full"}},
		"a maintainer who waits":       {[]*nostr.Event{vouching}, []*nostr.Event{announce(bob, "x", 5, "wss://s.example")}, []string{"r.example a1:x full", "r.example b0:x full", "s.example b0:x state b0"}},
		"a maintainer who comes":       {[]*nostr.Event{vouching, elsewhere(bob, "x", 5)}, []*nostr.Event{announce(bob, "x", 6, "wss://s.example")}, []string{"r.example a1:x full", "s.example b0:x state b0"}},
		"moved away, with maintainers": {[]*nostr.Event{vouching, with(elsewhere(alice, "x", 6, "wss://r.example"), "maintainers", bob)}, nil, nil},
		"one relay under two names":    {[]*nostr.Event{announce(alice, "x", 5, "ws://r.example:443", "wss://R.example/")}, nil, []string{"r.example a1:x full"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := newAnnouncements(config.Rules{Home: domain})
			for _, ev := range tc.accepted {
				all.accept(ev)
			}
			for i, ev := range tc.held {
				all.hold(fmt.Sprint(i), entry(t, ev, "c", i))
			}
			got, refused := targets(all.wants(time.Now()), nil, defaultLimits)
			if !slices.Equal(lines(got), tc.want) || refused != 0 {
				t.Errorf("targets are %q, want %q; %d refused", lines(got), tc.want, refused)
			}
		})
	}
}

// TestStrangersAreBounded: what one announcement, and what one party, may ask for.
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
	if len(got) != maxServedRelays+maxHeldRelays || refused != 0 {
		t.Errorf("%d targets, %d refused", len(got), refused)
	}

	// Of the relays that are allowed each party gets its share, and the first of each comes first.
	got, refused = targets(all.wants(time.Now()), []nostr.RelayURL{"wss://boot.example"}, limits{served: 10, held: 3, perHeld: 2})
	if len(got) != 14 || refused != 57 || !got["a000.example"].Exists() || !got["b002.example"].Exists() || !got["boot.example"].Bootstrap {
		t.Errorf("%d targets, %d refused", len(got), refused)
	}
	all.accept(announce(carol, "z", 1, "wss://z.example"))
	for n := range 5 {
		all.hold(fmt.Sprint("2", n), entry(t, announce(bob, fmt.Sprint("n", n), 1, "wss://a000.example", fmt.Sprintf("wss://n%d.example", n)), "other", 2+n))
	}
	all.hold("3", entry(t, announce(carol, "late", 1, "wss://late.example", "wss://a000.example"), "late", 9))
	got, _ = targets(all.wants(time.Now()), nil, limits{served: 2, held: 3, perHeld: 2})
	if want := []string{"a000.example a1:x full", "a000.example b0:n0 state b0", "a000.example c0:late state c0", "b000.example b0:y state b0",
		"late.example c0:late state c0", "n0.example b0:n0 state b0", "z.example c0:z full"}; !slices.Equal(lines(got), want) {
		t.Errorf("targets are\n\t%q, want\n\t%q", lines(got), want)
	}

	many := nostr.Tag{"maintainers"}
	for n := range 400 {
		many = append(many, fmt.Sprintf("%064x", n))
	}
	all = newAnnouncements(config.Rules{Home: domain})
	all.accept(with(announce(alice, "x", 1, "wss://r.example"), many...))
	all.hold("1", entry(t, with(announce(bob, "y", 1, "wss://r.example"), many...), "c", 1))
	got, _ = targets(all.wants(time.Now()), nil, defaultLimits)
	if r := got["r.example"]; len(r.Repos) != maxMaintainers+1 || len(r.Repos[ref(bob, "y")].Authors) != maxMaintainers {
		t.Errorf("%d repositories, %d maintainers", len(r.Repos), len(r.Repos[ref(bob, "y")].Authors))
	}
}
