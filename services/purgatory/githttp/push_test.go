package githttp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
	"tendril.dev/test/fixture/gittest"
	"tendril.dev/test/fixture/nettest"
)

func TestPushIsTakenWhenItIsAuthorised(t *testing.T) {
	h, r, w := begin(t, githttp.Options{})
	var asked githttp.PushRequest
	h.authority.push = func(ctx context.Context, push githttp.PushRequest, receive receiver) (githttp.Refusals, error) {
		asked = push
		refused, err := receive(ctx, push.Changes)
		if err == nil && push.Changes[0].New != "" && h.refs(r)[push.Changes[0].Name] != push.Changes[0].New {
			t.Error("the references are not there when receive returns")
		}
		return refused, err
	}
	first := w.Commit("a", "a")
	w.Git("push", h.at("x"), "main")
	if want := (repostate.Change{Name: "refs/heads/main", New: first}); len(asked.Changes) != 1 || asked.Changes[0] != want || asked.PackBytes == 0 {
		t.Errorf("asked for %+v", asked)
	}
	second := w.Commit("b", "b")
	w.Git("tag", "--annotate", "--message", "v1", "v1")
	w.Git("push", h.at("x"), "main", "v1")
	w.Git("push", "--force", h.at("x"), first+":refs/heads/main", second+":refs/heads/dev", ":refs/tags/v1")
	if got := h.refs(r); !maps.Equal(got, map[string]string{"refs/heads/main": first, "refs/heads/dev": second}) {
		t.Errorf("references %v", got)
	}
	w.Git("push", h.at("x"), ":refs/heads/main") // the branch that HEAD follows
	if got := h.refs(r); len(got) != 1 {
		t.Errorf("references %v", got)
	}
	// A client that does not see a reference deletes it so.
	none := githttp.ZeroID + " " + githttp.ZeroID + " refs/heads/dev\x00report-status"
	if _, answer := h.push("x", nil, none); !strings.Contains(answer, "ok refs/heads/dev") || len(h.refs(r)) != 0 {
		t.Errorf("%q, references %v", answer, h.refs(r))
	}
	if h.counted("ngit_git_push_authorization_total", "allowed") != 5 || h.operations("receive_pack", "ok") != 5 {
		t.Error("5 pushes were not counted")
	}
}

func TestRefusalStandsOnTheTerminal(t *testing.T) {
	h, r, w := begin(t, githttp.Options{})
	reason := "authorisation failed: no state event authorises these references"
	h.authority.push = refuse(fmt.Errorf("push: %w", githttp.Refuse(reason)))
	w.Commit("a", "a")
	w.Git("branch", "dev")
	w.Commit("b", gittest.Noise(8<<20)) // beyond http.postBuffer: sent in chunks, after a probe
	out := h.failing(w, "push", h.at("x"), "main", "dev")
	for _, want := range []string{"remote: " + reason, "[remote rejected] main -> main (" + reason + ")", "[remote rejected] dev -> dev"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not on the terminal:\n%s", want, out)
		}
	}
	for _, bad := range []string{"RPC failed", "unexpected disconnect", "hung up", "HTTP 4", "HTTP 5"} {
		if strings.Contains(out, bad) {
			t.Errorf("%q is on the terminal:\n%s", bad, out)
		}
	}
	gittest.Untouched(t, r)
	if h.counted("ngit_git_push_authorization_total", "denied") != 1 || h.operations("receive_pack", "refused") != 1 {
		t.Error("the refusal was not counted")
	}
}

