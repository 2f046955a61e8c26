package nostr

import (
	"slices"
	"strings"
	"testing"
)

func TestListsService(t *testing.T) {
	t.Parallel()
	npubs := strings.NewReplacer("N", npubOf(t, alice), "O", npubOf(t, bob))
	const home = "grasp.example"
	check := func(domain, id, clone, relay string, want bool) {
		t.Helper()
		if clone[0] == '/' {
			clone = "https://" + home + npubs.Replace(clone)
		}
		a := announce(t, alice, id, Tag{"clone", "https://a.example/x", clone}, Tag{"relays", "wss://a.example", relay})
		if got := a.ListsService(domain); got != want {
			t.Errorf("%s lists %q at %s and %s: %v", domain, id, clone, relay, got)
		}
	}
	for _, c := range []struct {
		id, clone string
		want      bool
	}{
		{"x", "/N/x.git", true}, {"x", "HTTP://Grasp.Example.:443//", true}, {"x", " wss://grasp.example:80/x ", true}, {"x", "/N%2Fx.git", true}, {"x", "/N/x", true},
		{"x", "/N/x.git?a", true}, {"x", "/some/repo.git", true}, {"100%", "/N/100%.git", true}, {"a/ä", "/N/a%2f%c3%a4.git/", true}, {"a/c", "/N/a/c.git", true},
		{"a%20b", "/N/a%2520b.git", true}, {"a%20b", "/N/a%20b.git", true},
		{"x", "https://grasp.example:7000/x", false}, {"x", "https://not-grasp.example/x", false}, {"x", "https://grasp.example@a.example/x", false},
		{"x", "ssh://grasp.example/x", false}, {"x", "/O/x.git", false}, {"y", "/N/x.git", false}, {"X", "/N/x.git", false}, {"x", "/O/%78.git", false}, {"x", "/prs/N/x.git", false},
	} {
		check(home, c.id, c.clone, "wss://"+home, c.want)
	}
	for relay, want := range map[string]bool{
		" grasp.example ": true, "WSS://Grasp.example.:443/": true, "http://grasp.example:443//": true, "wss://grasp.example:7000": false, "nostr://grasp.example": false,
		"wss://grasp.example.evil": false, "wss://u@grasp.example": false,
	} {
		check(home, "x", "/N/x.git", relay, want)
	}
	check("[::1]:7000", "x", "http://[0:0::1]:7000/x", "ws://[::1]:7000", true)
	check("grasp.example:7000", "x", "/N/x.git", "wss://grasp.example", false)
	check("grasp.example:port", "x", "/N/x.git", "wss://grasp.example", false)
	for _, id := range []string{"x", "a b", "a/b", "..", "%", "ä", "x.git", "-", "info/refs", "a?b#c"} {
		check("Grasp.Example", id, RepositoryURLPath("N", id), "wss://"+home, true)
	}
}

func TestPRServiceIdentifiers(t *testing.T) {
	t.Parallel()
	npub := npubOf(t, bob)
	ref := Tag{"a", RepoRef{alice, "a b"}.String()}
	at := func(identifier string) string { return "https://grasp.example" + PRsURLPath(npub, identifier) }
	other := Tag{"a", RepoRef{alice, "%41"}.String()}
	for clone, want := range map[string][]string{
		at("a b"): {"a b"}, "https://grasp.example:443/prs/" + npub + "/%61%20b.git": {"a b"}, "wss://grasp.example/prs/" + npub + "/a b.git/": {"a b"},
		"https://grasp.example" + PRsURLPath(npubOf(t, alice), "a b"): nil, "https://grasp.example" + RepositoryURLPath(npub, "a b"): nil,
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
	for _, c := range []struct {
		url, domain string
		want        bool
	}{
		{"wss://us.example/any/path", "US.example", true}, {"ws://us.example:443", "us.example", true}, {"https://us.example:80", "us.example:443", true},
		{"https://us.example:7000", "us.example", false}, {"ws://us.example:7000", "us.example:7000", true},
		{"https://them.example/us.example", "us.example", false}, {"us.example", "us.example", false}, {"", "", false}, {"wss://", "", false},
	} {
		if got := RelayURL(c.url).OnDomain(c.domain); got != c.want {
			t.Errorf("OnDomain(%q, %q) = %v", c.url, c.domain, got)
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
	npub := npubOf(t, alice)
	for _, c := range []struct {
		path string
		want RepositoryPath
	}{
		{"/" + npub + "/x.git", RepositoryPath{alice, "x", false, ""}},
		{"/" + npub + "/x.git/", RepositoryPath{alice, "x", false, ""}},
		{"/" + npub + "/x.git//info/refs", RepositoryPath{alice, "x", false, "info/refs"}},
		{"/prs/" + npub + "/a%2Fb.git//git-upload-pack/", RepositoryPath{alice, "a/b", true, "git-upload-pack"}},
		{"/" + npub + "/x.git/info/refs", RepositoryPath{alice, "x", false, "info/refs"}},
		{"/" + npub + "/x.git/git-upload-pack", RepositoryPath{alice, "x", false, "git-upload-pack"}},
		{"/" + npub + "/a%2Fb.git", RepositoryPath{alice, "a/b", false, ""}},
		{"/" + npub + "/a/b.git", RepositoryPath{alice, "a/b", false, ""}},
		{"/" + npub + "/x.git.git/info/refs", RepositoryPath{alice, "x.git", false, "info/refs"}},
		{"/" + npub + "/%2E%2E.git", RepositoryPath{alice, "..", false, ""}},
	} {
		if got, err := ParseRepositoryPath(c.path); err != nil || got != c.want {
			t.Errorf("ParseRepositoryPath(%q) = %+v, %v", c.path, got, err)
		}
	}
	for _, path := range []string{
		"", "/", "/x.git", "/" + npub, "/" + npub + "/", "/" + npub + "/.git", "/" + npub + "/x", "/" + npub + "/x.git/objects/info",
		"/" + npub + "/a%00b.git", "/" + npub + "/a%zz.git", "/" + npub[:20] + "/x.git", "/prs/x.git", "/NPUB1/x.git", "//" + npub + "/x.git",
		"/other/" + npub + "/x.git", "/" + npub + "q/x.git",
	} {
		if got, err := ParseRepositoryPath(path); err == nil {
			t.Errorf("ParseRepositoryPath(%q) = %+v, want an error", path, got)
		}
	}
}
