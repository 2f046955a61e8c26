package history

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

var must = fixture.Must

// universe is all the git objects of a history. Every identifier has the same.
type universe struct {
	work *world.WorkTree
	// commits are the branch tips from which states choose: a main line, and a fork of it for force
	// pushes. tags are annotated ones; the last is a tag of a tag.
	commits, tags []string
	// pulls are the commits of pull requests. No git server has the last ones.
	pulls []string
	// below are the commits that each commit reaches.
	below map[string][]string
	// served are the objects that some git server has. Others come by pushes only, or never.
	served map[string]bool
	never  string // an id that no repository has
}

const (
	mainLine    = 6
	forkLine    = 3
	onlyPushed  = 2 // commits at the end of each line that no git server has
	pullCommits = 5
	onlyPulled  = 2 // pull requests whose commit no git server has
)

// newUniverse makes the objects. Names of the commits of the served ones are returned by server.
func newUniverse(t testing.TB, dice *rand.Rand) *universe {
	u := &universe{work: world.NewWorkTree(t), served: map[string]bool{}, below: map[string][]string{}, never: strings.Repeat("beef", 10)}
	name := fmt.Sprint(dice.Uint64())
	for n := range mainLine {
		u.commits = append(u.commits, u.work.Commit(fmt.Sprint("main ", n, name)))
	}
	u.work.Git("tag", "-a", "v1", "-m", "one", u.commits[1])
	u.work.Git("tag", "-a", "v2", "-m", "two", "v1")
	u.tags = []string{u.work.Git("rev-parse", "v1"), u.work.Git("rev-parse", "v2")}
	u.work.Git("checkout", "-q", "--detach", u.commits[2])
	for n := range forkLine {
		u.commits = append(u.commits, u.work.Commit(fmt.Sprint("fork ", n, name)))
	}
	for n := range pullCommits {
		u.work.Git("checkout", "-q", "--detach", u.commits[3])
		u.pulls = append(u.pulls, u.work.Commit(fmt.Sprint("pull ", n, name)))
	}
	for _, id := range slices.Concat(u.commits, u.pulls, u.tags) {
		u.below[id] = strings.Fields(u.work.Git("rev-list", id))
	}
	for _, id := range slices.Concat(u.commits[:mainLine-onlyPushed], u.commits[mainLine:mainLine+forkLine-1], u.tags, u.pulls[:pullCommits-onlyPulled]) {
		u.served[id] = true
	}
	return u
}

// reaches reports whether a repository that has the first object has the other one for it.
func (u *universe) reaches(tip, id string) bool {
	return tip == id || slices.Contains(u.below[tip], id)
}

// mode is how a git server behaves.
type mode string

// modes are those of every server but the first, which is the only one that is asked too often: a
// host that answers 429 is left alone for a minute, with all its ports (page of purgatory), and a
// history has no minute. So it is a host of its own, and others have what it has.
var modes = []mode{"well", "404", "500", "hangs", "cuts", "corrupts"}

const tooOften mode = "429"

// server is a git server that has a part of the objects, and behaves as it is told.
type server struct {
	URL     string
	backend http.Handler

	mu     sync.Mutex
	mode   mode
	change chan struct{} // is closed when the mode changes
}

// newServer serves these objects of a universe for every identifier, at a host name.
func newServer(t testing.TB, u *universe, host string, objects []string) *server {
	root := t.TempDir()
	bare := filepath.Join(root, "all.git")
	world.Git(t, root, "init", "-q", "--bare", bare)
	world.Git(t, bare, "config", "uploadpack.allowAnySHA1InWant", "true")
	// It gets what its references reach, and nothing else.
	all := filepath.Join(bare, "objects", "info", "alternates")
	must(t, os.WriteFile(all, []byte(filepath.Join(u.work.Dir, ".git", "objects")+"\n"), 0o600))
	for n, id := range objects {
		kind := world.Git(t, bare, "cat-file", "-t", id)
		folder := map[string]string{"commit": "heads", "tag": "tags"}[kind]
		world.Git(t, bare, "update-ref", fmt.Sprintf("refs/%s/r%d", folder, n), id)
	}
	world.Git(t, bare, "update-ref", "refs/heads/r0", world.Git(t, bare, "rev-parse", objects[0]+"^{commit}"))
	world.Git(t, bare, "symbolic-ref", "HEAD", "refs/heads/r0")
	world.Git(t, bare, "repack", "-adq")
	must(t, os.Remove(all))
	git, err := exec.LookPath("git")
	must(t, err)
	s := &server{mode: "well", change: make(chan struct{})}
	s.backend = &cgi.Handler{Path: git, Args: []string{"http-backend"}, Dir: root, Env: []string{
		"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull,
	}, InheritEnv: []string{"PATH"}, Stderr: io.Discard}
	listening := httptest.NewServer(s)
	t.Cleanup(func() {
		s.set("404") // what hangs goes on
		listening.CloseClientConnections()
		listening.Close()
	})
	_, port, err := net.SplitHostPort(listening.Listener.Addr().String())
	must(t, err)
	s.URL = "http://" + net.JoinHostPort(host, port)
	return s
}

func (s *server) set(m mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
	close(s.change)
	s.change = make(chan struct{})
}

// ServeHTTP answers as the mode says. Every path is the same repository.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	mode, change := s.mode, s.change
	s.mu.Unlock()
	_, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	inner := r.Clone(r.Context())
	inner.URL.Path = "/all.git/" + rest
	isPack := strings.HasSuffix(r.URL.Path, "git-upload-pack") && r.Method == http.MethodPost
	switch {
	case mode == "404":
		http.NotFound(w, r)
	case mode == tooOften:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	case mode == "500":
		http.Error(w, "something broke", http.StatusInternalServerError)
	case mode == "hangs":
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		select {
		case <-ctx.Done():
		case <-change:
		}
		panic(http.ErrAbortHandler)
	case isPack && (mode == "cuts" || mode == "corrupts"):
		recorded := httptest.NewRecorder()
		s.backend.ServeHTTP(recorded, inner)
		body := recorded.Body.Bytes()
		if mode == "cuts" {
			_, _ = w.Write(body[:len(body)/2])
			panic(http.ErrAbortHandler)
		}
		for n := len(body) / 3; n < len(body); n += 97 {
			body[n] ^= 0x55
		}
		for name, values := range recorded.Header() {
			w.Header()[name] = values
		}
		_, _ = w.Write(body)
	default:
		s.backend.ServeHTTP(w, inner)
	}
}
