package fetch_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril.dev/services/purgatory/fetch"
	"tendril.dev/test/fixture/gittest"
)

// odd is a git server that refuses in words of its own, and counts its requests.
type odd struct {
	backend http.Handler
	words   func(id string) string // what it says of an object that it lacks; "": it hangs up
	lacks   []string

	mu       sync.Mutex
	requests []string // method, and how many objects are wanted
	agent    string
}

func (o *odd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	o.mu.Lock()
	o.requests, o.agent = append(o.requests, fmt.Sprint(r.Method, " ", bytes.Count(body, []byte("want ")))), r.UserAgent()
	o.mu.Unlock()
	for _, id := range o.lacks {
		if bytes.Contains(body, []byte("want "+id)) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
			if said := o.words(id); said != "" {
				io.WriteString(w, gittest.Pkt("ERR "+said))
			}
			return
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	o.backend.ServeHTTP(w, r)
}

func (o *odd) asked() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	asked := o.requests
	o.requests = nil
	return asked
}

// deep makes a repository of ten commits without references but main, at the first one; the others
// are given by id only.
func deep(t *testing.T) (root string, tip string, commits []string) {
	t.Helper()
	root = t.TempDir()
	w := gittest.NewWork(t)
	tip = w.Commit("a", "0")
	for n := range 10 {
		w.Git("checkout", "--quiet", "--detach", tip)
		commits = append(commits, w.Commit("b", fmt.Sprint(n)))
		w.Git("update-ref", fmt.Sprint("refs/heads/keep", n), commits[n])
	}
	w.Git("checkout", "--quiet", "main")
	w.Publish(root, "a.git", "uploadpack.hideRefs", "refs/heads/keep", "uploadpack.allowAnySHA1InWant", "true")
	return root, tip, commits
}

// TestOneObjectHidesNoOther: a server that lacks six of seventeen objects brings the rest, in any
// words in which it refuses, though nothing but the branch is in its list.
func TestOneObjectHidesNoOther(t *testing.T) {
	t.Parallel()
	root, tip, commits := deep(t)
	for name, words := range map[string]func(id string) string{
		"git":               func(id string) string { return "upload-pack: not our ref " + id },
		"JGit":              func(id string) string { return "want " + id + " not valid" },
		"without an id":     func(string) string { return "unknown object" },
		"of another object": func(string) string { return "not our ref " + strings.Repeat("f", 40) },
		"hangs up":          func(string) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lacks := ids(6)
			server := httptest.NewServer(&odd{backend: gittest.Backend(t, root).Config.Handler, words: words, lacks: lacks})
			t.Cleanup(server.Close)
			want := slices.Concat(commits[:5], lacks[:3], []string{tip}, lacks[3:], commits[5:])
			r := gittest.Repo(t, gittest.Store(t), "into")
			result, err := fetch.Fetch(t.Context(), guard(), server.URL+"/a.git", gittest.Lease(t, r), want, limits)
			if err != nil || len(result.Got) != 11 {
				t.Errorf("got %d of 11 in %d requests: %v", len(result.Got), result.Requests, err)
			}
			if most := map[string]int{"git": 12, "JGit": 12}[name]; result.Requests > cmp.Or(most, 48) {
				t.Errorf("%d requests", result.Requests)
			}
		})
	}
}

// TestListedObjectsComeTogether: with one request, though others are lacking.
func TestListedObjectsComeTogether(t *testing.T) {
	t.Parallel()
	root, w := t.TempDir(), gittest.NewWork(t)
	var want []string
	for n := range 8 {
		w.Git("checkout", "--quiet", "-b", fmt.Sprint("b", n))
		want = append(want, w.Commit("a", fmt.Sprint(n)))
	}
	w.Publish(root, "a.git")
	o := &odd{backend: gittest.Backend(t, root).Config.Handler, words: func(string) string { return "no" }, lacks: ids(1)}
	server := httptest.NewServer(o)
	t.Cleanup(server.Close)
	r := gittest.Repo(t, gittest.Store(t), "into")
	result, err := fetch.Fetch(t.Context(), guard(), server.URL+"/a.git", gittest.Lease(t, r), append(ids(1), want...), limits)
	if err != nil || len(result.Got) != 8 {
		t.Errorf("got %d of 8: %v", len(result.Got), err)
	}
	if asked := o.asked(); !slices.Contains(asked, "POST 8") {
		t.Errorf("asked %v", asked)
	}
}