func TestOtherFailuresOfTheAuthorityTellNothing(t *testing.T) {
	h, _, w := begin(t, githttp.Options{})
	w.Commit("a", "a")
	for name, push := range map[string]pushing{
		"before": refuse(errors.New("secret-host: no responders")),
		"after": func(ctx context.Context, push githttp.PushRequest, receive receiver) (githttp.Refusals, error) {
			_, err := receive(ctx, push.Changes)
			return nil, errors.Join(err, errors.New("secret-host: not committed"))
		},
	} {
		h.authority.push = push
		if out := h.failing(w, "push", h.at("x"), "main:refs/heads/"+name); !strings.Contains(out, "[remote rejected]") || strings.Contains(out, "secret") {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// TestFullDiskIsToldToTheUserAndNothingStaysOnIt, whether git meets it or what is read in before.
// Not parallel: gittest.CrampedStore.
func TestFullDiskIsToldToTheUserAndNothingStaysOnIt(t *testing.T) {
	var log bytes.Buffer
	h := serveFrom(t, gittest.CrampedStore(t, 256), githttp.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	r := h.repo("full")
	w := gittest.NewWork(t)
	w.Commit("a", gittest.Noise(600<<10)) // on its way in it is no file of git's, so that only git meets the limit
	out := h.failing(w, "push", h.at("full"), "main")
	spools := filepath.Join(h.authority.store.Root, ".new")
	must(t, errors.Join(os.Remove(spools), os.Symlink("/sys", spools))) // which takes no file, not even of root
	out += h.failing(w, "push", h.at("full"), "main")
	h.Close()
	if strings.Count(out, "[remote rejected] main -> main ("+githttp.Unwritable+")") != 2 || !strings.Contains(log.String(), "File too large") || !strings.Contains(log.String(), "for what arrives") {
		t.Errorf("the terminal says:\n%s\nthe log:\n%s", out, &log)
	}
	if size, err := r.Bytes(); err != nil || size > 64<<10 {
		t.Errorf("%d bytes are left, %v", size, err)
	}
}

// TestWhatGitRefuses: each reference has git's own result, unless the push asked for all or
// nothing.
func TestWhatGitRefuses(t *testing.T) {
	h, r, w := begin(t, githttp.Options{})
	first := w.Commit("a", "a")
	w.Git("push", h.at("x"), "main")
	second := w.Commit("b", "b")
	// One command is right, the other expects main where it is not.
	commands := func(capabilities string) []string {
		return []string{creates("refs/heads/dev", second, capabilities), second + " " + second + " refs/heads/main"}
	}
	status, answer := h.push("x", w.Pack("main"), commands("report-status side-band-64k atomic")...)
	if status != 200 || !strings.Contains(answer, "ng refs/heads/main") || !strings.Contains(answer, "ng refs/heads/dev") || h.operations("receive_pack", "refused") != 1 {
		t.Errorf("answer %d %q", status, answer)
	}
	if got := h.refs(r); len(got) != 1 || got["refs/heads/main"] != first {
		t.Errorf("references %v", got)
	}
	status, answer = h.push("x", w.Pack("main"), commands("report-status side-band-64k")...)
	if status != 200 || !strings.Contains(answer, "ng refs/heads/main failed to update ref") || !strings.Contains(answer, "ok refs/heads/dev") {
		t.Errorf("answer %d %q", status, answer)
	}
	if got := h.refs(r); len(got) != 2 || got["refs/heads/main"] != first || got["refs/heads/dev"] != second {
		t.Errorf("references %v", got)
	}
}

// TestEveryReferenceHasItsLine, however many there are, taken or refused.
func TestEveryReferenceHasItsLine(t *testing.T) {
	h, r, w := begin(t, githttp.Options{})
	id := w.Commit("a", "a")
	const tags = 360 // each line of the report has 380 bytes: that is more than two packets of it
	var create strings.Builder
	for n := range tags {
		fmt.Fprintf(&create, "create refs/tags/%s/%[1]s-%d %s\n", strings.Repeat("long", 45), n, id)
	}
	gittest.Input(t, w.Dir, []byte(create.String()), "update-ref", "--stdin")
	h.authority.push = refuse(githttp.Refuse("authorisation failed: no state event names these references"))
	out := h.failing(w, "push", "--tags", h.at("x"))
	if n := strings.Count(out, "[remote rejected]"); n != tags || strings.Contains(out, "hung up") {
		t.Errorf("%d references are told to be refused: %.300s", n, out)
	}
	h.authority.push = takeAll
	out = w.Git("push", "--porcelain", "--tags", h.at("x"))
	if n := strings.Count(out, "[new tag]"); n != tags || len(h.refs(r)) != tags {
		t.Errorf("%d references are told, %d are there: %.300s", n, len(h.refs(r)), out)
	}
}

// TestGitsOwnWords: what git refuses is told as git says it, and no limit is named that was not
// reached.
func TestGitsOwnWords(t *testing.T) {
	h, r, w := begin(t, githttp.Options{})
	w.Commit("a", "a")
	w.Commit("b", "b")
	source := t.TempDir()
	w.Publish(source, "x.git")
	shallow := &gittest.Work{TB: t, Dir: filepath.Join(t.TempDir(), "clone")}
	gittest.Git(t, t.TempDir(), "clone", "--quiet", "--depth=1", "file://"+filepath.Join(source, "x.git"), shallow.Dir)
	out := h.failing(shallow, "push", h.at("x"), "main")
	if !strings.Contains(out, "shallow update not allowed") || !strings.Contains(out, "git fetch --unshallow") || strings.Contains(out, "limit") {
		t.Errorf("of a shallow push is said:\n%s", out)
	}
	bad := strings.TrimSpace(string(gittest.Input(t, w.Dir, []byte("tree "+w.Git("rev-parse", "main^{tree}")+"\nauthor nobody 0 +0000\ncommitter nobody 0 +0000\n\nx\n"),
		"hash-object", "-t", "commit", "-w", "--literally", "--stdin")))
	w.Git("update-ref", "refs/heads/bad", bad)
	out = h.failing(w, "push", h.at("x"), "bad")
	if !strings.Contains(out, bad) || !strings.Contains(out, "missingEmail") || strings.Contains(out, "limit") {
		t.Errorf("of a commit without an email is said:\n%s", out)
	}
	gittest.Untouched(t, r)
}

// TestPushOfBadPacksIsRefused, as strictly as those of strangers' servers (package repository).
func TestPushOfBadPacksIsRefused(t *testing.T) {
	h, r, w := begin(t, githttp.Options{})
	w.Commit("a", "a")
	commit := w.Commit("b", "b")
	for name, pack := range map[string][]byte{
		"missing link": w.PackOf(commit, w.Git("rev-parse", "main^{tree}")),
		"none":         nil,
		"no pack":      []byte("a story about something else"),
	} {
		create := creates("refs/heads/main", commit, "report-status side-band-64k agent=x")
		for _, commands := range [][]string{{create}, {"shallow " + commit, create}} {
			if status, answer := h.push("x", pack, commands...); status != 200 || !strings.Contains(answer, "ng refs/heads/main") || strings.Contains(answer, r.Path) {
				t.Errorf("%s: answer %d %q", name, status, answer)
			}
			gittest.Untouched(t, r)
		}
	}
}

func TestPushFromAShallowCloneLinksToWhatIsHere(t *testing.T) {
	h, r, w := begin(t, githttp.Options{})
	h.repo("other")
	w.Commit("a", "a")
	w.Commit("b", "b")
	w.Git("push", h.at("x"), "main")
	clone := &gittest.Work{TB: t, Dir: filepath.Join(t.TempDir(), "clone")}
	gittest.Git(t, t.TempDir(), "clone", "--quiet", "--depth=1", h.at("x"), clone.Dir)
	id := clone.Commit("c", "c")
	clone.Git("push", h.at("x"), "main")
	if got := h.refs(r)["refs/heads/main"]; got != id {
		t.Errorf("main is at %s, want %s", got, id)
	}
	h.failing(clone, "push", h.at("other"), "main") // a history without its beginning
	gittest.Git(t, r.Path, "fsck", "--full")
}

func TestReportInTheFormTheClientAskedFor(t *testing.T) {
	h, _, _ := begin(t, githttp.Options{})
	h.authority.push = refuse(githttp.Refuse("no\nand  no"))
	report := "000eunpack ok\n" + "001eng refs/heads/x no and no\n"
	for capabilities, want := range map[string]string{
		"":                            "",
		"report-status":               report + "0000",
		"report-status-v2":            report + "0000",
		"side-band-64k":               "0010\x02no\nand  no\n0000",
		"side-band-64k report-status": "0010\x02no\nand  no\n",
	} {
		status, answer := h.push("x", nil, strings.Repeat("7", 40)+" "+githttp.ZeroID+" refs/heads/x\x00"+capabilities)
		if status != 200 || !strings.HasPrefix(answer, want) || (want == "" && answer != "") {
			t.Errorf("%q: %d %q, want %q", capabilities, status, answer, want)
		}
	}
}

func TestGzipIsUnpackedAndBounded(t *testing.T) {
	h, r, w := begin(t, githttp.Options{})
	id := w.Commit("a", "a")
	send := func(service string, content io.Reader) (int, string) {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := io.Copy(z, content)
		must(t, errors.Join(err, z.Close()))
		return h.post("x", service, &b, "Content-Encoding", "gzip")
	}
	status, answer := send("git-receive-pack", strings.NewReader(gittest.Pkt(creates("refs/heads/main", id, "report-status"))+string(w.Pack("main"))))
	if status != 200 || !strings.Contains(answer, "ok refs/heads/main") || h.refs(r)["refs/heads/main"] != id {
		t.Errorf("a push: %d %q", status, answer)
	}
	wants := gittest.Pkt("want " + id + " ofs-delta\n")
	if status, answer := send("git-upload-pack", strings.NewReader(wants+"0009done\n")); status != 200 || !strings.HasPrefix(answer, "0008NAK\nPACK") {
		t.Errorf("a fetch: %d %q", status, answer)
	}
	// 20 MB of haves in 20 kB.
	haves := strings.NewReader(strings.Repeat("0032have "+strings.Repeat("8", 40)+"\n", 400_000))
	if status, answer := send("git-upload-pack", io.MultiReader(strings.NewReader(wants), haves)); status != 413 {
		t.Errorf("a bomb: %d %.100q", status, answer)
	}
}

func TestClientThatWaitsIsKeptAlive(t *testing.T) {
	h, _, w := begin(t, githttp.Options{KeepAlive: 10 * time.Millisecond})
	h.authority.push = func(ctx context.Context, push githttp.PushRequest, receive receiver) (githttp.Refusals, error) {
		time.Sleep(50 * time.Millisecond)
		return receive(ctx, push.Changes)
	}
	id := w.Commit("a", "a")
	status, answer := h.push("x", w.Pack("main"), creates("refs/heads/main", id, "report-status side-band-64k"))
	if status != 200 || !strings.HasPrefix(answer, "0005\x01") || !strings.Contains(answer, "ok refs/heads/main") {
		t.Errorf("answer %d %q", status, answer)
	}
	w.Git("push", h.at("x"), "main:refs/heads/dev") // git understands it
}

// TestClientThatSendsTooSlowlyIsCutOff: over a pipe in a bubble, where nothing is slow because the
// machine is. What came before does not count.
func TestClientThatSendsTooSlowlyIsCutOff(t *testing.T) {
	t.Parallel()
	const stall = time.Minute
	commands := gittest.Pkt(creates("refs/heads/main", strings.Repeat("7", 40), "report-status"))
	asked := 0
	a := &authority{store: gittest.Store(t), authorize: func(githttp.PushRequest) error { asked++; return nil }}
	a.push = func(context.Context, githttp.PushRequest, receiver) (githttp.Refusals, error) {
		t.Error("the authority was asked to lock for a client that does not send")
		return nil, nil
	}
	gittest.Repo(t, a.store, "slow")
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		l := nettest.Listen()
		server := &http.Server{Handler: githttp.New(a, complete(githttp.Options{Stall: stall}, registry))}
		go server.Serve(l)
		defer server.Close()
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) }}
		defer transport.CloseIdleConnections()
		h := &house{TB: t, Server: &httptest.Server{URL: "http://pipe"}, authority: a, registry: registry, client: &http.Client{Transport: transport}}
		read, write := io.Pipe()
		var sending sync.WaitGroup
		sending.Go(func() {
			_, err := io.WriteString(write, commands)
			for range 5 {
				time.Sleep(stall - time.Second) // slow is not stalled
				_, err = io.WriteString(write, strings.Repeat("x", 32<<10))
			}
			for err == nil {
				time.Sleep(time.Second)
				_, err = io.WriteString(write, "x")
			}
		})
		defer sending.Wait()
		defer read.Close()
		began := time.Now()
		status, answer := h.post("slow", "git-receive-pack", read)
		if status != 200 || !strings.Contains(answer, "ng refs/heads/main the request came too slowly: less than 32768 bytes in 1m0s") {
			t.Errorf("answer %d %q", status, answer)
		}
		if took := time.Since(began); took < 5*stall || took > 6*stall || asked < 2 {
			t.Errorf("cut off after %v, asked about %d times", took, asked)
		}
		if h.operations("receive_pack", "slow") != 1 {
			t.Error("it was not counted")
		}
	})
}

