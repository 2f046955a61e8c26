package githttp_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

// authority serves the repositories that it was given and takes pushes as its function says.
type authority struct {
	store *repository.Store
	mu    sync.Mutex
	known map[string]bool
	away  map[string]error
	push  func(ctx context.Context, commands []githttp.Command, receive func(context.Context) error) error
	// authorize is asked before large packs are read. nil: all are allowed.
	authorize func(push githttp.PushRequest) error
	// pushed hears of what Push is asked.
	pushed func(push githttp.PushRequest)
	// asked is how often Repository was called: once for each request that was let in.
	asked atomic.Int64
}

func (a *authority) Repository(_ context.Context, ref nostr.RepoRef) (*repository.Repo, error) {
	defer a.asked.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.away[ref.Identifier]; err != nil || !a.known[ref.Identifier] {
		return nil, cmp.Or(err, githttp.ErrNotFound)
	}
	return a.store.Repo(ref)
}

func (a *authority) Authorize(_ context.Context, push githttp.PushRequest) error {
	if a.authorize == nil {
		return nil
	}
	return a.authorize(push)
}

func (a *authority) Push(ctx context.Context, push githttp.PushRequest, receive func(context.Context) error) error {
	if a.pushed != nil {
		a.pushed(push)
	}
	return a.push(ctx, push.Commands, receive)
}

// takeAll is an authority's word for pushes that it allows.
func takeAll(ctx context.Context, _ []githttp.Command, receive func(context.Context) error) error {
	return receive(ctx)
}

// house is a server of repositories and what a test asks of it.
type house struct {
	testing.TB
	*httptest.Server
	authority *authority
	registry  *prometheus.Registry
	client    *http.Client // nil: the server's
}

func serve(t testing.TB, o githttp.Options) *house {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	metrics, err := githttp.NewMetrics(registry, 2)
	if err != nil {
		t.Fatal(err)
	}
	o.Metrics = metrics
	a := &authority{store: gittest.Store(t), known: map[string]bool{}, push: takeAll}
	server := httptest.NewServer(githttp.New(a, o))
	t.Cleanup(server.Close)
	return &house{TB: t, Server: server, authority: a, registry: registry}
}

// repo makes a repository that is served. Its HEAD is as a release leaves it.
func (h *house) repo(identifier string) *repository.Repo {
	h.Helper()
	r := gittest.Repo(h, h.authority.store, identifier)
	gittest.Git(h, r.Path(), "symbolic-ref", "HEAD", "refs/heads/main")
	h.authority.mu.Lock()
	defer h.authority.mu.Unlock()
	h.authority.known[identifier] = true
	return r
}

// at is where a repository is served.
func (h *house) at(identifier string) string {
	npub, err := nip19.EncodePublicKey(gittest.Owner)
	if err != nil {
		h.Fatal(err)
	}
	return h.URL + nostr.RepositoryURLPath(npub, identifier)
}

func (h *house) refs(r *repository.Repo) map[string]string {
	h.Helper()
	refs, err := r.Refs()
	if err != nil {
		h.Fatal(err)
	}
	return refs.ByName
}

