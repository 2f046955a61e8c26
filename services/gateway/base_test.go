package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

var linkOnPage = regexp.MustCompile(`(?:href|src)="(/[^"]*)"`)

// TestBasePath: everything lies below the path, each link of each page too, and nothing outside of it.
// The worker of a repository is asked as if there were none.
func TestBasePath(t *testing.T) {
	t.Parallel()
	sys := start(t, "--base-path=/our/grasp/")
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.URL.EscapedPath()+"?"+r.URL.RawQuery)
	}))
	t.Cleanup(worker.Close)
	sys.shards.at(strings.TrimPrefix(worker.URL, "http://"))
	const at = "git.example.com/our/grasp"
	owner := fixture.NewPerson()
	npub := owner.Npub
	announcement := owner.Sign(nostr.KindAnnouncement, "", nostr.Tag{"d", "a/b"}, nostr.Tag{"relays", "wss://" + at},
		nostr.Tag{"clone", "https://" + at + "/" + npub + "/a%2Fb.git"})
	state := owner.Sign(nostr.KindState, "", nostr.Tag{"d", "a/b"}, nostr.Tag{"refs/heads/main", strings.Repeat("1", 40)},
		nostr.Tag{"HEAD", "ref: refs/heads/main"})
	outside, _, stranger := repository(t, "x") // lists the domain, but not what lies below the path
	sys.store(t, announcement, state, outside)

	home := "/our/grasp/" + npub + "/a%2Fb.git"
	if resp, body := sys.ask(t, "GET", home+"/info/refs?service=git-upload-pack", ""); body != "/"+npub+"/a%2Fb.git/info/refs?service=git-upload-pack" {
		t.Errorf("the worker was asked for %s %s", resp.Status, body)
	}
	if resp, _ := sys.ask(t, "GET", home, ""); resp.StatusCode != http.StatusOK {
		t.Errorf("the page of a repository: %s", resp.Status)
	}
	pages := []string{"/our/grasp", "/our/grasp/nothing", home}
	for n := 0; n < len(pages); n++ {
		resp, page := sys.ask(t, "GET", pages[n], "text/html")
		if n > 2 && resp.StatusCode != http.StatusOK && !strings.Contains(pages[n], "?") { // there is no worker for files
			t.Errorf("%s leads to %s", pages[n], resp.Status)
		}
		for _, found := range linkOnPage.FindAllStringSubmatch(page, -1) {
			link := strings.ReplaceAll(found[1], "&amp;", "&")
			if !strings.HasPrefix(link, "/our/grasp/") {
				t.Errorf("%s has a link to %s", pages[n], link)
			} else if !slices.Contains(pages, link) {
				pages = append(pages, link)
			}
		}
		if strings.Contains(page, "git.example.com/"+npub) || strings.Contains(page, stranger) {
			t.Errorf("%s shows addresses outside of the path", pages[n])
		}
	}
	if len(pages) < 6 {
		t.Errorf("only %v were found", pages)
	}
	resp, document := sys.ask(t, "GET", "/our/grasp/", "application/nostr+json")
	if resp.StatusCode != http.StatusOK || !strings.Contains(document, "https://"+at+"/icon.png") ||
		strings.Contains(document, "\n    5,") {
		t.Errorf("NIP-11: %s %s", resp.Status, document)
	}
	for _, path := range []string{"/", "/" + npub + "/a%2Fb.git", "/our", "/our/graspy", "/our/grasp%2F" + npub, "/icon.png", "/metrics"} {
		if resp, _ := sys.ask(t, "GET", path, "application/nostr+json"); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s, which is outside: %s", path, resp.Status)
		}
	}
	if _, _, err := websocket.Dial(t.Context(), "ws://"+sys.addr+"/", nil); err == nil {
		t.Error("the relay answers outside of the path")
	}
	for _, path := range []string{"/our/grasp", "/our/grasp/"} {
		ws, _, err := websocket.Dial(t.Context(), "ws://"+sys.addr+path, nil)
		must(t, err)
		c := &client{t: t, ws: ws}
		c.hears(`["EVENT","a",{`, `["REQ","a",{"kinds":[30617],"limit":1}]`)
		must(t, ws.CloseNow())
	}
	no := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for from, to := range map[string]string{home + "/": home, strings.TrimSuffix(home, ".git"): home} {
		resp, err := no.Get("http://" + sys.addr + from)
		must(t, err)
		resp.Body.Close()
		if resp.Header.Get("Location") != to {
			t.Errorf("%s leads to %q", from, resp.Header.Get("Location"))
		}
	}
}
