package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

func (sys *system) ask(t testing.TB, method, path, accept string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+sys.addr+path, nil)
	must(t, err)
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp, string(body)
}

// repository makes an announcement and a state of a new author, 90 minutes old: pages say how old
// something is, and this they say in the same words for half an hour.
func repository(t testing.TB, identifier string, tags ...nostr.Tag) (announcement, state *nostr.Event, npub string) {
	t.Helper()
	secret, at := gonostr.GeneratePrivateKey(), nostr.Now()-90*60
	state = &nostr.Event{Kind: 30618, CreatedAt: at, Tags: nostr.Tags{{"d", identifier},
		{"refs/heads/main", strings.Repeat("1", 40)}, {"refs/heads/side", strings.Repeat("2", 40)}, {"refs/tags/v1", strings.Repeat("3", 40)}, {"HEAD", "ref: refs/heads/main"}}}
	must(t, state.Sign(secret))
	npub, err := nip19.EncodePublicKey(state.PubKey)
	must(t, err)
	announcement = &nostr.Event{Kind: 30617, CreatedAt: at, Tags: append(nostr.Tags{{"d", identifier},
		{"clone", "https://git.example.com/" + npub + "/" + strings.ReplaceAll(identifier, "/", "%2F") + ".git"}, {"relays", "wss://git.example.com"}}, tags...)}
	must(t, announcement.Sign(secret))
	return announcement, state, npub
}

func TestPages(t *testing.T) {
	t.Parallel()
	sys := start(t, "--relay-name=<Seeds>")
	friend := strings.Repeat("b", 64)
	announcement, state, npub := repository(t, "a/b", nostr.Tag{"name", "<script>alert(1)</script>"}, nostr.Tag{"description", "A & B"},
		nostr.Tag{"maintainers", friend}, nostr.Tag{"web", "javascript:alert(1)", "https://project.example"})
	elsewhere, _, stranger := repository(t, "x")
	elsewhere.Tags = nostr.Tags{{"d", "x"}, {"clone", "https://other.example/x.git"}, {"relays", "wss://other.example"}}
	sys.store(t, announcement, state, elsewhere)
	sys.hold(t, npub+"/held")

	resp, page := sys.ask(t, "GET", "/"+npub+"/a%2Fb.git", "text/html")
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	friendly, err := nip19.EncodePublicKey(friend)
	must(t, err)
	naddr, err := nip19.EncodeEntity(announcement.PubKey, 30617, "a/b", []string{"wss://git.example.com"})
	must(t, err)
	for _, want := range []string{"&lt;script&gt;alert(1)&lt;/script&gt;", "A &amp; B", "git clone https://git.example.com/" + npub + "/a%2Fb.git", npub, friendly,
		`href="https://gitworkshop.dev/` + naddr + `"`, `href="nostr:` + naddr + `"`, `href="https://project.example"`,
		"<code>git clone nostr://" + npub + "/git.example.com/a%2Fb</code>", `<link rel="icon" href="/icon.png">`, "main", "(HEAD)",
		`<meta property="og:title" content="&lt;script&gt;alert(1)&lt;/script&gt;">`,
		`<meta name="go-import" content="git.example.com/` + npub + `/a%2Fb.git git https://git.example.com/` + npub + `/a%2Fb.git">`, "side", "v1", strings.Repeat("3", 40)} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %s", want)
		}
	}
	for _, bad := range []string{"<script>alert", "javascript:", "ZgotmplZ", `src="`, "@import"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	// What is ours on the page, and nothing else, is allowed to run.
	policy := resp.Header.Get("Content-Security-Policy")
	for _, element := range []string{"style", "script"} {
		_, text, _ := strings.Cut(page, "<"+element+">")
		text, _, _ = strings.Cut(text, "</"+element+">")
		hash := sha256.Sum256([]byte(text))
		want := element + "-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "';"
		if strings.Count(page, "<"+element) != 1 || !strings.Contains(policy, want) || !strings.HasPrefix(policy, "default-src 'none'; ") {
			t.Errorf("policy %s, want %s", policy, want)
		}
	}
	resp, page = sys.ask(t, "GET", "/", "")
	if resp.StatusCode != http.StatusOK || !strings.Contains(page, "&lt;Seeds&gt;") || !strings.Contains(page, `href="/`+npub+`/a%2Fb.git"`) ||
		strings.Contains(page, stranger) || !strings.Contains(page, "wss://git.example.com") {
		t.Errorf("front page: %s\n%s", resp.Status, page)
	}
	if resp, page = sys.ask(t, "HEAD", "/", ""); resp.StatusCode != http.StatusOK || page != "" {
		t.Errorf("HEAD: %s %q", resp.Status, page)
	}
	names := strings.NewReplacer("NPUB", npub, "STRANGER", stranger)
	for want, paths := range map[int]string{
		404: "/NPUB/none.git /STRANGER/x.git /prs/NPUB/a%2Fb.git /STRANGER /npub1xxx/a.git /../etc/passwd // /NPUB/%00.git",
		// The author's repositories. And an identifier is one segment in what we print, but a slash
		// in it may be written as such too.
		200: "/NPUB /NPUB/ /NPUB/a/b.git /NPUB/a/b",
	} {
		for path := range strings.FieldsSeq(names.Replace(paths)) {
			if resp, page := sys.ask(t, "GET", path, ""); resp.StatusCode != want || !strings.Contains(page, "<html") {
				t.Errorf("%s: %s", path, resp.Status)
			}
		}
	}
}