// counted returns one count of ngit_git_operations_total and the like, by the labels in the order
// of their names.
func (h *house) counted(metric string, labels ...string) float64 {
	h.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != metric {
			continue
		}
		for _, m := range family.GetMetric() {
			var values []string
			for _, label := range m.GetLabel() {
				values = append(values, label.GetValue())
			}
			if strings.Join(values, " ") == strings.Join(labels, " ") {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestCloneOfEveryKindOfIdentifier(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	w := gittest.NewWork(t)
	id := w.Commit("a", "a")
	for _, identifier := range []string{"plain", "a/b", "..", "🌱 seed", "-x", "a.git", "100%", "a?b#c"} {
		h.repo(identifier)
		if out, err := gittest.Try(t, w.Dir, "push", h.at(identifier), "main"); err != nil {
			t.Errorf("push to %q: %v\n%s", identifier, err, out)
			continue
		}
		clone := filepath.Join(t.TempDir(), "clone")
		if out, err := gittest.Try(t, t.TempDir(), "clone", h.at(identifier), clone); err != nil {
			t.Errorf("clone of %q: %v\n%s", identifier, err, out)
		} else if got := gittest.Git(t, clone, "rev-parse", "HEAD"); got != id {
			t.Errorf("clone of %q is at %s", identifier, got)
		}
	}
	if h.counted("ngit_git_operations_total", "upload_pack", "ok", "success") == 0 || h.counted("ngit_git_bytes_total", "out") == 0 {
		t.Error("nothing was counted")
	}
	if problems, err := testutil.GatherAndLint(h.registry); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
}

// TestWhatUsersDoIsCounted: clone, fetch and push stand beside the requests, each once however many
// requests it takes; looking for references is none of them.
func TestWhatUsersDoIsCounted(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0", "2"} {
		h := serve(t, githttp.Options{})
		h.repo("counted")
		protocol := "protocol.version=" + version
		w := gittest.NewWork(t)
		w.Commit("a", "a")
		w.Git("-c", protocol, "push", h.at("counted"), "main")
		clone := filepath.Join(t.TempDir(), "clone")
		gittest.Git(t, t.TempDir(), "-c", protocol, "clone", "-q", h.at("counted"), clone)
		gittest.Git(t, clone, "-c", protocol, "ls-remote", "-q")
		w.Commit("a", "more")
		w.Git("-c", protocol, "push", h.at("counted"), "main")
		for i := range 20 { // enough that a fetch takes several rounds
			gittest.Git(t, clone, "-c", "user.name=x", "-c", "user.email=x@x.example", "commit", "-q", "--allow-empty", "-m", strconv.Itoa(i))
		}
		gittest.Git(t, clone, "-c", protocol, "fetch", "-q")
		gittest.Git(t, clone, "-c", protocol, "fetch", "-q") // nothing new
		for operation, want := range map[string]float64{"clone": 1, "fetch": 1, "push": 2, "receive_pack": 2} {
			if n := h.counted("ngit_git_operations_total", operation, "ok", "success"); n != want {
				t.Errorf("version %s: %s counted %v times, want %v", version, operation, n, want)
			}
		}
	}
}

func TestClonesInEveryProtocolVersionAndShape(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	r := h.repo("shapes")
	w := gittest.NewWork(t)
	first := w.Commit("a", strings.Repeat("a", 100))
	w.Commit("a", strings.Repeat("b", 100))
	last := w.Commit("a", strings.Repeat("c", 100))
	w.Git("push", h.at("shapes"), "main")
	for _, version := range []string{"0", "1", "2"} {
		git := func(dir string, args ...string) string {
			t.Helper()
			return gittest.Git(t, dir, append([]string{"-c", "protocol.version=" + version}, args...)...)
		}
		root := t.TempDir()
		git(root, "clone", "--quiet", h.at("shapes"), "full")
		git(root, "clone", "--quiet", "--depth=1", h.at("shapes"), "shallow")
		git(root, "clone", "--quiet", "--filter=blob:none", "--no-checkout", h.at("shapes"), "partial")
		full, shallow, partial := filepath.Join(root, "full"), filepath.Join(root, "shallow"), filepath.Join(root, "partial")
		if n := git(full, "rev-list", "--count", "HEAD"); n != "3" {
			t.Errorf("version %s: full clone has %s commits", version, n)
		}
		if n := git(shallow, "rev-list", "--count", "HEAD"); n != "1" {
			t.Errorf("version %s: shallow clone has %s commits", version, n)
		}
		git(shallow, "fetch", "--quiet", "--unshallow")
		if n := git(shallow, "rev-list", "--count", "HEAD"); n != "3" {
			t.Errorf("version %s: unshallowed clone has %s commits", version, n)
		}
		if missing := git(partial, "rev-list", "--objects", "--missing=print", "HEAD"); strings.Count(missing, "?") != 3 {
			t.Errorf("version %s: of a partial clone these are missing: %s", version, missing)
		}
		git(partial, "checkout", "--quiet", "HEAD") // brings a blob by its id

		empty := filepath.Join(root, "empty")
		git(root, "init", "--quiet", empty)
		git(empty, "fetch", "--quiet", "--depth=1", h.at("shapes"), first) // reachable, no tip
		git(empty, "fetch", "--quiet", h.at("shapes"), last)
	}
	if _, err := r.SetRefs(t.Context(), map[string]string{"refs/heads/main": first}, nil, "refs/heads/main"); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	gittest.Git(t, empty, "init", "--quiet")
	if out, err := gittest.Try(t, empty, "-c", "protocol.version=0", "fetch", h.at("shapes"), last); err == nil || !strings.Contains(out, "not our ref") {
		t.Errorf("an unreachable object was served: %v\n%s", err, out)
	}
}

func TestEmptyRepositoryShowsItsBranch(t *testing.T) {
	t.Parallel()
	h, unborn := serve(t, githttp.Options{}), gittest.FirstBranch(t)
	r := h.repo("empty")
	if _, err := r.SetRefs(t.Context(), nil, nil, "refs/heads/trunk"); err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "clone")
	gittest.Git(t, t.TempDir(), "clone", h.at("empty"), clone)
	if branch := gittest.Git(t, clone, "symbolic-ref", "HEAD"); branch != unborn {
		t.Errorf("the clone is on %s", branch)
	}
	for _, version := range []string{"0", "1"} {
		if out, err := gittest.Try(t, t.TempDir(), "-c", "protocol.version="+version, "clone", h.at("empty"), "clone"); err != nil ||
			!strings.Contains(out, "empty repository") {
			t.Errorf("in version %s: %v\n%s", version, err, out)
		}
	}
	status, _, body := h.get("GET", h.at("empty")+"/HEAD", nil)
	if status != 200 || body != "ref: "+unborn+"\n" {
		t.Errorf("HEAD: %d %q", status, body)
	}
}

// get sends a request and gives status, header and body of the answer.
func (h *house) get(method, url string, header map[string]string) (int, http.Header, string) {
	h.Helper()
	return h.send(method, url, header, nil)
}

func (h *house) send(method, url string, header map[string]string, body io.Reader) (int, http.Header, string) {
	h.Helper()
	request, err := http.NewRequestWithContext(h.Context(), method, url, body)
	if err != nil {
		h.Fatal(err)
	}
	for name, value := range header {
		request.Header.Set(name, value)
	}
	client := h.client
	if client == nil {
		client = h.Client()
	}
	response, err := client.Do(request)
	if err != nil {
		h.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		h.Fatal(err)
	}
	return response.StatusCode, response.Header, string(content)
}

func TestAnswersToRequestsOfEveryKind(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	h.repo("kinds")
	base := h.at("kinds")
	other := strings.Replace(base, "kinds.git", "unknown.git", 1)
	upload := "application/x-git-upload-pack-request"
	for name, tc := range map[string]struct {
		method, url string
		header      map[string]string
		status      int
		contentType string
		body        string
	}{
		"refs":              {"GET", base + "/info/refs?service=git-upload-pack", nil, 200, "application/x-git-upload-pack-advertisement", "001e# service=git-upload-pack\n0000"},
		"allow by id":       {"GET", base + "/info/refs?service=git-upload-pack", nil, 200, "application/x-git-upload-pack-advertisement", "allow-tip-sha1-in-want allow-reachable-sha1-in-want"},
		"filter":            {"GET", base + "/info/refs?service=git-upload-pack", nil, 200, "application/x-git-upload-pack-advertisement", " filter "},
		"version 2":         {"GET", base + "/info/refs?service=git-upload-pack", map[string]string{"Git-Protocol": "version=2"}, 200, "application/x-git-upload-pack-advertisement", "000eversion 2\n"},
		"odd version":       {"GET", base + "/info/refs?service=git-upload-pack", map[string]string{"Git-Protocol": "version=2;touch x"}, 200, "application/x-git-upload-pack-advertisement", "001e# service=git-upload-pack\n0000"},
		"refs for pushing":  {"GET", base + "/info/refs?service=git-receive-pack", map[string]string{"Git-Protocol": "version=2"}, 200, "application/x-git-receive-pack-advertisement", "001f# service=git-receive-pack\n0000"},
		"no tip to push":    {"GET", base + "/info/refs?service=git-receive-pack", nil, 200, "application/x-git-receive-pack-advertisement", "capabilities^{}"},
		"HEAD of refs":      {"HEAD", base + "/info/refs?service=git-upload-pack", nil, 200, "application/x-git-upload-pack-advertisement", ""},
		"HEAD of HEAD":      {"HEAD", base + "/HEAD", nil, 200, "text/plain; charset=utf-8", ""},
		"dumb":              {"GET", base + "/info/refs", nil, 403, "", "dumb HTTP protocol"},
		"archive":           {"GET", base + "/info/refs?service=git-upload-archive", nil, 403, "", "only git-upload-pack"},
		"objects":           {"GET", base + "/objects/info/packs", nil, 404, "", "not found"},
		"config":            {"GET", base + "/config", nil, 404, "", "not found"},
		"the address":       {"GET", base, nil, 404, "", "git clone"},
		"unknown":           {"GET", other + "/info/refs?service=git-upload-pack", nil, 404, "", "repository not found"},
		"unknown push":      {"POST", other + "/git-receive-pack", nil, 404, "", "repository not found"},
		"PRs":               {"GET", strings.Replace(base, "/npub1", "/prs/npub1", 1) + "/HEAD", nil, 404, "", "repository not found"},
		"no npub":           {"GET", h.URL + "/etc/passwd.git/HEAD", nil, 404, "", "not found"},
		"traversal":         {"GET", strings.Replace(base, "kinds.git", "..%2Fkinds.git", 1) + "/HEAD", nil, 404, "", "repository not found"},
		"NUL":               {"GET", strings.Replace(base, "kinds.git", "a%00b.git", 1) + "/HEAD", nil, 404, "", "not found"},
		"POST to refs":      {"POST", base + "/info/refs?service=git-upload-pack", nil, 405, "", "method"},
		"GET of a service":  {"GET", base + "/git-upload-pack", nil, 405, "", "method"},
		"no type":           {"POST", base + "/git-upload-pack", nil, 415, "", "Content-Type"},
		"type of another":   {"POST", base + "/git-receive-pack", map[string]string{"Content-Type": upload}, 415, "", "Content-Type"},
		"odd encoding":      {"POST", base + "/git-upload-pack", map[string]string{"Content-Type": upload, "Content-Encoding": "br"}, 400, "", "Content-Encoding"},
		"gzip that is none": {"POST", base + "/git-upload-pack", map[string]string{"Content-Type": upload, "Content-Encoding": "gzip"}, 400, "", "gzip"},
	} {
		t.Run(name, func(t *testing.T) {
			status, header, body := h.get(tc.method, tc.url, tc.header)
			if status != tc.status || !strings.Contains(body, tc.body) {
				t.Errorf("answer %d %q, want %d and %q in it", status, body, tc.status, tc.body)
			}
			if got := header.Get("Content-Type"); tc.contentType != "" && got != tc.contentType {
				t.Errorf("Content-Type %q", got)
			}
			if got := header.Get("Cache-Control"); status == 200 && !strings.Contains(got, "no-cache") {
				t.Errorf("Cache-Control %q", got)
			}
			if strings.Contains(body, os.TempDir()) {
				t.Errorf("the answer tells where repositories lie: %q", body)
			}
		})
	}
}

// TestGarbageIsTheClientsFault, not ours.
func TestGarbageIsTheClientsFault(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	h.repo("x")
	for service, garbage := range map[string]string{"git-upload-pack": "zzzz", "git-receive-pack": "zzzz"} {
		header := map[string]string{"Content-Type": "application/x-" + service + "-request"}
		if status, _, body := h.send("POST", h.at("x")+"/"+service, header, strings.NewReader(garbage)); status != 400 || !strings.HasPrefix(body, "bad request: ") {
			t.Errorf("%s: %d %q", service, status, body)
		}
	}
}

func TestRepositoryThatIsNotOnDiskIsNotFound(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	if err := h.repo("gone").Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, _, body := h.get("GET", h.at("gone")+"/info/refs?service=git-upload-pack", nil); status != 404 {
		t.Errorf("%d %q", status, body)
	}
}

// TestRepositoryThatCannotBeHadNow is not one that is not there.
func TestRepositoryThatCannotBeHadNow(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	h.authority.away = map[string]error{
		"unwritable": fmt.Errorf("make: %w", githttp.Unavailable(githttp.Unwritable, errors.New("secret-disk"))),
		"unknown":    errors.New("secret-host: no responders"),
		"nowhere":    fmt.Errorf("look: %w", githttp.ErrNotFound),
	}
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	for identifier, want := range map[string]struct {
		status int
		body   string
	}{
		"unwritable": {503, "the repository cannot be written now, try again later"},
		"unknown":    {503, "this repository cannot be looked up now, try again later"},
		"nowhere":    {404, "repository not found: no announcement of it is served or held here"},
	} {
		status, header, body := h.get("GET", h.at(identifier)+"/info/refs?service=git-receive-pack", nil)
		if status != want.status || strings.TrimSpace(body) != want.body || (status == 503) != (header.Get("Retry-After") != "") {
			t.Errorf("%s: %d %q %v", identifier, status, body, header)
		}
		if out, err := gittest.Try(t, w.Dir, "push", h.at(identifier), "main"); err == nil || !strings.Contains(out, "remote: "+want.body) {
			t.Errorf("%s: the terminal says %q", identifier, out)
		}
	}
}

func TestPullRequestsHaveAnAuthorityOfTheirOwn(t *testing.T) {
	t.Parallel()
	prs := &authority{store: gittest.Store(t), known: map[string]bool{"x": true}}
	gittest.Repo(t, prs.store, "x")
	h := serve(t, githttp.Options{PRs: prs})
	at, err := url.Parse(h.at("x"))
	if err != nil {
		t.Fatal(err)
	}
	if status, _, _ := h.get("GET", h.URL+"/prs"+at.EscapedPath()+"/HEAD", nil); status != 200 {
		t.Errorf("/prs answers %d", status)
	}
	if status, _, _ := h.get("GET", h.at("x")+"/HEAD", nil); status != 404 {
		t.Errorf("beside /prs it answers %d", status)
	}
}

// onFirstRead is a body that does something before it is read.
type onFirstRead struct {
	io.Reader
	do func()
}

func (b onFirstRead) Read(p []byte) (int, error) { b.do(); return b.Reader.Read(p) }

// TestRemovedMeanwhile: a repository that is removed after a request has found it is not there, and
// one for pull requests is empty then.
func TestRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	prs := &authority{store: gittest.Store(t), known: map[string]bool{"x": true}}
	h := serve(t, githttp.Options{PRs: prs})
	at, err := url.Parse(h.at("x"))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}
	for _, test := range []struct {
		at     string
		repo   *repository.Repo
		status int
		body   string
	}{
		{h.at("x"), h.repo("x"), 404, "repository not found: no announcement of it is served or held here\n"},
		{h.URL + "/prs" + at.EscapedPath(), gittest.Repo(t, prs.store, "x"), 200, "0000"},
	} {
		const ask = "0014command=ls-refs\n0000"
		// The body is read when the server wants it, which is after it has found the repository.
		body := onFirstRead{strings.NewReader(ask), sync.OnceFunc(func() {
			if err := test.repo.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})}
		r, err := http.NewRequestWithContext(t.Context(), "POST", test.at+"/git-upload-pack", body)
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = int64(len(ask))
		r.Header = http.Header{"Expect": {"100-continue"}, "Git-Protocol": {"version=2"}, "Content-Type": {"application/x-git-upload-pack-request"}}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != test.status || string(text) != test.body {
			t.Errorf("%s: %d %q, %v; want %d %q", test.at, resp.StatusCode, text, err, test.status, test.body)
		}
	}
}

