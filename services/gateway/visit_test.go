package gateway

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// TestFrontPage lists repositories by their newest activity, finds those that have the words of a
// search, and turns pages. What is banned is gone at once.
func TestFrontPage(t *testing.T) {
	t.Parallel()
	sys := start(t)
	anna, bela := fixture.NewPerson().On("git.example.com"), fixture.NewPerson().On("git.example.com")
	now := nostr.Now()
	events := []*nostr.Event{
		anna.At(now-9000).Sign(0, `{"name":"Anna \u202eB","display_name":" \n"}`),
		anna.At(now - 8000).Announce("old-but-active"),
		anna.At(now-61).State("old-but-active", map[string]string{"refs/heads/main": strings.Repeat("a", 40)}),
		bela.At(now - 4000).Announce("new<er>"),
		bela.At(now + 600).Announce("from-the-future"),
	}
	for n := range 103 {
		events = append(events, bela.At(now-nostr.Timestamp(20_000+n)).Announce(fmt.Sprintf("many-%03d", n)))
	}
	sys.store(t, events...)
	ask := func(path string) string {
		t.Helper()
		resp, page := sys.ask(t, "GET", path, "text/html")
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", path, resp.Status)
		}
		return page
	}
	front := ask("/")
	inOrder(t, front, "106 here", "from-the-future", "old-but-active", "Anna B", "1 minute ago",
		"new&lt;er&gt;", "1 hour ago", "many-000", "page=2", "More</a>")
	if strings.Contains(front, "from now") {
		t.Error("a repository is active in the future")
	}
	second := ask("/?page=2")
	inOrder(t, second, "many-097", "many-102", "page=1", "Back")
	if strings.Contains(second, "many-096") || strings.Contains(second, "More</a>") {
		t.Error("the second page shows what is on the first, or promises a third")
	}
	inOrder(t, ask("/?page=99999999999"), "many-102")
	for search, want := range map[string]string{
		"OLD%20anna": "1 found", bela.Npub: "105 found", "many-10": "3 found", "nothing%20here": "None has these words",
		"%22%3E%3Cscript%3E": `value="&#34;&gt;&lt;script&gt;"`, "many&page=2": "page=1&amp;q=many", "%ff": "here",
	} {
		inOrder(t, ask("/?q="+search), want)
	}
	author := ask("/" + anna.Npub)
	inOrder(t, author, "Anna B", anna.Npub, "old-but-active")
	if strings.Contains(author, "many-") {
		t.Error("the page of an author lists repositories of another")
	}
	var feed struct {
		Entries []struct {
			Title   string `xml:"title"`
			Updated string `xml:"updated"`
			Author  string `xml:"author>name"`
		} `xml:"entry"`
	}
	resp, text := sys.ask(t, "GET", "/atom.xml", "")
	must(t, xml.Unmarshal([]byte(text), &feed))
	if len(feed.Entries) != 50 || feed.Entries[1].Title != "new<er>" || feed.Entries[2].Author != "Anna B" ||
		!strings.HasPrefix(resp.Header.Get("Content-Type"), "application/atom+xml") || resp.Header.Get("ETag") == "" {
		t.Errorf("the feed: %v %+v", resp.Header, feed.Entries[:3])
	}
	at, err := time.Parse(time.RFC3339, feed.Entries[1].Updated)
	if must(t, err); at.Unix() != int64(now-4000) {
		t.Errorf("the second entry is of %v", at)
	}
}