// TestMaintainersOnPages: they are found by their authors, however many others have announced a
// repository of this name since.
func TestMaintainersOnPages(t *testing.T) {
	t.Parallel()
	sys := start(t)
	secret := func(n int) string { return fmt.Sprintf("%064x", n) }
	key := func(n int) string {
		key, err := gonostr.GetPublicKey(secret(n))
		must(t, err)
		return key
	}
	announced := func(n int, maintainers ...string) *nostr.Event {
		ev := fake(n, nostr.KindAnnouncement, nostr.Tag{"d", "x"}, append(nostr.Tag{"maintainers"}, maintainers...))
		must(t, ev.Sign(secret(n)))
		return ev
	}
	announcement, _, npub := repository(t, "x", nostr.Tag{"maintainers", key(1), key(4)})
	chain := []*nostr.Event{announced(1, announcement.PubKey, key(2)), announced(2, key(1), key(3)), announced(3, key(2))}
	sys.store(t, append(chain, announcement)...)
	var others []*nostr.Event
	for n := range 500 {
		others = append(others, announced(n+10, announcement.PubKey))
	}
	sys.store(t, others...)
	_, page := sys.ask(t, "GET", "/"+npub+"/x.git", "text/html")
	for n, ev := range append(chain, others[0]) {
		named, err := nip19.EncodePublicKey(ev.PubKey)
		must(t, err)
		if strings.Contains(page, named) != (n < len(chain)) {
			t.Errorf("the maintainers of the page are wrong about %d", n)
		}
	}
	_, invited, is := strings.Cut(page, "Invited, not accepted yet")
	if !is || !strings.Contains(invited, nostr.Npub(key(4))) || strings.Contains(invited, nostr.Npub(key(1))) {
		t.Error("the page does not tell who is invited")
	}
}

