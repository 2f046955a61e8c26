package repos_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/config"
	"tendril.dev/lib/hosting"
	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/repos"
	"tendril.dev/services/discovery/wanted"
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
	clone := fmt.Sprintf("https://%s/%s/%s.git", domain, npub, d)
	return finish(&nostr.Event{PubKey: author, Kind: nip34.KindAnnouncement, CreatedAt: created, Tags: nostr.Tags{
		{"d", d}, {"clone", clone}, append(nostr.Tag{"relays", "wss://" + domain}, relays...),
	}})
}

// elsewhere makes an announcement that does not list us.
func elsewhere(author, d string, created nostr.Timestamp, relays ...string) *nostr.Event {
	return finish(&nostr.Event{PubKey: author, Kind: nip34.KindAnnouncement, CreatedAt: created, Tags: nostr.Tags{
		{"d", d}, {"clone", "https://other.example/x.git"}, append(nostr.Tag{"relays"}, relays...),
	}})
}

func with(ev *nostr.Event, tag ...string) *nostr.Event {
	ev.Tags = append(ev.Tags, tag)
	return finish(ev)
}

func root(kind int, n int, refs ...string) *nostr.Event {
	ev := &nostr.Event{PubKey: carol, Kind: kind, CreatedAt: nostr.Timestamp(n)}
	for _, ref := range refs {
		ev.Tags = append(ev.Tags, nostr.Tag{"a", ref})
	}
	return finish(ev)
}

func finish(ev *nostr.Event) *nostr.Event {
	ev.ID = ev.GetID()
	return ev
}

func waiting(ev *nostr.Event) *proto.Held {
	return &proto.Held{Event: ev, Identifier: ev.Tags.GetD(), Phase: proto.PhaseWaiting}
}

func ref(author, d string) string { return "30617:" + author + ":" + d }

// limits that no test reaches unless it means to.
var limits = repos.Limits{Served: 1000, Held: 1000}

// accept gives events to a book as discovery does: of a repository that is new, what was accepted
// before is read again.
func accept(b *repos.Book, events ...*nostr.Event) {
	for i, ev := range events {
		b.Accept(ev)
		for range b.TakeUnread() {
			for _, earlier := range events[:i] {
				b.Accept(earlier)
			}
		}
	}
}

