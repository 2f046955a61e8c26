package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

// gitData is a worker whose branch main and tag v1 name one commit, and that counts what it is asked.
type gitData struct {
	commit atomic.Value // string
	asked  atomic.Int32
}

func refsOf(commit string) map[string]string {
	return map[string]string{"refs/heads/main": commit, "refs/tags/v1": commit}
}

// answers are what the worker answers; all of it depends on the commit.
func (g *gitData) answers() gitquery.Answers {
	now := func() (id, sum string, at time.Time) {
		g.asked.Add(1)
		id = g.commit.Load().(string)
		return id, proto.SumOfRefs(refsOf(id)), time.Unix(1e9+int64(id[0]), 0)
	}
	return gitquery.Answers{
		Folder: func(_ context.Context, _ nostr.RepoRef, q proto.RepoFolderQuestion) (a proto.RepoFolderAnswer, err error) {
			id, sum, at := now()
			a.Commit, a.RefsSum = &proto.RepoCommit{ID: id, At: at}, sum
			if q.Path == "" {
				a.Readme = &proto.RepoFile{Name: "README.md", Bytes: 12, Data: []byte("![](x.png) x")}
			} else {
				a.File = &proto.RepoFile{Name: q.Path, Bytes: int64(len(id)), Data: []byte(id)}
			}
			return a, nil
		},
		Log: func(context.Context, nostr.RepoRef, proto.RepoLogQuestion) (a proto.RepoLogAnswer, err error) {
			id, sum, at := now()
			return proto.RepoLogAnswer{Commits: []proto.RepoCommit{{ID: id, At: at}}, RefsSum: sum}, nil
		},
		Ages: func(context.Context, nostr.RepoRef, proto.RepoAgesQuestion) (proto.RepoAgesAnswer, error) {
			_, sum, at := now()
			return proto.RepoAgesAnswer{Times: map[string]time.Time{"refs/heads/main": at, "refs/tags/v1": at}, RefsSum: sum}, nil
		},
	}
}

func (sys *system) works(t *testing.T, commit string) *gitData {
	t.Helper()
	g := new(gitData)
	g.commit.Store(commit)
	answers := gitquery.NewServer(sys.Bus.Conn, sys.Log, g.answers())
	for shard := range proto.Shards {
		_, err := answers.Serve(t.Context(), shard)
		must(t, err)
	}
	return g
}

// again asks for a page of which the client has one with this tag.
func (sys *system) again(t *testing.T, path, tag, authorization string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+sys.addr+path, nil)
	must(t, err)
	r.Header.Set("If-None-Match", tag)
	r.Header.Set("Authorization", authorization)
	resp, err := http.DefaultTransport.RoundTrip(r)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp, string(body)
}

// TestPagesByStateEvent: who has a page of git data is told so, and no worker is asked, until there
// is another state event. While the worker has not what that says, nothing is named by it.
func TestPagesByStateEvent(t *testing.T) {
	t.Parallel()
	sys := start(t)
	owner := fixture.NewPerson().On("git.example.com")
	first, second := strings.Repeat("a", 40), strings.Repeat("b", 40)
	long := nostr.Now() - 300_000_000 // so that no age changes during the test
	sys.store(t, owner.At(long).Announce("r"), owner.At(long+1).State("r", refsOf(first)))
	worker := sys.works(t, first)
	home := "/" + owner.Npub + "/r.git"
	pages := []string{home, home + "?branch=main&path=x", home + "?branch=main&log=0", home + "?branch=main&path=x&raw=1", home + "?atom"}
	had := map[string]string{}
	for _, path := range pages {
		resp, _ := sys.again(t, path, "", "")
		had[path] = resp.Header.Get("ETag")
		asked := worker.asked.Load()
		for _, tag := range []string{had[path], `"x", W/` + had[path]} {
			if resp, body := sys.again(t, path, tag, ""); resp.StatusCode != http.StatusNotModified || body != "" || worker.asked.Load() != asked {
				t.Errorf("%s, which the client has: %s, and the worker was asked %d times", path, resp.Status, worker.asked.Load()-asked)
			}
		}
	}
	// The worker lags behind the state.
	sys.store(t, owner.At(long+2).State("r", refsOf(second)))
	for _, path := range pages {
		resp, _ := sys.again(t, path, had[path], "")
		if resp.StatusCode == http.StatusNotModified {
			t.Errorf("%s after a push: %s", path, resp.Status)
		}
		had[path] = resp.Header.Get("ETag")
	}
	worker.commit.Store(second)
	for _, path := range pages {
		if resp, _ := sys.again(t, path, had[path], ""); resp.StatusCode != http.StatusOK || resp.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s, which was of the time before the push: %s", path, resp.Status)
		}
	}
	// The images of a README are those of its commit, for ever.
	_, page := sys.again(t, home, "", "")
	inOrder(t, page, home+"?branch=main&amp;path=x.png&amp;raw=1&amp;commit="+second)
	for commit, want := range map[string]bool{first: false, second: true} {
		resp, body := sys.again(t, home+"?branch=main&path=x&raw=1&commit="+commit, "", "")
		if is := strings.Contains(resp.Header.Get("Cache-Control"), "immutable"); is != want || body != second {
			t.Errorf("a file of the commit %s: %v, %s", commit, resp.Header, body)
		}
	}
}

// TestPrivatePagesByStateEvent: no tag of a page opens a private service, and no cache keeps what a
// member is told.
func TestPrivatePagesByStateEvent(t *testing.T) {
	t.Parallel()
	p := startPrivate(t, "")
	root := "/" + p.member.Npub + "/secret.git"
	proven := "Nostr " + proof(p.member, root, nil)
	resp, _ := p.again(t, root+"?issues", "", proven)
	tag := resp.Header.Get("ETag")
	if resp, _ := p.again(t, root+"?issues", tag, proven); resp.StatusCode != http.StatusNotModified || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("a member who has the page: %s, %v", resp.Status, resp.Header)
	}
	if resp, body := p.again(t, root+"?issues", tag, ""); resp.StatusCode != http.StatusUnauthorized || body != "" || resp.Header.Get("ETag") != "" {
		t.Errorf("a stranger who knows its tag: %s, %v", resp.Status, resp.Header)
	}
}
