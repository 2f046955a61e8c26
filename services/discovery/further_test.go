package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

// written is an event of an author.
func written(author string, kind int, tags ...nostr.Tag) *nostr.Event {
	return fixture.Unsigned(author).At(5).Sign(kind, "", tags...)
}

// relayList is one with entries like "wss://a.example write".
func relayList(author string, entries ...string) *nostr.Event {
	var tags []nostr.Tag
	for _, entry := range entries {
		tags = append(tags, append(nostr.Tag{"r"}, strings.Fields(entry)...))
	}
	return written(author, nostr.KindRelayList, tags...)
}

// furtherLines are what further targets say: the relay, whether a connection stands and whether it
// is visited, and what is wanted.
func furtherLines(all map[string]proto.Target) (lines []string) {
	for key, t := range all {
		for ref, w := range t.Repos {
			line := fmt.Sprintf("%s %s:%s %s", key, ref[6:8], ref[len("30617:")+65:], w.Level)
			for name, is := range map[string]bool{"roots": w.Roots, "threads": w.Threads, "lists": w.Lists} {
				if is {
					line += " " + name
				}
			}
			if words := strings.Fields(line); len(words) > 4 {
				slices.Sort(words[3:])
				line = strings.Join(words, " ")
			}
			lines = append(lines, fmt.Sprintf("%s stands=%v visited=%v", line, t.Stands(), t.Past))
		}
	}
	slices.Sort(lines)
	return lines
}

// TestFurther: whose relay lists count, and what they lead to.
func TestFurther(t *testing.T) {
	t.Parallel()
	index, fallback := []nostr.RelayURL{"wss://index.example"}, []nostr.RelayURL{"wss://fall.example"}
	plus := config.Plus{Index: index, Fallback: fallback, MaxRelays: 100}
	root := written(bob, nostr.KindIssue, nostr.Tag{"a", ref(alice, "x")})
	for name, tc := range map[string]struct {
		plus   config.Plus
		events []*nostr.Event
		want   []string
	}{
		"off":               {config.Plus{Off: true}, []*nostr.Event{root}, nil},
		"a stranger's list": {plus, []*nostr.Event{relayList(carol, "wss://c.example")}, nil},
		"an owner's list": {plus, []*nostr.Event{relayList(alice, "wss://a.example read", "wss://w.example write", "wss://git.example.com", "wss://127.0.0.1")}, []string{
			"a.example a1:x past stands=false visited=true", "w.example a1: person lists stands=false visited=true",
		}},
		"who opened an issue and has a list": {plus, []*nostr.Event{root, relayList(bob, "wss://r.example read", "wss://w.example write")}, []string{
			"r.example b0: person roots threads stands=true visited=true", "w.example b0: person lists threads stands=false visited=true",
		}},
		"who comments and has no list": {plus, []*nostr.Event{written(carol, nostr.KindComment, nostr.Tag{"E", root.ID})}, []string{
			"fall.example c0: person threads stands=false visited=true", "index.example c0: person lists stands=false visited=true",
		}},
		"a note that names the repository only": {plus, []*nostr.Event{written(carol, 1, nostr.Tag{"a", ref(alice, "x")})}, nil},
		"a relay that is a target anyway": {plus, []*nostr.Event{root, relayList(bob, "wss://listed.example")}, []string{
			"listed.example b0: person lists roots threads stands=true visited=true",
		}},
		"the further relays are bounded": {config.Plus{MaxRelays: 2}, []*nostr.Event{root, relayList(bob, "wss://1.example", "wss://2.example", "wss://3.example")}, []string{
			"1.example b0: person lists roots threads stands=true visited=true", "2.example b0: person lists roots threads stands=true visited=true",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := newAnnouncements(config.Rules{Home: domain})
			all.accept(announce(alice, "x", 5, "wss://listed.example"))
			who := newPeople(tc.plus)
			who.take(tc.events...)
			got, _ := targets(all.wants(time.Now()), nil, defaultLimits)
			before := furtherLines(got)
			further(got, who.snapshot(), all.roles(time.Now()), tc.plus, nil, func(u nostr.RelayURL) bool { return u.OnDomain(domain) })
			lines := furtherLines(got)
			lines = slices.DeleteFunc(lines, func(l string) bool {
				return slices.Contains(before, l) || strings.Contains(l, " full ") ||
					// the owner, who has no list
					strings.HasPrefix(l, "fall.example a1:") || strings.HasPrefix(l, "index.example a1:")
			})
			if !slices.Equal(lines, tc.want) {
				t.Errorf("further targets are\n\t%q, want\n\t%q", lines, tc.want)
			}
		})
	}
}

// TestListsOfThousands: a stranger's list of a thousand relays leads to four, and people take turns
// where there are too many.
func TestListsOfThousands(t *testing.T) {
	t.Parallel()
	all := newAnnouncements(config.Rules{Home: domain})
	all.accept(announce(alice, "x", 5))
	plus := config.Plus{MaxRelays: 6}
	who := newPeople(plus)
	var many []string
	for n := range 1000 {
		many = append(many, fmt.Sprintf("wss://n%04d.example", n))
	}
	who.take(written(bob, nostr.KindIssue, nostr.Tag{"a", ref(alice, "x")}), relayList(bob, many...))
	got := map[string]proto.Target{}
	none := func(nostr.RelayURL) bool { return false }
	if further(got, who.snapshot(), all.roles(time.Now()), plus, nil, none); len(got) != 4 {
		t.Errorf("a list of a thousand leads to %d relays", len(got))
	}
	for n := range 5 {
		key := fmt.Sprintf("%064x", n)
		who.take(written(key, nostr.KindIssue, nostr.Tag{"a", ref(alice, "x")}), relayList(key, fmt.Sprintf("wss://p%d.example", n)))
	}
	got = map[string]proto.Target{}
	refused := further(got, who.snapshot(), all.roles(time.Now()), plus, nil, none)
	for n := range 5 {
		if _, is := got[fmt.Sprintf("p%d.example", n)]; !is {
			t.Errorf("of %d relays p%d.example is none", len(got), n)
		}
	}
	if len(got) != 6 || refused != 3 {
		t.Errorf("%d relays, %d refused", len(got), refused)
	}
}

// TestWhatIsHeardWhileTheyAreCounted is not lost when the count is over.
func TestWhatIsHeardWhileTheyAreCounted(t *testing.T) {
	t.Parallel()
	who := newPeople(config.Plus{})
	who.counting = true // and the count has been read already
	who.take(written(bob, nostr.KindIssue, nostr.Tag{"a", ref(alice, "x")}))
	who.replace(newPeople(config.Plus{}))
	if !who.snapshot()[bob].wroteRoot || who.counting || who.since != nil {
		t.Error("who was heard of while it was counted is forgotten")
	}
}

// TestWhoVanishesIsForgotten: their list leads nowhere any more, until they write again.
func TestWhoVanishesIsForgotten(t *testing.T) {
	t.Parallel()
	who := newPeople(config.Plus{})
	root := written(bob, nostr.KindIssue, nostr.Tag{"a", ref(alice, "x")})
	who.take(root, relayList(bob, "wss://b.example"))
	who.forget(bob)
	if _, known := who.snapshot()[bob]; known {
		t.Error("who has vanished is still known")
	}
	who.take(root)
	if bob := who.snapshot()[bob]; !bob.wroteRoot || bob.list != nil {
		t.Errorf("who writes again is %+v", bob)
	}
}