// TestLargePushes are asked about before they are read, and bounded; through a proxy too, as the
// front door is one.
func TestLargePushes(t *testing.T) {
	var logs bytes.Buffer
	h, r, w := begin(t, githttp.Options{MaxPushBytes: 4 << 20, Log: slog.New(slog.NewTextHandler(&logs, nil))})
	var asked, took []githttp.PushRequest
	h.authority.authorize = func(push githttp.PushRequest) error {
		asked = append(asked, push)
		return nil
	}
	h.authority.push = func(ctx context.Context, push githttp.PushRequest, receive receiver) (githttp.Refusals, error) {
		took = append(took, push)
		return receive(ctx, push.Changes)
	}
	to, err := url.Parse(h.URL)
	must(t, err)
	front := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, FlushInterval: -1})
	t.Cleanup(front.Close)
	noise := gittest.Noise(8 << 20)
	id := w.Commit("noise", noise[:3<<20])
	w.Git("push", front.URL+path("x"), "main")
	if got := h.refs(r)["refs/heads/main"]; len(asked) != 1 || asked[0].PackBytes != 0 || len(took) != 1 || took[0].PackBytes < 3<<20 || got != id {
		t.Fatalf("asked about %+v, then pushed %+v, main is at %q", asked, took, got)
	}
	w.Commit("noise", noise[3<<20:])
	for _, want := range []string{"remote: the push is larger than 4194304 bytes", "remote: not you"} {
		out := h.failing(w, "push", front.URL+path("x"), "main")
		h.between(func() {
			if !strings.Contains(out, want) || strings.Contains(out, "RPC failed") || len(took) != 1 {
				t.Errorf("the terminal does not say %q:\n%s", want, out)
			}
			if line := ` client="" reason="` + strings.TrimPrefix(want, "remote: "); strings.Count(logs.String(), line) != 1 {
				t.Errorf("no line of the log has %s:\n%s", line, &logs)
			}
			h.authority.authorize = func(githttp.PushRequest) error { return githttp.Refuse("not you") }
		})
	}
	h.between(func() { h.authority.away = map[string]error{"x": githttp.Refuse("banned")} })
	h.failing(w, "push", front.URL+path("x"), "main")
	h.failing(w, "fetch", front.URL+path("x"))
	h.between(func() {
		if strings.Count(logs.String(), `msg="push refused"`) != 3 {
			t.Errorf("not one line for each push:\n%s", &logs)
		}
	})
	gittest.NothingLeft(t, r)
}

