package githttp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

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
		clone := &gittest.Work{TB: t, Dir: filepath.Join(t.TempDir(), "clone")}
		gittest.Git(t, t.TempDir(), "-c", protocol, "clone", "-q", h.at("counted"), clone.Dir)
		clone.Git("-c", protocol, "ls-remote", "-q")
		w.Commit("a", "more")
		w.Git("-c", protocol, "push", h.at("counted"), "main")
		for range 17 { // enough that a fetch takes several rounds
			clone.Git("commit", "--quiet", "--allow-empty", "--message", "mine")
		}
		clone.Git("-c", protocol, "fetch", "-q")
		clone.Git("-c", protocol, "fetch", "-q") // nothing new
		for operation, want := range map[string]float64{"clone": 1, "fetch": 1, "push": 2, "receive_pack": 2} {
			if n := h.operations(operation, "ok"); n != want {
				t.Errorf("version %s: %s counted %v times, want %v", version, operation, n, want)
			}
		}
	}
}

func TestClonesInEveryProtocolVersionAndShape(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	w := gittest.NewWork(t)
	first := w.Commit("a", strings.Repeat("a", 100))
	w.Commit("a", strings.Repeat("b", 100))
	last := w.Commit("a", strings.Repeat("c", 100))
	for identifier, version := range map[string]string{"a/b": "0", "..": "1", "🌱 seed": "2", "a?b#c.git": "2", "100%": "0"} {
		r := h.repo(identifier)
		w.Git("push", h.at(identifier), "main")
		root := t.TempDir()
		git := func(folder string, args ...string) string {
			t.Helper()
			return gittest.Git(t, filepath.Join(root, folder), append([]string{"-c", "protocol.version=" + version}, args...)...)
		}
		commits := func(folder, want string) {
			t.Helper()
			if n := git(folder, "rev-list", "--count", "HEAD"); n != want {
				t.Errorf("%s: the %s clone has %s commits", identifier, folder, n)
			}
		}
		git("", "clone", "--quiet", h.at(identifier), "full")
		commits("full", "3")
		if identifier == ".." || identifier == "100%" {
			continue // their names are what is odd of them
		}
		git("", "clone", "--quiet", "--depth=1", h.at(identifier), "shallow")
		commits("shallow", "1")
		git("shallow", "fetch", "--quiet", "--unshallow")
		commits("shallow", "3")
		git("", "clone", "--quiet", "--filter=blob:none", "--no-checkout", h.at(identifier), "partial")
		if missing := git("partial", "rev-list", "--objects", "--missing=print", "HEAD"); strings.Count(missing, "?") != 3 {
			t.Errorf("%s: of a partial clone these are missing: %s", identifier, missing)
		}
		git("partial", "checkout", "--quiet", "HEAD") // brings a blob by its id
		git("", "init", "--quiet", "empty")
		git("empty", "fetch", "--quiet", "--depth=1", h.at(identifier), first) // reachable, no tip
		git("empty", "fetch", "--quiet", h.at(identifier), last)
		gittest.Do(t, r, func(r *repository.Locked) error { return r.SetRef(t.Context(), "refs/heads/main", first) })
		if out := h.failing(gittest.NewWork(t), "-c", "protocol.version=0", "fetch", h.at(identifier), last); !strings.Contains(out, "not our ref") {
			t.Errorf("an unreachable object was served: %s", out)
		}
	}
	if h.counted("ngit_git_bytes_total", "out") == 0 {
		t.Error("nothing was counted")
	}
	if problems, err := testutil.GatherAndLint(h.registry); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
}

func TestEmptyRepositoryShowsItsBranch(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	unborn, err := gittest.Repo(t, h.authority.store, "empty").Head()
	must(t, err)
	for _, version := range []string{"0", "1", "2"} {
		clone := filepath.Join(t.TempDir(), "clone")
		if out := gittest.Git(t, t.TempDir(), "-c", "protocol.version="+version, "clone", h.at("empty"), clone); !strings.Contains(out, "empty repository") {
			t.Errorf("in version %s: %s", version, out)
		}
		if branch := gittest.Git(t, clone, "symbolic-ref", "HEAD"); version == "2" && branch != unborn {
			t.Errorf("the clone is on %s", branch)
		}
	}
	if status, _, body := h.send("GET", h.at("empty")+"/HEAD", nil); status != 200 || body != "ref: "+unborn+"\n" {
		t.Errorf("HEAD: %d %q", status, body)
	}
}

