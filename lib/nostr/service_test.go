package nostr_test

import (
	"slices"
	"strings"
	"testing"

	. "tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

func TestListsService(t *testing.T) {
	t.Parallel()
	check := func(domain, id, clone, relay string, want bool) {
		t.Helper()
		if clone[0] == '/' {
			clone = "https://grasp.example" + words.Replace(clone)
		}
		a := announce(t, alice, id, Tag{"clone", "https://a.example/x", clone}, Tag{"relays", "wss://a.example", relay})
		if got := a.ListsService(domain); got != want {
			t.Errorf("%s lists %q at %s and %s: %v", domain, id, clone, relay, got)
		}
	}
	// The service, the identifier, the clone URL and the relay; and whether that lists it.
	for _, c := range fixture.Rows(`
		grasp.example      | x      | /NPUB/x.git                     | wss://grasp.example       | yes
		grasp.example      | x      | HTTP://Grasp.Example.:443//     | wss://grasp.example       | yes
		grasp.example      | x      | SPACEwss://grasp.example:80/xSPACE | wss://grasp.example    | yes
		grasp.example      | x      | /NPUB%2Fx.git                   | wss://grasp.example       | yes
		grasp.example      | x      | /NPUB/x                         | wss://grasp.example       | yes
		grasp.example      | x      | /NPUB/x.git?a                   | wss://grasp.example       | yes
		grasp.example      | x      | /some/repo.git                  | wss://grasp.example       | yes
		grasp.example      | 100%   | /NPUB/100%.git                  | wss://grasp.example       | yes
		grasp.example      | a/ä    | /NPUB/a%2f%c3%a4.git/           | wss://grasp.example       | yes
		grasp.example      | a/c    | /NPUB/a/c.git                   | wss://grasp.example       | yes
		grasp.example      | a%20b  | /NPUB/a%2520b.git               | wss://grasp.example       | yes
		grasp.example      | a%20b  | /NPUB/a%20b.git                 | wss://grasp.example       | yes
		grasp.example      | x      | https://grasp.example:7000/x    | wss://grasp.example       |
		grasp.example      | x      | https://not-grasp.example/x     | wss://grasp.example       |
		grasp.example      | x      | https://grasp.example@a.example/x | wss://grasp.example     |
		grasp.example      | x      | ssh://grasp.example/x           | wss://grasp.example       |
		grasp.example      | x      | /OTHER/x.git                    | wss://grasp.example       |
		grasp.example      | y      | /NPUB/x.git                     | wss://grasp.example       |
		grasp.example      | X      | /NPUB/x.git                     | wss://grasp.example       |
		grasp.example      | x      | /OTHER/%78.git                  | wss://grasp.example       |
		grasp.example      | x      | /prs/NPUB/x.git                 | wss://grasp.example       |
		grasp.example      | x      | /NPUB/x.git                     | SPACEgrasp.exampleSPACE   | yes
		grasp.example      | x      | /NPUB/x.git                     | WSS://Grasp.example.:443/ | yes
		grasp.example      | x      | /NPUB/x.git                     | http://grasp.example:443// | yes
		grasp.example      | x      | /NPUB/x.git                     | wss://grasp.example:7000  |
		grasp.example      | x      | /NPUB/x.git                     | nostr://grasp.example     |
		grasp.example      | x      | /NPUB/x.git                     | wss://grasp.example.evil  |
		grasp.example      | x      | /NPUB/x.git                     | wss://u@grasp.example     |
		[::1]:7000         | x      | http://[0:0::1]:7000/x          | ws://[::1]:7000           | yes
		grasp.example:7000 | x      | /NPUB/x.git                     | wss://grasp.example       |
		grasp.example/a/b  | x      | /a/b/NPUB/x.git                 | wss://grasp.example/a/b/  | yes
		grasp.example/a/b  | x      | /a/b/NPUB/x.git                 | wss://grasp.example       |
		grasp.example/a/b  | x      | /NPUB/x.git                     | wss://grasp.example/a/b   |
		grasp.example/a/b  | x      | /a/bc/NPUB/x.git                | wss://grasp.example/a/bc  |
		grasp.example/a/b  | x      | /a/b/OTHER/x.git                | wss://grasp.example/a/b   |
		grasp.example/a/b  | x      | /a/b/prs/NPUB/x.git             | wss://grasp.example/a/b   |
		grasp.example:port | x      | /NPUB/x.git                     | wss://grasp.example       |`) {
		check(c[0], c[1], strings.ReplaceAll(c[2], "SPACE", " "), strings.ReplaceAll(c[3], "SPACE", " "), c[4] != "")
	}
	for _, id := range []string{"x", "a b", "a/b", "..", "%", "ä", "x.git", "-", "info/refs", "a?b#c"} {
		check("Grasp.Example", id, RepositoryURLPath("NPUB", id), "wss://grasp.example", true)
	}
}

func TestPRServiceIdentifiers(t *testing.T) {
	t.Parallel()
	npub := npubOf(bob)
	ref := Tag{"a", RepoRef{alice, "a b"}.String()}
	at := func(identifier string) string { return "https://grasp.example" + PRsURLPath(npub, identifier) }
	other := Tag{"a", RepoRef{alice, "%41"}.String()}
	for clone, want := range map[string][]string{
		at("a b"): {"a b"}, "https://grasp.example:443/prs/" + npub + "/%61%20b.git": {"a b"}, "wss://grasp.example/prs/" + npub + "/a b.git/": {"a b"},
		"https://grasp.example" + PRsURLPath(npubOf(alice), "a b"): nil, "https://grasp.example" + RepositoryURLPath(npub, "a b"): nil,
		"https://other.example" + PRsURLPath(npub, "a b"): nil, at("a b") + "?x=y": nil, at("none"): nil, at("%41"): {"%41"},
		"https://grasp.example/prs/../prs/" + npub + "/a%20b.git": nil,
	} {
		pr, err := ParsePullRequest(event(KindPR, bob, ref, other, Tag{"c", commit1}, Tag{"clone", clone, clone}))
		if err != nil {
			t.Fatal(err)
		}
		if got := pr.PRServiceIdentifiers("grasp.example"); !slices.Equal(got, want) {
			t.Errorf("%s: %q", clone, got)
		}
	}
}

func TestOnDomain(t *testing.T) {
	t.Parallel()
	for _, c := range fixture.Rows(`
		wss://us.example/any/path       | US.example      | yes
		ws://us.example:443             | us.example      | yes
		https://us.example:80           | us.example:443  | yes
		https://us.example:7000         | us.example      |
		ws://us.example:7000            | us.example:7000 | yes
		https://them.example/us.example | us.example      |
		us.example                      | us.example      |
		                                |                 |
		wss://                          |                 |`) {
		if got := RelayURL(c[0]).OnDomain(c[1]); got != (c[2] != "") {
			t.Errorf("OnDomain(%q, %q) = %v", c[0], c[1], got)
		}
	}
}

func TestNormalizeDomain(t *testing.T) {
	t.Parallel()
	for domain, want := range map[string]string{
		"Us.Example": "us.example", "us.example:07000": "us.example:7000", "127.0.0.1:80": "127.0.0.1:80", "[::1]:80": "[::1]:80",
		"[0::1]": "[::1]", "localhost": "localhost",
	} {
		if got, err := NormalizeDomain(domain); err != nil || got != want {
			t.Errorf("NormalizeDomain(%q) = %q, %v", domain, got, err)
		}
	}
	for _, domain := range []string{"", "https://us.example", "us.example/", "us.example:0", "us.example:x", "us .example", "us.example:", "[::1", "a@b"} {
		if got, err := NormalizeDomain(domain); err == nil {
			t.Errorf("NormalizeDomain(%q) = %q, want an error", domain, got)
		}
	}
}

func TestParseRepositoryPath(t *testing.T) {
	t.Parallel()
	for _, c := range fixture.Rows(`
		/NPUB/x.git                              | x     | false |
		/NPUB/x.git/                             | x     | false |
		/NPUB/x.git//info/refs                   | x     | false | info/refs
		/prs/NPUB/a%2Fb.git//git-upload-pack/    | a/b   | true  | git-upload-pack
		/NPUB/x.git/info/refs                    | x     | false | info/refs
		/NPUB/x.git/git-upload-pack              | x     | false | git-upload-pack
		/NPUB/a%2Fb.git                          | a/b   | false |
		/NPUB/a/b.git                            | a/b   | false |
		/NPUB/x.git.git/info/refs                | x.git | false | info/refs
		/NPUB/x.git/archive/v1.0.tar.gz          | x     | false | archive | v1.0
		/NPUB/a.git/archive/b.git/archive/rc%2F1.tar.gz | a.git/archive/b | false | archive | rc/1
		/NPUB/a.git/archive/v1.tar.gz.git        | a.git/archive/v1.tar.gz | false |
		/NPUB/%2E%2E.git                         | ..    | false |`) {
		got, err := ParseRepositoryPath(words.Replace(c[0]))
		tag := ""
		if len(c) > 4 {
			tag = c[4]
		}
		if want := (RepositoryPath{alice, c[1], c[2] == "true", c[3], tag}); err != nil || got != want {
			t.Errorf("ParseRepositoryPath(%q) = %+v, %v", c[0], got, err)
		}
	}
	for path := range strings.SplitSeq(words.Replace("|/|/x.git|/NPUB|/NPUB/|/NPUB/.git|/NPUB/x|/NPUB/x.git/objects/info|/NPUB/a%00b.git|/NPUB/a%zz.git|"+
		"/npub1w3/x.git|/prs/x.git|/NPUB1/x.git|//NPUB/x.git|/other/NPUB/x.git|/NPUBq/x.git|"+
		"/NPUB/x.git/archive/v%zz.tar.gz|/prs/NPUB/x.git/archive/v1.tar.gz|/NPUB/x/archive/v1.tar.gz|/NPUB/x.git/archive/v1.zip"), "|") {
		if got, err := ParseRepositoryPath(path); err == nil {
			t.Errorf("ParseRepositoryPath(%q) = %+v, want an error", path, got)
		}
	}
}