// TestWhatAServerLackedIsNotAskedAgain for half an hour, while it lists the same references.
func TestWhatAServerLackedIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	root, w := t.TempDir(), gittest.NewWork(t)
	w.Commit("a", "1")
	w.Publish(root, "a.git")
	o := &odd{backend: gittest.Backend(t, root).Config.Handler, words: func(string) string { return "no" }, lacks: ids(3)}
	server := httptest.NewServer(o)
	t.Cleanup(server.Close)
	r := gittest.Repo(t, gittest.Store(t), "into")
	with := limits
	with.Misses, with.Agent = fetch.NewMisses(), "git/2.43.0 (tendril/v1)"
	for round, want := range []func(asked []string) bool{
		func(asked []string) bool { return len(asked) > 3 },
		func(asked []string) bool { return slices.Equal(asked, []string{"GET 0"}) },
	} {
		_, err := fetch.Fetch(t.Context(), guard(), server.URL+"/a.git", gittest.Lease(t, r), ids(3), with)
		if asked := o.asked(); cause(t, err) != fetch.CauseNoSuchObject || !want(asked) {
			t.Errorf("round %d: asked %v: %v", round, asked, err)
		}
	}
	if o.agent != with.Agent {
		t.Errorf("it was told the name %q", o.agent)
	}
	id := w.Commit("a", "2")
	w.Git("push", "--quiet", root+"/a.git", "main")
	result, err := fetch.Fetch(t.Context(), guard(), server.URL+"/a.git", gittest.Lease(t, r), append(ids(3), id), with)
	if err != nil || !slices.Equal(result.Got, []string{id}) {
		t.Errorf("after its list has changed: %v, %v", result.Got, err)
	}
}

// TestAskedTooOften: by status, by the text of a page, and by the text of an ERR line.
func TestAskedTooOften(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		after  time.Duration
	}{
		"429": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, 0},
		"429 with a time": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "90")
			w.WriteHeader(429)
		}, 90 * time.Second},
		"503 with a time": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "9")
			w.WriteHeader(503)
		}, 9 * time.Second},
		"403 with a page": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(403)
			io.WriteString(w, "You have exceeded a secondary rate limit.")
		}, 0},
		"an ERR line": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			io.WriteString(w, gittest.Pkt("# service=git-upload-pack\n")+gittest.Pkt("ERR Too many requests"))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(tc.answer)
			t.Cleanup(server.Close)
			r := gittest.Repo(t, gittest.Store(t), "into")
			result, err := fetch.Fetch(t.Context(), guard(), server.URL+"/a.git", gittest.Lease(t, r), ids(3), limits)
			if cause(t, err) != fetch.CauseRateLimited || !result.TooOften || result.RetryAfter != tc.after {
				t.Errorf("%+v: %v", result, err)
			}
			if result.Requests != 1 {
				t.Errorf("%d requests", result.Requests)
			}
		})
	}
}

// TestTooOftenAfterAPart: the server says so though something came before.
func TestTooOftenAfterAPart(t *testing.T) {
	t.Parallel()
	root, tip, commits := deep(t)
	backend, packs, said := gittest.Backend(t, root).Config.Handler, 0, 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case bytes.Count(body, []byte("want ")) > 1:
			w.WriteHeader(http.StatusInternalServerError)
			return
		case r.Method == http.MethodPost:
			if packs++; packs > 1 {
				said++
				w.Header().Set("Retry-After", "90")
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	r := gittest.Repo(t, gittest.Store(t), "into")
	result, err := fetch.Fetch(t.Context(), guard(), server.URL+"/a.git", gittest.Lease(t, r), append(commits, tip), limits)
	if err != nil || len(result.Got) == 0 || !result.TooOften || result.RetryAfter != 90*time.Second || said != 1 {
		t.Errorf("it said so %d times: %+v: %v", said, result, err)
	}
}