// TestPagesOfWhatIsNotServed: a repository that is held, or was archived by earlier settings, has a
// page as long as a worker keeps it; one that is archived is listed and says so; an address for
// contributions can be cloned, with the feature on.
func TestPagesOfWhatIsNotServed(t *testing.T) {
	t.Parallel()
	_, _, npub := repository(t, "r")
	elsewhere := signed(t, nostr.Event{Kind: 30617, Tags: nostr.Tags{{"d", "r"}, {"clone", "https://a.example/r.git"}, {"relays", "wss://a.example"}}})
	archived, err := nip19.EncodePublicKey(elsewhere.PubKey)
	must(t, err)
	names := strings.NewReplacer("NPUB", npub, "ARCHIVED", archived)
	for _, c := range []struct {
		args  string
		keeps []string // repositories that a worker keeps
		pages string   // a path, its status, and what its page says
	}{
		{"", []string{npub + "/r", archived + "/r"}, `
			NPUB/r.git     | 200 | git data is awaited
			NPUB/r.git     | 200 | 2026-01-02 03:04:05 UTC
			NPUB/r.git     | 200 | <code>&lt;c0ffee&gt;</code>
			NPUB/r.git     | 200 | <code>https://g.example/r</code>: 404 &lt;b&gt;
			NPUB/r.git     | 200 | git push https://git.example.com/NPUB/r.git &#39;refs/heads/*&#39; &#39;refs/tags/*&#39;
			NPUB/r.git/    | 200 | https://git.example.com/NPUB/r.git
			NPUB/%72.git   | 200 | <meta name="go-import" content="git.example.com/NPUB/r.git git https://git.example.com/
			NPUB/other.git | 404 | Not here
			prs/NPUB/r.git | 404 | Not here
			ARCHIVED/r.git | 200 | does not list this service
			               | 200 | None yet`},
		{"", []string{}, "ARCHIVED/r.git | 404 | Not here"},
		{"", nil, "NPUB/r.git | 503 | try again later"},
		{"--grasp06-enable", nil, `
			prs/NPUB/r.git     | 200 | https://git.example.com/prs/NPUB/r.git
			prs/npub1xxx/r.git | 404 | Not here`},
		{"--archive-whitelist=r", nil, `
			ARCHIVED/r.git | 200 | a copy of it that cannot be pushed to
			               | 200 | (archive)`},
		{"--archive-all --archive-read-only=false", nil, "ARCHIVED/r.git | 200 | a copy of it."},
	} {
		sys := start(t, strings.Fields(c.args)...)
		sys.store(t, elsewhere)
		if c.keeps != nil {
			sys.hold(t, c.keeps...)
		}
		for _, r := range fixture.Rows(names.Replace(c.pages)) {
			resp, page := sys.ask(t, "GET", "/"+r[0], "")
			if fmt.Sprint(resp.StatusCode) != r[1] || !strings.Contains(strings.Join(strings.Fields(page), " "), r[2]) {
				t.Errorf("%s, /%s: %s\n%s", c.args, r[0], resp.Status, page)
			}
		}
	}
}