func TestNothingOfTheEnvironmentOrTheRepositoryRunsAlong(t *testing.T) {
	marks, hooks := t.TempDir(), t.TempDir()
	for _, hook := range []string{"pre-receive", "post-receive", "update", "post-update", "reference-transaction", "proc-receive"} {
		must(t, os.WriteFile(filepath.Join(hooks, hook), []byte("#!/bin/sh\ntouch "+filepath.Join(marks, hook)+"\n"), 0o755))
	}
	h := serve(t, githttp.Options{})
	r := h.repo("hooked")
	must(t, os.CopyFS(filepath.Join(r.Path, "hooks"), os.DirFS(hooks)))
	w := gittest.NewWork(t)
	id := w.Commit("a", "a")
	pack := w.Pack("main")
	t.Setenv("GIT_CONFIG_PARAMETERS", "'core.hookspath="+hooks+"'")
	t.Setenv("GIT_DIR", marks)
	t.Setenv("GIT_EXEC_PATH", hooks)
	if status, answer := h.push("hooked", pack, creates("refs/heads/main", id, "report-status")); status != 200 || !strings.Contains(answer, "ok refs/heads/main") {
		t.Errorf("answer %d %q", status, answer)
	}
	if left, err := os.ReadDir(marks); err != nil || len(left) > 0 {
		t.Errorf("these ran: %v, %v", left, err)
	}
}

