package githttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository/gittest"
)

// handingOver is a worker that takes pushes in and holds their repository no more when it has them.
// next is who holds it then, empty: nobody.
func handingOver(t *testing.T, next func() string, o githttp.Options) *house {
	t.Helper()
	o.Holder = func(string) (string, bool) { to := next(); return to, to != "" }
	h := serve(t, o)
	h.authority.push = func(context.Context, []githttp.Command, func(context.Context) error) error {
		return githttp.ErrElsewhere
	}
	return h
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
	var looks atomic.Int32
	first := handingOver(t, func() string {
		switch n := looks.Add(1) % 4; n {
		case 1:
			return ""
		case 2:
			return "127.0.0.1:1" // it has just stopped
		case 3:
			return notYet.Listener.Addr().String()
		}
		return next.Listener.Addr().String()
	}, githttp.Options{HandOver: time.Minute, KeepAlive: 10 * time.Millisecond})
	first.authority.store, first.authority.known = next.authority.store, next.authority.known // one disk

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
	if n := first.counted("ngit_git_operations_total", "receive_pack", "moved", "error"); n != 3 {
		t.Errorf("%v pushes counted as moved", n)
	}
	next.authority.push = func(context.Context, []githttp.Command, func(context.Context) error) error {
		return githttp.Refuse("not by this one either")
	}
	w.Commit("c", "c")
	if out, err := gittest.Try(t, w.Dir, "push", first.at("moves"), "main"); err == nil || !strings.Contains(out, "not by this one either") {
		t.Errorf("the refusal of the other worker: %v\n%s", err, out)
	}
}

// TestPushThatNobodyTakes: it is refused when its time is over, and may be made again.
func TestPushThatNobodyTakes(t *testing.T) {
	t.Parallel()
	h := handingOver(t, func() string { return "" }, githttp.Options{HandOver: 50 * time.Millisecond})
	h.repo("moves")
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	if out, err := gittest.Try(t, w.Dir, "push", h.at("moves"), "main"); err == nil || !strings.Contains(out, "moving to another worker; push again in a moment") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestMisdirected: a worker that does not hold a repository says so to the front door, before it
// reads anything of the request.
func TestMisdirected(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	h.authority.away = map[string]error{"x": githttp.ErrElsewhere}
	for _, request := range []struct{ method, path string }{
		{"GET", "/info/refs?service=git-upload-pack"}, {"HEAD", "/HEAD"}, {"POST", "/git-upload-pack"}, {"POST", "/git-receive-pack"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), request.method, h.at("x")+request.path, strings.NewReader("0000"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := h.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("%s %s: %s", request.method, request.path, resp.Status)
		}
	}
}
