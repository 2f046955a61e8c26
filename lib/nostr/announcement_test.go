package nostr

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func announce(t testing.TB, pubkey, identifier string, tags ...Tag) *Announcement {
	a, err := ParseAnnouncement(event(KindAnnouncement, pubkey, append(Tags{{"d", identifier}}, tags...)...))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// As ngit writes them.
func TestParseAnnouncement(t *testing.T) {
	t.Parallel()
	clone := []string{"https://a.example/" + npubOf(t, alice) + "/x.git", "https://b.example/x.git", "ssh://git@b.example/x.git"}
	ev := event(KindAnnouncement, alice,
		Tag{"d", "x"}, Tag{"name", "The X"}, Tag{"description", "does x"},
		Tag{"clone", clone[0], clone[1]}, Tag{"clone", clone[2], ""},
		Tag{"web", "https://x.example"}, Tag{"relays", "wss://A.example/", "wss://b.example"}, Tag{"relays", "wss://c.example"},
		Tag{"maintainers", bob, alice, "rubbish", bob}, Tag{"maintainers", carol, strings.ToUpper(dave)},
		Tag{"relays"}, Tag{})
	got, err := ParseAnnouncement(ev)
	if err != nil {
		t.Fatal(err)
	}
	want := &Announcement{
		Event: ev, Ref: RepoRef{alice, "x"}, Name: "The X", Description: "does x",
		Web: []string{"https://x.example"}, Clone: clone, Relays: []string{"wss://A.example/", "wss://b.example", "wss://c.example"},
		Maintainers: []string{bob, carol},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if urls := got.CloneURLs(); !reflect.DeepEqual(urls, clone[:2]) {
		t.Errorf("CloneURLs = %v", urls)
	}
}

func TestParseAnnouncementRefuses(t *testing.T) {
	many := func(name, value string, n int) Tag {
		tag := Tag{name}
		for i := range n {
			tag = append(tag, fmt.Sprintf(value, i))
		}
		return tag
	}
	relays := func(n int) Tag { return many("relays", "wss://r%d.example", n) }
	d := Tag{"d", "x"}
	repo := func(tags ...Tag) *Event { return event(KindAnnouncement, alice, append(Tags{d}, tags...)...) }
	check(t, ParseAnnouncement, []refusal{
		{"nothing but a d", repo(), ""},
		{"as many as may be", repo(relays(400), many("clone", "https://c%d.example", 200),
			many("maintainers", "%064x", 400)), ""},
		{"wrong kind", event(KindState, alice, d), "kind 30618"},
		{"no d", event(KindAnnouncement, alice), "missing or empty"},
		{"control characters in d", event(KindAnnouncement, alice, Tag{"d", "a\rb"}), "control"},
		{"author", event(KindAnnouncement, "../../etc", d), "author"},
		{"too many relays", repo(relays(MaxListed + 1)), "more than 1000"},
		{"too many relays in two tags", repo(relays(600), relays(600)), "more than 1000"},
		{"too many web pages", repo(many("web", "https://r%d.example", MaxURLs+1)), "web"},
		{"too many together", repo(relays(400), many("clone", "https://c%d.example", 200),
			many("maintainers", "%064x", 401)), "more than 1000 maintainers, relays and clone URLs"},
	}...)
}

func TestRelayURLs(t *testing.T) {
	t.Parallel()
	a := announce(t, alice, "x", Tag{"relays",
		"wss://A.example/", "a.example", "wss://a.example:443", "ws://a.example", "ws://b.example:7000", "wss://b.example:7000",
		"rubbish rubbish", "ftp://c.example", "wss://u:p@d.example", "https://e.example"})
	want := []RelayURL{"wss://a.example", "ws://a.example", "wss://b.example:7000", "wss://e.example"}
	if got := a.RelayURLs(); !reflect.DeepEqual(got, want) {
		t.Errorf("RelayURLs = %v, want %v", got, want)
	}
}

func FuzzParseAnnouncement(f *testing.F) {
	f.Add("d", "x", "relays", "wss://a.example", "clone", "https://a.example/x.git")
	f.Add("d", "", "maintainers", alice, "r", commit1)
	f.Add("d", "a/../b", "relays", "wss://[::1]:99999", "clone", "https://u:p@[fe80::1%25eth0]/%zz")
	f.Fuzz(func(t *testing.T, n1, v1, n2, v2, n3, v3 string) {
		ev := event(KindAnnouncement, alice, Tag{n1, v1, v2, v3}, Tag{n2, v2, v3}, Tag{n3, v3, v1}, Tag{n1})
		a, err := ParseAnnouncement(ev)
		if err != nil {
			if a != nil || err.Error() == "" || strings.Contains(err.Error(), "\n") {
				t.Fatalf("the error is no sentence: %q", err)
			}
			return
		}
		for _, u := range a.RelayURLs() {
			if again, err := NormalizeRelayURL(string(u)); err != nil || again != u {
				t.Fatalf("relay %q became %q, %v", u, again, err)
			}
		}
		for _, m := range a.Maintainers {
			if !IsHex64(m) || m == alice {
				t.Fatalf("maintainer %q", m)
			}
		}
		if a.ListsService("a.example") && !a.HasCloneOn("a.example") {
			t.Fatal("listed, but without a clone URL")
		}
	})
}