// TestPushIsPassedOn: the repository moves while a push is read in. The worker that holds it then
// gets the push as it came, and the client gets that worker's answer, however long it takes to find
// one.
func TestPushIsPassedOn(t *testing.T) {
	t.Parallel()
	next := serve(t, githttp.Options{})
	r := next.repo("moves")
	notYet := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMisdirectedRequest) }))
	t.Cleanup(notYet.Close)
	holders := []string{"", "127.0.0.1:1", notYet.Listener.Addr().String(), next.Listener.Addr().String()} // the second has just stopped
	var looks atomic.Int32
	first := serve(t, githttp.Options{HandOver: time.Minute, KeepAlive: 10 * time.Millisecond, Holder: func(string) (string, bool) {
		to := holders[(looks.Add(1)-1)%4]
		return to, to != ""
	}})
	first.authority.push = refuse(repository.ErrElsewhere)
	first.authority.store = next.authority.store // one disk

	w := gittest.NewWork(t)
	small := w.Commit("a", "a")
	w.Git("push", first.at("moves"), "main")
	large := w.Commit("b", gittest.Noise(3<<20))
	w.Git("push", first.at("moves"), "main", "main:refs/heads/dev")
	if got := next.refs(r); got["refs/heads/main"] != large || got["refs/heads/dev"] != large {
		t.Errorf("references %v, want %s", got, large)
	}
	w.Git("push", first.at("moves"), ":refs/heads/dev", "+"+small+":refs/heads/main") // without a pack
	if got := next.refs(r); len(got) != 1 || got["refs/heads/main"] != small {
		t.Errorf("references %v", got)
	}
	if n := first.operations("receive_pack", "moved"); n != 3 {
		t.Errorf("%v pushes counted as moved", n)
	}
	next.authority.push = refuse(githttp.Refuse("not by this one either"))
	w.Commit("c", "c")
	if out := first.failing(w, "push", first.at("moves"), "main"); !strings.Contains(out, "not by this one either") {
		t.Errorf("the refusal of the other worker:\n%s", out)
	}

	late := serve(t, githttp.Options{HandOver: 50 * time.Millisecond, Holder: func(string) (string, bool) { return "", false }})
	late.authority.push = refuse(repository.ErrElsewhere)
	late.repo("moves")
	if out := late.failing(w, "push", late.at("moves"), "main"); !strings.Contains(out, "moving to another worker; push again in a moment") {
		t.Errorf("no worker takes it:\n%s", out)
	}
}