// TestPagesOfFiles: folders, files and commits of branches are shown as their worker tells them,
// and nothing in them is taken for a page's own. Pages are packed, and not sent again if nothing
// changed.
func TestPagesOfFiles(t *testing.T) {
	t.Parallel()
	sys := start(t)
	announcement, state, npub := repository(t, "r")
	sys.store(t, announcement, state)
	_, page := sys.ask(t, "GET", "/"+npub+"/r.git", "")
	if !strings.Contains(page, "cannot be shown at the moment") || !strings.Contains(page, "git clone") {
		t.Errorf("without a worker: %s", page)
	}
	sys.hold(t, npub+"/r")
	for _, r := range fixture.Rows(`
		                              | 200 | a&lt;b.go
		                              | 200 | <em>title</em>
		                              | 200 | &lt;subject&gt;
		                              | 200 | <bdi>A</bdi>
		                              | 200 | r.git?branch=main&amp;path=docs
		?branch=main                  | 200 | <em>title</em>
		?branch=main                  | 200 | <title>Files of main: r</title>
		?branch=main&path=a%3Cb.go    | 200 | <title>a&lt;b.go at main: r</title>
		?branch=main&log=0            | 200 | <title>Commits of main: r</title>
		?branch=main&path=a%3Cb.go    | 200 | &lt;script&gt;
		?branch=main&path=big         | 200 | too large to be shown
		?branch=main&path=nothing     | 404 | Not here
		?branch=main&log=0            | 200 | log=50" rel="next">Older
		?branch=main&log=50           | 200 | log=0" rel="prev">Newer
		?branch=main&log=-1           | 404 | Not here
		?branch=main&log=10001        | 404 | Not here
		?branch=other                 | 404 | Not here
		?branch=                      | 404 | Not here
		?tag=main                     | 404 | Not here
		?branch=main&path=docs&raw=1  | 404 | Not here
		?branch=main&path=big&raw=1   | 413 | clone the repository
		?branch=main&path=a%3Cb.go&raw| 200 | <script>`) {
		resp, page := sys.ask(t, "GET", "/"+npub+"/r.git"+r[0], "")
		if fmt.Sprint(resp.StatusCode) != r[1] || !strings.Contains(page, r[2]) {
			t.Errorf("%s: %s\n%s", r[0], resp.Status, page)
		}
		if strings.Contains(r[0], "raw") && resp.StatusCode == 200 && (resp.Header.Get("Content-Type") != "text/plain; charset=utf-8" ||
			!strings.Contains(resp.Header.Get("Content-Security-Policy"), "sandbox")) {
			t.Errorf("a file as it is: %v", resp.Header)
		}
	}
	ask := func(header, value string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+sys.addr+"/"+npub+"/r.git", nil)
		must(t, err)
		r.Header.Set(header, value)
		resp, err := http.DefaultTransport.RoundTrip(r)
		must(t, err)
		resp.Body.Close()
		return resp
	}
	first := ask("Accept-Encoding", "br, gzip;q=0.5")
	if first.Header.Get("Content-Encoding") != "gzip" || first.Header.Get("ETag") == "" {
		t.Errorf("the page is not packed, or has no tag: %v", first.Header)
	}
	if same := ask("If-None-Match", first.Header.Get("ETag")); same.StatusCode != http.StatusNotModified {
		t.Errorf("the same page again: %s", same.Status)
	}
	if no := ask("Accept-Encoding", "gzip;q=0"); no.Header.Get("Content-Encoding") != "" {
		t.Error("a page is packed for who does not take that")
	}
}

// TestGitIsToldWhatIsWrongWithAnAddress in plain text: git shows no pages.
func TestGitIsToldWhatIsWrongWithAnAddress(t *testing.T) {
	t.Parallel()
	sys := start(t)
	for path, want := range map[string]string{
		"/npub1xyz/a.git": "the path does not start with a legal npub",
		"/alice/a.git":    "the path does not start with an npub",
	} {
		resp, body := sys.ask(t, "GET", path+"/info/refs?service=git-upload-pack", "")
		want = "repository not found: " + want + "; repositories are at /<npub of the owner>/<identifier>.git\n"
		if resp.StatusCode != http.StatusNotFound || body != want || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
			t.Errorf("%s: %s %s %q, want %q", path, resp.Status, resp.Header.Get("Content-Type"), body, want)
		}
	}
}

const allowedHeaders = "Content-Type, Accept, Accept-Encoding, Authorization, Content-Encoding, Git-Protocol, Range, X-Requested-With"