// TestNoPageTurnsText: whatever strangers write, no page and no feed has a character that changes the
// direction of a text. A name of nothing else is no name.
func TestNoPageTurnsText(t *testing.T) {
	t.Parallel()
	sys := start(t)
	owner, maintainer := fixture.NewPerson().On("git.example.com"), fixture.NewPerson().On("git.example.com")
	now, id := nostr.Now(), strings.Repeat("a", 40)
	announced := func(identifier, name string, more ...nostr.Tag) *nostr.Event {
		tags := owner.Announce(identifier).Tags
		tags[1] = nostr.Tag{"name", name}
		return owner.At(now-9000).Sign(nostr.KindAnnouncement, "", append(tags, more...)...)
	}
	sys.store(t,
		announced("r", "N\u202eame", nostr.Tag{"description", "D\u2066escribed"}, nostr.Tag{"web", "https://x.example/\u202egpj.exe"},
			nostr.Tag{"maintainers", maintainer.PubKey}),
		owner.At(now-8000).State("r", map[string]string{"refs/heads/main": id, "refs/heads/br\u202eanch": id, "refs/tags/t\u200fag": id}),
		owner.At(now-7000).Announce("turned\u202eidentifier"),
		announced("nameless", "\u202e \u2066"),
		owner.At(now-6000).Sign(nostr.KindIssue, "i\u202essue", owner.Repo("r")),
		owner.At(now-6000).Sign(nostr.KindProfile, `{"name":"P\u061cerson"}`))
	sys.hold(t, owner.Npub+"/r", maintainer.Npub+"/held\u202e")
	home := "/" + owner.Npub + "/r.git"
	for path, want := range map[string]string{
		"/": "Name", "/" + owner.Npub: "Person", home: "Described", home + "?issues": "issue", home + "?branch=main&log=0": "behind 0",
		home + "?branch=main": "turned", "/atom.xml": "Name", home + "?atom": "Tags of Name", "/?q=turned": "turnedidentifier",
		"/" + maintainer.Npub + "/held%E2%80%AE.git": "<h1><bdi>held</bdi></h1>", "/" + owner.Npub + "?x": "<bdi>nameless</bdi>",
	} {
		resp, page := sys.ask(t, "GET", path, "")
		if resp.StatusCode != http.StatusOK || !strings.Contains(page, want) {
			t.Errorf("%s: %s, without %q\n%s", path, resp.Status, want, page)
		}
		if at := strings.IndexAny(page, "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"); at >= 0 {
			t.Errorf("%s has a character that turns text: %q", path, page[max(0, at-40):at+10])
		}
	}
}