// told writes targets as lines that a test can compare.
func told(targets map[string]wanted.Target) []string {
	var lines []string
	for key, t := range targets {
		line := key + " " + t.URL
		if t.Bootstrap {
			line += " bootstrap"
		}
		lines = append(lines, line)
		for ref, r := range t.Repos {
			line := fmt.Sprintf("%s %s %s", key, ref, r.Level)
			for _, author := range r.Authors {
				line += " by " + author[:2]
			}
			for _, root := range r.Roots {
				line += " " + fmt.Sprintf("%x", root[:4])
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

func TestTargets(t *testing.T) {
	t.Parallel()
	x := ref(alice, "x")
	issue, patch := root(nip34.KindIssue, 1, x), root(nip34.KindPatch, 2, x, ref(bob, "y"))
	both := []string{issue.ID[:8], patch.ID[:8]}
	slices.Sort(both)
	type step struct {
		accept *nostr.Event
		key    string // of grasp-held
		hold   *proto.Held
	}
	for name, tc := range map[string]struct {
		bootstrap []string
		steps     []step
		want      []string
	}{
		"nothing":   {},
		"bootstrap": {bootstrap: []string{"relay.ngit.dev"}, want: []string{"relay.ngit.dev wss://relay.ngit.dev bootstrap"}},
		"bootstrap stays when a repository that lists it goes": {
			bootstrap: []string{"wss://r.example"},
			steps:     []step{{accept: announce(alice, "x", 1, "wss://r.example")}, {accept: announce(alice, "x", 2)}},
			want:      []string{"r.example wss://r.example bootstrap"},
		},
		"our own relay is never a target": {
			bootstrap: []string{"wss://git.example.com/"},
			steps:     []step{{accept: announce(alice, "x", 1, "wss://GIT.example.com:443/", "wss://git.example.com/path", "wss://r.example")}},
			want:      []string{"r.example " + x + " full", "r.example wss://r.example"},
		},
		"root events, whenever they came": {
			steps: []step{{accept: issue}, {accept: announce(alice, "x", 1, "r.example")}, {accept: patch}, {accept: root(nip34.KindPRUpdate, 3, x)}},
			want:  []string{"r.example " + x + " full " + strings.Join(both, " "), "r.example wss://r.example"},
		},
		"ws and wss of one relay are one target, and wss it is": {
			steps: []step{{accept: announce(alice, "x", 1, "ws://r.example:8080/")}, {accept: announce(bob, "y", 1, "wss://r.example:8080")}, {accept: announce(carol, "z", 1, "ws://r.example:8080")}},
			want: []string{
				"r.example:8080 " + x + " full", "r.example:8080 " + ref(bob, "y") + " full", "r.example:8080 " + ref(carol, "z") + " full",
				"r.example:8080 wss://r.example:8080",
			},
		},
		"the operator's ws stands": {
			bootstrap: []string{"ws://r.example:8080"},
			steps:     []step{{accept: announce(alice, "x", 1, "wss://r.example:8080")}},
			want:      []string{"r.example:8080 " + x + " full", "r.example:8080 ws://r.example:8080 bootstrap"},
		},
		"an older announcement changes nothing": {
			steps: []step{{accept: announce(alice, "x", 5, "r.example")}, {accept: announce(alice, "x", 4, "old.example")}},
			want:  []string{"r.example " + x + " full", "r.example wss://r.example"},
		},
		"a newer one that drops our service withdraws": {
			steps: []step{{accept: announce(alice, "x", 5, "r.example")}, {accept: elsewhere(alice, "x", 6, "r.example", "new.example")}},
		},
		"a maintainer's announcement counts though it does not list us": {
			steps: []step{{accept: elsewhere(bob, "x", 1, "bobs.example")}, {accept: with(announce(alice, "x", 5, "r.example"), "maintainers", bob)}},
			want:  []string{"bobs.example " + ref(bob, "x") + " full", "bobs.example wss://bobs.example", "r.example " + x + " full", "r.example wss://r.example"},
		},
		"and so does one that a maintainer trusts": {
			steps: []step{
				{accept: with(elsewhere(bob, "x", 1, "bobs.example"), "maintainers", carol)}, {accept: elsewhere(carol, "x", 1, "carols.example")},
				{accept: with(announce(alice, "x", 5, "r.example"), "maintainers", bob)},
			},
			want: []string{
				"bobs.example " + ref(bob, "x") + " full", "bobs.example wss://bobs.example", "carols.example " + ref(carol, "x") + " full",
				"carols.example wss://carols.example", "r.example " + x + " full", "r.example wss://r.example",
			},
		},
		"two that name each other and list nobody of us do not count": {
			steps: []step{{accept: with(elsewhere(alice, "x", 1, "r.example"), "maintainers", bob)}, {accept: with(elsewhere(bob, "x", 1, "r.example"), "maintainers", alice)}},
		},
		"a held announcement wants states only": {
			steps: []step{{key: "k", hold: waiting(with(announce(alice, "x", 1, "r.example"), "maintainers", bob))}, {accept: issue}},
			want:  []string{"r.example " + x + " state by a1 by b0", "r.example wss://r.example"},
		},
		"a held announcement of another author makes no difference to a repository that is served": {
			steps: []step{{accept: announce(alice, "x", 1, "r.example")}, {key: "k", hold: waiting(announce(bob, "x", 1, "r.example"))}},
			want:  []string{"r.example " + x + " full", "r.example " + ref(bob, "x") + " state by b0", "r.example wss://r.example"},
		},
		"acceptance promotes, before the held entry is gone and after": {
			steps: []step{{key: "k", hold: waiting(announce(alice, "x", 1, "r.example"))}, {accept: announce(alice, "x", 1, "r.example")}},
			want:  []string{"r.example " + x + " full", "r.example wss://r.example"},
		},
		"expiry removes": {
			steps: []step{{key: "k", hold: waiting(announce(alice, "x", 1, "r.example"))}, {key: "k"}},
		},
		"silence removes": {
			steps: []step{
				{key: "k", hold: waiting(announce(alice, "x", 1, "r.example"))},
				{key: "k", hold: &proto.Held{Event: announce(alice, "x", 1, "r.example"), Phase: proto.PhaseSilent}},
			},
		},
		"other held kinds are passed over": {
			steps: []step{{key: "k", hold: &proto.Held{Event: finish(&nostr.Event{PubKey: alice, Kind: nip34.KindState, Tags: nostr.Tags{{"d", "x"}}}), Phase: proto.PhaseWaiting}}},
		},
		"an identifier may hold colons": {
			steps: []step{{accept: announce(alice, "a:b", 1, "r.example")}, {accept: root(nip34.KindIssue, 1, ref(alice, "a:b"))}},
			want:  []string{"r.example " + ref(alice, "a:b") + " full " + root(nip34.KindIssue, 1, ref(alice, "a:b")).ID[:8], "r.example wss://r.example"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var urls []nip34.RelayURL
			for _, s := range tc.bootstrap {
				url, err := nip34.NormalizeRelayURL(s)
				if err != nil {
					t.Fatal(err)
				}
				urls = append(urls, url)
			}
			b := repos.NewBook(hosting.Of(domain), urls, limits)
			var accepted []*nostr.Event
			for _, s := range tc.steps {
				b.Targets() // whatever has happened until now
				if s.accept != nil {
					accepted = append(accepted, s.accept)
					accept(b, accepted...)
				} else {
					b.Hold(s.key, s.hold)
				}
			}
			slices.Sort(tc.want)
			if got := told(b.Targets()); !slices.Equal(got, tc.want) {
				t.Fatalf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tc.want, "\n\t"))
			}
		})
	}
}

func TestTargetsStayWhatTheyAreWhenTheBookGoesOn(t *testing.T) {
	t.Parallel()
	b := repos.NewBook(hosting.Of(domain), nil, limits)
	b.Accept(announce(alice, "x", 1, "r.example"))
	for n := range 100 {
		b.Accept(root(nip34.KindIssue, n, ref(alice, "x")))
	}
	before := b.Targets()
	copied := told(before)
	for n := range 100 {
		b.Accept(root(nip34.KindIssue, 1000+n, ref(alice, "x")))
	}
	b.Targets()
	if !slices.Equal(told(before), copied) {
		t.Fatal("targets that were given away changed with the book")
	}
}

// TestABookMadeAnewIsTheSame: a book that forgot and read again in another order asks for the same.
func TestABookMadeAnewIsTheSame(t *testing.T) {
	t.Parallel()
	events := []*nostr.Event{announce(alice, "x", 1, "r.example"), announce(alice, "x", 2, "s.example"), announce(bob, "y", 1, "ws://s.example:443")}
	for n := range 50 {
		events = append(events, root(nip34.KindPatch, n, ref(alice, "x"), ref(bob, "y")))
	}
	b := repos.NewBook(hosting.Of(domain), nil, limits)
	b.Hold("k", waiting(announce(carol, "z", 1, "r.example")))
	accept(b, events...)
	first := b.Targets()
	b.ForgetAccepted()
	slices.Reverse(events)
	for n := range events {
		accept(b, events[:n+1]...)
		b.Targets()
	}
	if !reflect.DeepEqual(first, b.Targets()) {
		t.Fatalf("got\n%q\nwant\n%q", told(b.Targets()), told(first))
	}
}

// TestArchivesAreTargets: what is archived is asked for as what lists us is, held and served, with
// the maintainers that it names.
func TestArchivesAreTargets(t *testing.T) {
	t.Parallel()
	rules, err := hosting.New(config.Settings{
		Service: config.Service{Domain: domain}, Policy: config.Policy{ArchiveWhitelist: []string{"x"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := repos.NewBook(rules, nil, limits)
	archived := with(elsewhere(alice, "x", 1, "wss://r.example"), "maintainers", bob)
	b.Hold("1", waiting(archived))
	want := []string{"r.example wss://r.example", "r.example " + ref(alice, "x") + " state by " + alice[:2] + " by " + bob[:2]}
	slices.Sort(want)
	if got := told(b.Targets()); !slices.Equal(got, want) {
		t.Errorf("held: %q, want %q", got, want)
	}
	b.Hold("1", nil)
	accept(b, archived, elsewhere(bob, "x", 1, "wss://s.example"), elsewhere(bob, "y", 1, "wss://t.example"))
	want = []string{
		"r.example wss://r.example", "r.example " + ref(alice, "x") + " full", "s.example wss://s.example", "s.example " + ref(bob, "x") + " full",
	}
	slices.Sort(want)
	if got := told(b.Targets()); !slices.Equal(got, want) {
		t.Errorf("served: %q, want %q", got, want)
	}
}