func TestAnswersToRequestsOfEveryKind(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	h.repo("kinds")
	h.authority.away = map[string]error{
		"unwritable": fmt.Errorf("make: %w", githttp.Unavailable(githttp.Unwritable, errors.New("secret-disk"))),
		"unheard":    errors.New("secret-host: no responders"),
		"elsewhere":  repository.ErrElsewhere,
	}
	words := strings.NewReplacer("KINDS", path("kinds"), "UNKNOWN", path("unknown"), "UNWRITABLE", path("unwritable"), "UNHEARD", path("unheard"), "ELSEWHERE", path("elsewhere"),
		"REFS", "info/refs?service=git-upload-pack", `\n`, "\n", "SENT", "Content-Type=application/x-git-upload-pack-request")
	// The request; header fields; the status; the Content-Type's service; what the body has.
	for _, row := range fixture.Rows(`
		GET KINDS/REFS | | 200 | upload-pack | 001e# service=git-upload-pack\n0000
		GET KINDS/REFS | | 200 | upload-pack | allow-tip-sha1-in-want allow-reachable-sha1-in-want
		GET KINDS/REFS | Git-Protocol=foo=bar:version=2 | 200 | upload-pack | 000eversion 2\n
		GET KINDS/REFS | Git-Protocol=version=2;touch x | 200 | upload-pack | 001e# service=git-upload-pack\n0000
		GET KINDS/info/refs?service=git-receive-pack | Git-Protocol=version=2 | 200 | receive-pack | 001f# service=git-receive-pack\n0000
		GET KINDS/info/refs | | 403 | | dumb HTTP protocol
		GET UNKNOWN/REFS | | 404 | | repository not found: no announcement of it is served or held here
		GET /prsKINDS/HEAD | | 404 | | repository not found: no announcement of it is served or held here
		GET /etc/passwd.git/HEAD | | 404 | | not found
		GET UNWRITABLE/REFS | | 503 | | the repository cannot be written now, try again later
		GET UNHEARD/REFS | | 503 | | this repository cannot be looked up now, try again later
		GET ELSEWHERE/REFS | | 421 | |
		POST KINDS/REFS | | 405 | | method
		POST KINDS/git-upload-pack | | 415 | | Content-Type
		POST KINDS/git-upload-pack | SENT, Content-Encoding=br | 400 | | bad request: the Content-Encoding
		POST KINDS/git-upload-pack | SENT, Content-Encoding=gzip | 400 | | bad request: the body is not gzip
		POST KINDS/git-receive-pack | Content-Type=application/x-git-receive-pack-request | 400 | | bad request: the commands are not pkt-lines
		POST KINDS/git-upload-pack | SENT | 400 | | bad request:
	`) {
		var sent io.Reader
		method, at, _ := strings.Cut(words.Replace(row[0]), " ")
		if method == "POST" {
			sent = strings.NewReader("zzzz")
		}
		var fields []string
		for field := range strings.SplitSeq(words.Replace(row[1]), ", ") {
			if name, value, is := strings.Cut(field, "="); is {
				fields = append(fields, name, value)
			}
		}
		status, header, body := h.send(method, h.URL+at, sent, fields...)
		if strconv.Itoa(status) != row[2] || !strings.Contains(body, words.Replace(row[4])) || strings.Contains(body, os.TempDir()) || strings.Contains(body, "secret") {
			t.Errorf("%v: %d %q", row, status, body)
		}
		if got := header.Get("Content-Type"); row[3] != "" && got != "application/x-git-"+row[3]+"-advertisement" {
			t.Errorf("%v: Content-Type %q", row, got)
		}
		if !strings.Contains(header.Get("Cache-Control"), "no-cache") || (status == 503) != (header.Get("Retry-After") != "") {
			t.Errorf("%v: %v", row, header)
		}
	}
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	if out := h.failing(w, "push", h.at("unwritable"), "main"); !strings.Contains(out, "remote: "+githttp.Unwritable) {
		t.Errorf("the terminal says %q", out)
	}
}

// onFirstRead is a body that does something before it is read.
type onFirstRead struct {
	io.Reader
	do func()
}

func (b onFirstRead) Read(p []byte) (int, error) { b.do(); return b.Reader.Read(p) }

// TestRemovedMeanwhile: a repository that is removed after a request has found it is not there.
func TestRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	r := h.repo("x")
	h.client = &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}
	// The body is read when the server wants it, which is after it has found the repository.
	body := onFirstRead{strings.NewReader("0014command=ls-refs\n0000"), sync.OnceFunc(func() { gittest.Do(t, r, func(r *repository.Locked) error { return r.Remove(t.Context()) }) })}
	status, answer := h.post("x", "git-upload-pack", body, "Expect", "100-continue", "Git-Protocol", "version=2")
	if want := "repository not found: no announcement of it is served or held here\n"; status != 404 || answer != want {
		t.Errorf("%d %q, want 404 %q", status, answer, want)
	}
}

// TestFullHouseAsksToComeBack. Not parallel: gittest.Script.
func TestFullHouseAsksToComeBack(t *testing.T) {
	hang := gittest.Script(t, `case "$1" in version) echo git version 2.39.0;; var) echo main;; *) echo hello; exec sleep 3600;; esac`)
	s, err := repository.NewStore(repository.Options{Root: t.TempDir(), Git: hang, Processes: 4})
	must(t, err)
	h := serveFrom(t, s, githttp.Options{Patience: 50 * time.Millisecond})
	h.repo("full")
	request, err := http.NewRequestWithContext(t.Context(), "GET", h.at("full")+"/info/refs?service=git-receive-pack", nil)
	must(t, err)
	first, err := h.Client().Do(request) // git has begun, and hangs
	must(t, err)
	defer first.Body.Close()
	if status, header, _ := h.send("GET", request.URL.String(), nil); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("one more request is answered %d, %v", status, header)
	}
}

// TestAWantOfWhatIsNotHere is told to the client, and is no error of ours.
func TestAWantOfWhatIsNotHere(t *testing.T) {
	var log bytes.Buffer
	h, r, w := begin(t, githttp.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	w.Commit("a", "a")
	w.Git("push", h.at("x"), "main")
	wants := "want " + strings.Repeat("7", 40) + "\n"
	_, v0 := h.post("x", "git-upload-pack", strings.NewReader(gittest.Pkt(wants)+"0009done\n"))
	_, v2 := h.post("x", "git-upload-pack", strings.NewReader("0012command=fetch\n0001"+gittest.Pkt(wants, "done\n")), "Git-Protocol", "version=2")
	for version, answer := range []string{v0, v2} {
		if !strings.Contains(answer, "ERR upload-pack: not our ref "+strings.Repeat("7", 40)) {
			t.Errorf("protocol %d: %q", version, answer)
		}
	}
	h.between(func() {})
	if h.Close(); strings.Contains(log.String(), "ERROR") || strings.Contains(log.String(), "WARN") {
		t.Errorf("the log says, for %s:\n%s", r.Path, &log)
	}
}
