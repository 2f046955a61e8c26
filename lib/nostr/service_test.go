package nostr

import (
	"slices"
	"strings"
	"testing"
)

func TestListsService(t *testing.T) {
	t.Parallel()
	npub, other := npubOf(t, alice), npubOf(t, bob)
	at := func(prefix string) string { return prefix + "/" + npub + "/x.git" }
	for _, c := range []struct {
		name, domain, identifier string
		clone, relay             string
		inClone, inRelays        bool
	}{
		{"plain", "grasp.example", "x", at("https://grasp.example"), "wss://grasp.example", true, true},
		{"domain in capitals", "Grasp.Example", "x", at("https://grasp.example"), "wss://grasp.example", true, true},
		{"a dot at the end", "grasp.example", "x", at("https://grasp.example."), "wss://grasp.example.", true, true},
		{"domain with a port", "grasp.example:7000", "x", at("http://grasp.example:7000"), "ws://grasp.example:7000", true, true},
		{"IPv6", "[::1]:7000", "x", at("http://[0:0::1]:7000"), "ws://[::1]:7000", true, true},
		{"a slash at the end", "grasp.example", "x", at("https://grasp.example") + "/", "wss://grasp.example/", true, true},
		{"the other scheme's default port", "grasp.example", "x", at("http://grasp.example:443"), "wss://grasp.example:80", true, true},
		{"percent sign not encoded", "grasp.example", "100%", "https://grasp.example/" + npub + "/100%.git", "wss://grasp.example", true, true},
		{"lower-case escapes", "grasp.example", "a/ä", "https://grasp.example/" + npub + "/a%2f%c3%a4.git/", "wss://grasp.example", true, true},
		{"escaped slash between", "grasp.example", "x", "https://grasp.example/" + npub + "%2Fx.git", "wss://grasp.example", true, true},
		{"another port", "grasp.example", "x", at("https://grasp.example:7000"), "wss://grasp.example:7000", false, false},
		{"no port", "grasp.example:7000", "x", at("https://grasp.example"), "wss://grasp.example", false, false},
		{"a domain that ends alike", "grasp.example", "x", at("https://not-grasp.example"), "wss://not-grasp.example", false, false},
		{"wrong schemes", "grasp.example", "x", at("ssh://grasp.example"), "nostr://grasp.example", false, false},
		{"someone else's npub", "grasp.example", "x", "https://grasp.example/" + other + "/x.git", "wss://grasp.example", false, true},
		{"another identifier", "grasp.example", "y", at("https://grasp.example"), "wss://grasp.example", false, true},
		{"no .git", "grasp.example", "x", "https://grasp.example/" + npub + "/x", "wss://grasp.example", true, true},
		{"with a query", "grasp.example", "x", at("https://grasp.example") + "?a", "wss://grasp.example", true, true},
		{"a path of another form", "grasp.example", "x", "https://grasp.example/some/repo.git", "wss://grasp.example", true, true},
		{"someone else's, encoded", "grasp.example", "x", "https://grasp.example/" + other + "/%78.git", "wss://grasp.example", false, true},
		{"below prs", "grasp.example", "x", at("https://grasp.example/prs"), "wss://grasp.example", false, true},
		{"not encoded", "grasp.example", "a/c", "https://grasp.example/" + npub + "/a/c.git", "wss://grasp.example", true, true},
		{"percent in the identifier", "grasp.example", "a%20b", "https://grasp.example/" + npub + "/a%2520b.git", "wss://grasp.example", true, true},
		{"percent in the identifier, not encoded", "grasp.example", "a%20b", "https://grasp.example/" + npub + "/a%20b.git", "wss://grasp.example", true, true},
		{"a domain that is none", "grasp.example:port", "x", at("https://grasp.example"), "wss://grasp.example", false, false},
	} {
		ours := c.domain
		if strings.HasSuffix(ours, "port") {
			ours = "none.example"
		}
		lists := func(clone, relay string) bool {
			a := announce(t, alice, c.identifier, Tag{"clone", "https://elsewhere.example/x.git", clone}, Tag{"relays", "wss://elsewhere.example", relay})
			return a.ListsService(c.domain)
		}
		if inClone, inRelays := lists(c.clone, "wss://"+ours), lists("https://"+ours, c.relay); inClone != c.inClone || inRelays != c.inRelays {
			t.Errorf("%s: by its clone URL: %v, by its relay: %v", c.name, inClone, inRelays)
		}
	}
}

func TestEncodedPathListsService(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"x", "a b", "a/b", "..", "%", "ä", "x.git", "-", "info/refs", "a?b#c"} {
		path := RepositoryURLPath(npubOf(t, alice), id)
		a := announce(t, alice, id, Tag{"clone", "https://grasp.example" + path}, Tag{"relays", "wss://grasp.example"})
		if !a.ListsService("grasp.example") {
			t.Errorf("%q at %s is not listed", id, path)
		}
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