// Not parallel: a program that is being written cannot be run, and a fork elsewhere holds its file
// open.
func TestFullHouseAsksToComeBack(t *testing.T) {
	root := t.TempDir()
	hang := filepath.Join(t.TempDir(), "git")
	script := "#!/bin/sh\ncase \"$1\" in version) echo git version 2.39.0;; var) echo main;; *) exec sleep 3600;; esac\n"
	if err := os.WriteFile(hang, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := repository.NewStore(repository.Options{Root: root, Git: hang, Processes: 4})
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{store: s, known: map[string]bool{"full": true}}
	gittest.Repo(t, s, "full")
	server := httptest.NewServer(githttp.New(a, githttp.Options{Patience: 50 * time.Millisecond}))
	t.Cleanup(server.Close)
	h := &house{TB: t, Server: server, authority: a}
	ctx, cancel := context.WithCancel(t.Context())
	ask := func() (full bool) {
		request, err := http.NewRequestWithContext(ctx, "GET", h.at("full")+"/info/refs?service=git-upload-pack", nil)
		if err != nil {
			t.Error(err)
			return false
		}
		request.Header.Set("Git-Protocol", "version=2")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") != ""
	}
	answers := make(chan bool, 4)
	for range 4 { // one is let in, and hangs
		go func() { answers <- ask() }()
	}
	select {
	case full := <-answers:
		if !full {
			t.Error("one that waited was not asked to come back")
		}
	case <-time.After(3 * time.Minute):
		t.Error("the house does not get full")
	}
	cancel()
	for range 3 {
		<-answers
	}
}