// hold lets a worker answer for repositories, named "<npub>/<identifier>", and for no others.
func (sys *system) hold(t testing.TB, repositories ...string) {
	t.Helper()
	answers := gitquery.NewServer(sys.Bus.Conn, sys.Log, gitquery.Answers{
		Waits: func(_ context.Context, ref nostr.RepoRef) (answer proto.RepoWaitsAnswer, err error) {
			if answer.Here = slices.Contains(repositories, ref.Name()); answer.Here {
				err = json.Unmarshal([]byte(`{"until":"2026-01-02T03:04:05Z","missing":["<c0ffee>"],
					"asked":[{"at":"2026-01-02T03:00:00Z","url":"https://g.example/r","answer":"404 <b>"}]}`), &answer.Waits)
			}
			return answer, err
		},
		Folder: func(_ context.Context, _ nostr.RepoRef, q proto.RepoFolderQuestion) (a proto.RepoFolderAnswer, err error) {
			if q.Name != "refs/heads/main" {
				return a, nil
			}
			a.Commit = &proto.RepoCommit{ID: strings.Repeat("c", 40), Subject: "<subject>", Author: "A\u202e", At: time.Unix(1e9, 0)}
			switch q.Path {
			case "":
				a.Entries = []proto.RepoEntry{{Name: "a<b.go", Kind: proto.EntryFile}, {Name: "docs", Kind: proto.EntryFolder}}
				a.Readme = &proto.RepoFile{Name: "README.md", Bytes: 9, Data: []byte("# A *title*\n\nt&#x202e;urned")}
				a.Readme.Bytes = int64(len(a.Readme.Data))
			case "a<b.go":
				a.File = &proto.RepoFile{Name: q.Path, Bytes: 9, Data: []byte("<script>\n")}
			case "big":
				a.File = &proto.RepoFile{Name: q.Path, Bytes: 1 << 30}
			default:
				return proto.RepoFolderAnswer{}, nil
			}
			return a, nil
		},
		Ages: func(context.Context, nostr.RepoRef, proto.RepoAgesQuestion) (proto.RepoAgesAnswer, error) {
			return proto.RepoAgesAnswer{Times: map[string]time.Time{"refs/tags/v1": time.Unix(1e9, 0)}}, nil
		},
		Log: func(_ context.Context, _ nostr.RepoRef, q proto.RepoLogQuestion) (a proto.RepoLogAnswer, err error) {
			if q.Name == "refs/heads/main" {
				a.Commits, a.More = []proto.RepoCommit{{ID: strings.Repeat("c", 40), Subject: fmt.Sprint("behind ", q.Skip)}}, q.Skip == 0
			}
			return a, nil
		},
	})
	for shard := range proto.Shards {
		_, err := answers.Serve(t.Context(), shard)
		must(t, err)
	}
}

func TestCORSOnEveryAnswer(t *testing.T) {
	t.Parallel()
	sys := start(t)
	_, _, npub := repository(t, "r")
	for _, c := range fixture.Rows(strings.ReplaceAll(`
		GET     | /             |                        | 200
		GET     | /             | application/nostr+json | 200
		POST    | /             |                        | 405
		OPTIONS | /             |                        | 204
		GET     | /healthz      |                        | 200
		GET     | /readyz       |                        | 200
		GET     | /metrics      |                        | 200
		POST    | /metrics      |                        | 405
		GET     | /icon.png     |                        | 200
		GET     | /favicon.ico  |                        | 200
		GET     | /nowhere      |                        | 404
		DELETE  | /nowhere      |                        | 405
		GET     | /NPUB/r.git   |                        | 503
		OPTIONS | /NPUB/r.git/info/refs?service=git-upload-pack | | 204
		GET     | /NPUB/r.git/info/refs?service=git-upload-pack | | 503
		PUT     | /NPUB/r.git/info/refs?service=git-upload-pack | | 503`, "NPUB", npub)) {
		resp, _ := sys.ask(t, c[0], c[1], c[2])
		h := resp.Header
		if fmt.Sprint(resp.StatusCode) != c[3] || h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Access-Control-Allow-Methods") != "GET, POST, OPTIONS" ||
			h.Get("Access-Control-Allow-Headers") != allowedHeaders {
			t.Errorf("%s %s: %s %v", c[0], c[1], resp.Status, h)
		}
	}
	// OPTIONS *, a WebSocket, and what is one too many.
	conn, answers := dial(t, sys.addr)
	fmt.Fprint(conn, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp, err := http.ReadResponse(answers, nil); err != nil || resp.StatusCode != 204 || resp.Header.Get("Access-Control-Allow-Headers") != allowedHeaders {
		t.Errorf("OPTIONS *: %v, %v", resp, err)
	}
	_, resp, err := websocket.Dial(t.Context(), "ws://"+sys.addr, nil)
	if err != nil || resp.Header.Get("Access-Control-Allow-Headers") != allowedHeaders {
		t.Errorf("WebSocket: %v, %v", resp, err)
	}
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n") // and nothing else that belongs to it
	if resp, err := http.ReadResponse(answers, nil); err != nil || resp.StatusCode < 400 || resp.Header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("a broken upgrade: %v, %v", resp, err)
	}
}