// TestAPushThatMeetsABusyWorker counts as what it met there, and its user is told.
func TestAPushThatMeetsABusyWorker(t *testing.T) {
	t.Parallel()
	for status, result := range map[int]string{http.StatusServiceUnavailable: "busy", http.StatusTooManyRequests: "limited"} {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "come back later", status) }))
		t.Cleanup(other.Close)
		first := serve(t, githttp.Options{HandOver: time.Minute, Holder: func(string) (string, bool) { return other.Listener.Addr().String(), true }})
		first.authority.push = refuse(repository.ErrElsewhere)
		first.repo("moves")
		w := gittest.NewWork(t)
		w.Commit("a", "a")
		if out := first.failing(w, "push", first.at("moves"), "main"); !strings.Contains(out, "come back later") {
			t.Errorf("%d: the user is told\n%s", status, out)
		}
		if n := first.operations("receive_pack", result); n != 1 {
			t.Errorf("%d: %v pushes count as %s", status, n, result)
		}
	}
}

// TestABegunPushIsNotSentAgain: the worker that it was passed on to may have carried it out.
func TestABegunPushIsNotSentAgain(t *testing.T) {
	t.Parallel()
	var tries atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tries.Add(1)
		_, _ = io.ReadFull(r.Body, make([]byte, 4))
		panic(http.ErrAbortHandler) // as a worker that is killed
	}))
	t.Cleanup(other.Close)
	first := serve(t, githttp.Options{HandOver: 500 * time.Millisecond, Holder: func(string) (string, bool) { return other.Listener.Addr().String(), true }})
	first.authority.push = refuse(repository.ErrElsewhere)
	first.repo("moves")
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	out := first.failing(w, "push", first.at("moves"), "main")
	if n := tries.Load(); n != 1 {
		t.Errorf("it was sent %d times:\n%s", n, out)
	}
}
