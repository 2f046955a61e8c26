package nostr_test

import (
	"reflect"
	"strings"
	"testing"

	. "tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

func announce(t testing.TB, pubkey, identifier string, tags ...Tag) *Announcement {
	a, err := ParseAnnouncement(event(KindAnnouncement, pubkey, append(Tags{{"d", identifier}}, tags...)...))
	fixture.Must(t, err)
	return a
}

// As ngit writes them.
func TestParseAnnouncement(t *testing.T) {
	t.Parallel()
	clone := strings.Fields(words.Replace("https://a.example/NPUB/x.git https://b.example/x.git ssh://git@b.example/x.git"))
	ev := written("30617", "ALICE", "d,x;name,The X;description,does x;clone,https://a.example/NPUB/x.git,https://b.example/x.git;clone,ssh://git@b.example/x.git,;"+
		"web,https://x.example;relays,wss://A.example/,wss://b.example;relays,wss://c.example;maintainers,BOB,ALICE,rubbish,BOB;maintainers,CAROL,DAVE;relays;")
	got, err := ParseAnnouncement(ev)
	fixture.Must(t, err)
	want := &Announcement{
		Event: ev, Ref: RepoRef{alice, "x"}, Name: "The X", Description: "does x",
		Web: []string{"https://x.example"}, Clone: clone, Relays: []string{"wss://A.example/", "wss://b.example", "wss://c.example"},
		Roles: Roles{Active: true, Listed: []string{bob, carol}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if urls := got.CloneURLs(); !reflect.DeepEqual(urls, clone[:2]) {
		t.Errorf("CloneURLs = %v", urls)
	}
}

func TestParseAnnouncementRefuses(t *testing.T) {
	check(t, ParseAnnouncement, `
		nothing but a d             | 30617 | ALICE        | d,x                                        |
		as many as may be           | 30617 | ALICE        | d,x;relays400;clone200;maintainers400      |
		wrong kind                  | 30618 | ALICE        | d,x                                        | kind 30618
		no d                        | 30617 | ALICE        |                                            | missing or empty
		control characters in d     | 30617 | ALICE        | d,aCRb                                     | control
		author                      | 30617 | ../../etc    | d,x                                        | author
		too many relays             | 30617 | ALICE        | d,x;relays1001                             | more than 1000
		too many relays in two tags | 30617 | ALICE        | d,x;relays600;relays600                    | more than 1000
		too many web pages          | 30617 | ALICE        | d,x;webs                                   | web
		too many role records       | 30617 | ALICE        | d,x;records1001                            | more than 1000
		too many together           | 30617 | ALICE        | d,x;relays400;clone200;maintainers400,BOB  | more than 1000 maintainers, relays and clone URLs`,
		"relays400", "relays"+many(",wss://r%d.example", 400), "relays600", "relays"+many(",wss://r%d.example", 600), "relays1001", "relays"+many(",wss://r%d.example", MaxListed+1),
		"clone200", "clone"+many(",https://c%d.example", 200), "maintainers400", "maintainers"+many(",%064x", 400), "webs", "web"+many(",https://r%d.example", MaxURLs+1), "CR", "\r",
		"records1001", strings.Repeat(";m", MaxListed+1)[1:])
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
		for _, m := range a.Listed {
			if !IsHex64(m) || m == alice {
				t.Fatalf("maintainer %q", m)
			}
		}
		if a.ListsService("a.example") && !a.HasCloneOn("a.example") {
			t.Fatal("listed, but without a clone URL")
		}
	})
}