// TestFrontDoorIsAnnouncedWithItsWorkers: who is told where the front door is may clone and push at
// once; the relay does not wait for that.
func TestFrontDoorIsAnnouncedWithItsWorkers(t *testing.T) {
	t.Parallel()
	sys := start(t)
	if url := sys.Announced(node.FrontDoor); url != "" {
		t.Errorf("announced as %s while no shard has a worker", url)
	}
	if why := sys.Ready.Failing()["gateway"]; why != "" {
		t.Errorf("not ready without workers: %s", why)
	}
	sys.shards.at("127.0.0.1:1")
	eventually(t, "announced", func() bool { return sys.Announced(node.FrontDoor) != "" })
}

// TestStopCutsOffWhoeverIsTooSlow: a client that stopped reading its clone does not make the stop a
// failure, and does not hold it up for ever.
func TestStopCutsOffWhoeverIsTooSlow(t *testing.T) {
	t.Parallel()
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for pack := make([]byte, 64<<10); ; {
			if _, err := w.Write(pack); err != nil {
				return
			}
		}
	}))
	defer worker.Close()
	sys := start(t, "--shutdown-wait=1s")
	sys.shards.at(worker.Listener.Addr().String())
	_, _, npub := repository(t, "r")
	resp, err := http.Post("http://"+sys.addr+"/"+npub+"/r.git/git-upload-pack", "", http.NoBody) // its body is not read until the gateway has ended
	must(t, err)
	defer resp.Body.Close()
	sys.stop()
	must(t, fixture.Receive(t, "the gateway ends", sys.ended))
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("an answer without end came to its end")
	}
	if n := sys.warned("clients that were too slow are cut off"); n != 1 {
		t.Errorf("warned %d times", n)
	}
}

// TestStopBetweenTwoRequests: a client whose connection is idle when the gateway is asked to stop
// makes its next request on it, as git does between two steps of a clone, and hears that the
// connection ends after it.
func TestStopBetweenTwoRequests(t *testing.T) {
	t.Parallel()
	sys := start(t, "--shutdown-wait=10m")
	conn, answers := dial(t, sys.addr)
	ask := func() *http.Response {
		t.Helper()
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(answers, nil)
		must(t, err)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp
	}
	if resp := ask(); resp.Close {
		t.Error("the connection ends though the gateway does not stop")
	}
	sys.stop()
	for !ask().Close { // as soon as the gateway has heard of it
	}
	if _, err := answers.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection goes on: %v", err)
	}
	if err := <-sys.ended; err != nil {
		t.Errorf("the stop: %v", err)
	}
}