// TestThreads counts and lists issues and pull requests. Where they stand is for their authors and
// confirmed maintainers to say, the newest word counts, and replies are no threads of their own.
func TestThreads(t *testing.T) {
	t.Parallel()
	sys := start(t)
	owner, guest, maintainer := fixture.NewPerson().On("git.example.com"), fixture.NewPerson(), fixture.NewPerson().On("git.example.com")
	now := nostr.Now()
	announcement := owner.At(now-9000).Sign(30617, "", nostr.Tag{"d", "r"}, nostr.Tag{"name", "R"},
		nostr.Tag{"clone", "https://git.example.com/" + owner.Npub + "/r.git"}, nostr.Tag{"relays", "wss://git.example.com"},
		nostr.Tag{"maintainers", maintainer.PubKey})
	accepted := maintainer.At(now-8999).Sign(30617, "", nostr.Tag{"d", "r"}, nostr.Tag{"maintainers", owner.PubKey},
		nostr.Tag{"clone", "https://git.example.com/" + maintainer.Npub + "/r.git"}, nostr.Tag{"relays", "wss://git.example.com"})
	issue := func(n int, title string, by *fixture.Person, of *fixture.Person) *nostr.Event {
		return by.At(now-nostr.Timestamp(1000-n)).Sign(1621, "the text\n", nostr.Tag{"subject", title}, of.Repo("r"))
	}
	status := func(n, kind int, by *fixture.Person, of *nostr.Event) *nostr.Event {
		return by.At(now-nostr.Timestamp(100-n)).Sign(kind, "", nostr.Tag{"e", of.ID, "", "root"}, owner.Repo("r"))
	}
	open, resolved := issue(1, "<b>open</b>", guest, owner), issue(2, "resolved\u202e one", guest, owner)
	reopened, untouched := issue(3, "reopened", guest, maintainer), issue(4, "", owner, owner)
	elsewhere := guest.Sign(1621, "", nostr.Tag{"subject", "of another"}, guest.Repo("r"))
	merged := guest.At(now-500).Sign(1618, "", nostr.Tag{"subject", "merged pull"}, owner.Repo("r"))
	draft := guest.At(now-400).Sign(1617, "From x\nSubject: [PATCH] a patch\n\nbody", nostr.Tag{"t", "root"}, owner.Repo("r"))
	reply := guest.At(now-300).Sign(1617, "Subject: a reply", nostr.Tag{"e", draft.ID}, owner.Repo("r"))
	stranger := fixture.NewPerson()
	sys.store(t, announcement, accepted, open, resolved, reopened, untouched, elsewhere, merged, draft, reply,
		guest.At(now-9000).Sign(0, `{"name":"Guest"}`),
		status(1, 1632, stranger, open), status(2, 1631, maintainer, resolved), status(3, 1632, guest, reopened),
		status(4, 1630, owner, reopened), status(5, 1631, owner, merged), status(6, 1633, guest, draft),
		status(7, 1632, guest, untouched))
	home := "/" + owner.Npub + "/r.git"
	ask := func(query string) string {
		t.Helper()
		resp, page := sys.ask(t, "GET", home+query, "text/html")
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", query, resp.Status)
		}
		return page
	}
	inOrder(t, ask(""), "Issues: 3 open", "1 resolved or closed", "Pull requests: 1 open", "1 merged or closed")
	issues := ask("?issues")
	inOrder(t, issues, "3 open", "1 resolved or closed", "the text", "reopened", "&lt;b&gt;open&lt;/b&gt;", "Guest")
	inOrder(t, ask("?issues=closed"), "resolved one", "resolved")
	inOrder(t, ask("?pulls"), "[PATCH] a patch", "draft")
	inOrder(t, ask("?pulls=closed"), "merged pull", "merged")
	for _, page := range []string{issues, ask("?pulls"), ask("?issues=closed")} {
		if strings.Contains(page, "of another") || strings.Contains(page, "a reply") {
			t.Error("a list has what is not of the repository, or no thread")
		}
	}
}

// TestFeedOfTags has the tags that the state names, with the times that the worker knows.
func TestFeedOfTags(t *testing.T) {
	t.Parallel()
	sys := start(t)
	owner := fixture.NewPerson().On("git.example.com")
	id := strings.Repeat("a", 40)
	sys.store(t, owner.At(nostr.Now()-10).Announce("r"), owner.State("r", map[string]string{
		"refs/heads/main": id, "refs/tags/v1": id, "refs/tags/v2/rc": id,
	}))
	home := "/" + owner.Npub + "/r.git"
	if resp, _ := sys.ask(t, "GET", home+"?atom", ""); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("without a worker: %s", resp.Status)
	}
	sys.hold(t, owner.Npub+"/r")
	_, text := sys.ask(t, "GET", home+"?atom", "")
	inOrder(t, text, "Tags of r", "2001-09-09T01:46:40Z", "r v1", "tag=v1")
	if strings.Contains(text, "r v2") {
		t.Error("the feed has a tag whose age is not known")
	}
	_, page := sys.ask(t, "GET", home, "")
	inOrder(t, page, "Tags", "v1", "2001-09-09 01:46:40 UTC", home+"/archive/v1.tar.gz", "v2/rc", home+"/archive/v2%2Frc.tar.gz")
}

// inOrder wants a text to have parts, one behind the other.
func inOrder(t *testing.T, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, part := range parts {
		_, behind, is := strings.Cut(rest, part)
		if !is {
			t.Errorf("there is no %q behind those before it of %q", part, parts)
			return
		}
		rest = behind
	}
}