// TestNames: nostr.json names the service's key, and a repository by its path if it is served here.
func TestNames(t *testing.T) {
	t.Parallel()
	served, _, npub := repository(t, "r")
	_, _, stranger := repository(t, "r")
	sys := start(t)
	sys.store(t, served)
	key, err := sys.Settings.LoadKey(t.TempDir())
	must(t, err)
	const names = `{"names":{"_":"KEY"}}`
	found := `"FOUND":{"filter":{"authors":["OWNER"],"kinds":[30617],"#d":["r"]},"relays":["wss://git.example.com"]}`
	words := strings.NewReplacer("KEY", key.Public, "OWNER", served.PubKey)
	for query, want := range map[string]string{
		"": names, "?name=_": names, "?name=alice": `{"names":{}}`, "?path=names": names,
		"?path=/" + npub + "/r.git": `{` + strings.Replace(found, "FOUND", "/"+npub+"/r.git", 1) + `,"names":{"_":"KEY"}}`,
		"?path=" + npub + "/r":      `{"names":{"_":"KEY"},` + strings.Replace(found, "FOUND", npub+"/r", 1) + `}`,
		"?path=/" + npub + "/x.git": names, "?path=/" + stranger + "/r.git": names, "?path=/prs/" + npub + "/r.git": names,
		"?path=/" + npub + "/r.git/info/refs": names, "?path=%00": names,
	} {
		resp, body := sys.ask(t, "GET", "/.well-known/nostr.json"+query, "")
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Access-Control-Allow-Origin") != "*" ||
			resp.Header.Get("Content-Type") != "application/json" || strings.TrimSpace(body) != words.Replace(want) {
			t.Errorf("%s: %s %s\nwant %s", query, resp.Status, body, words.Replace(want))
		}
	}
}

// TestOperatorNames: a name that the operator gave leads browsers and git to the repository, and
// nostr.json knows it, until it is taken back. What is not served has none.
func TestOperatorNames(t *testing.T) {
	t.Parallel()
	served, _, npub := repository(t, "a b")
	sys := start(t)
	sys.store(t, served)
	ref := nostr.RepoRef{PubKey: served.PubKey, Identifier: "a b"}
	for name, at := range map[string]nostr.RepoRef{"project": ref, "gone": {PubKey: served.PubKey, Identifier: "not here"}} {
		must(t, bans.Give(t.Context(), sys.Bus.JS, name, at, "an operator"))
		fixture.Await(t, "the name is known", func() bool { _, named := sys.Bans.NamedRepository(name); return named })
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	leads := func(path string) string {
		resp, err := client.Get("http://" + sys.addr + path)
		must(t, err)
		resp.Body.Close()
		return strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Location")))
	}
	page := "302 /" + npub + "/a%20b.git"
	for path, want := range map[string]string{
		"/project": page, "/project/": page, "/project.git": page, "/project.git?branch=main": page + "?branch=main",
		"/project.git/info/refs?service=git-upload-pack": page + "/info/refs?service=git-upload-pack",
		"/project/info/refs?service=git-receive-pack":    page + "/info/refs?service=git-receive-pack",
		"/project/x": "404", "/nothing": "404", "/Project": "404",
	} {
		if got := leads(path); got != want {
			t.Errorf("%s leads to %s, want %s", path, got, want)
		}
	}
	found := `{"filter":{"authors":["` + served.PubKey + `"],"kinds":[30617],"#d":["a b"]},"relays":["wss://git.example.com"]}`
	knows := func(query, key string) bool {
		_, body := sys.ask(t, "GET", "/.well-known/nostr.json"+query, "")
		var all map[string]json.RawMessage
		must(t, json.Unmarshal([]byte(body), &all))
		return string(all[key]) == found
	}
	for _, path := range []string{"/project", "/project.git", "project"} {
		if !knows("?path="+path, path) || path[0] == '/' && !knows("", path) {
			t.Errorf("nostr.json does not know %s", path)
		}
	}
	if _, body := sys.ask(t, "GET", "/.well-known/nostr.json?path=/gone.git", ""); strings.Contains(body, "filter") {
		t.Errorf("what is not served has a name: %s", body)
	}
	must(t, bans.TakeBack(t.Context(), sys.Bus.JS, "project", "an operator"))
	fixture.Await(t, "the name is gone", func() bool { return leads("/project") == "404" && !knows("", "/project") })
	for _, name := range []string{"", "A", "a/b", ".well-known", "x.git", npub, "healthz", "prs", "a b", "..", strings.Repeat("a", 101)} {
		if bans.Give(t.Context(), sys.Bus.JS, name, ref, "an operator") == nil {
			t.Errorf("%q can be a name", name)
		}
	}
}
