package purgatory_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture/gittest"
)

// TestOneAuthorHasRoomForSoManyPullRequests: of one author no more are named in a repository,
// whether the commit is there, pushed or elsewhere, where no git server is asked for it. Others have
// room, and the author has it again after a deletion.
func TestOneAuthorHasRoomForSoManyPullRequests(t *testing.T) {
	w := newWorld(t)
	commit := w.pushFirst()
	pulls := w.crowded(commit, 256)
	root := t.TempDir()
	missing := w.work.Commit("b", "only elsewhere")
	w.work.Publish(root, "fork.git")
	backend := gittest.Backend(t, root).Config.Handler
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		backend.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	more, others := pull("one more", bob, commit, alice, "x"), pull("another's", carol, commit, alice, "x")
	hunted := pull("of a fork", bob, missing, alice, "x", server.URL+"/fork.git")
	w.in.waits("x", more, others)
	w.in.syncs("x", hunted)
	w.released(others)
	w.refuses("too many pull requests", alice, "x", commit+":refs/nostr/"+more.ID)
	w.endsHunt("y")
	if n := asked.Load(); n > 0 || w.in.times(more.ID) > 0 || w.ref(alice, "x", "refs/nostr/"+more.ID) != "" {
		t.Errorf("one author has more than may be, or a git server got %d requests for what has no room", n)
	}
	for n := range 2 {
		w.in.accept(deletion(bob, "e", pulls[n].ID))
	}
	w.released(more)
	w.released(hunted)
	w.names(alice, "x", more, commit)
	w.names(alice, "x", hunted, missing)
}

// crowded has bob's pull requests named in x, as a worker without the bound would have.
func (w *world) crowded(commit string, most int) (pulls []*nostr.Event) {
	w.Helper()
	folder := filepath.Join(w.repo(alice, "x").Path, "refs/nostr")
	must(w, os.MkdirAll(folder, 0o755))
	w.in.set(func() { // as if the writer had taken them in one go
		for n := range most {
			pulls = append(pulls, pull(fmt.Sprint("pull ", n), bob, commit, alice, "x"))
			w.in.append(pulls[n])
		}
	})
	for _, ev := range pulls {
		must(w, os.WriteFile(filepath.Join(folder, ev.ID), []byte(commit+"\n"), 0o644))
	}
	return pulls
}

// TestWhoPushesIsShownNoPullRequests that others have, of which there may be thousands.
func TestWhoPushesIsShownNoPullRequests(t *testing.T) {
	w := newWorld(t)
	w.crowded(w.pushFirst(), 1)
	resp, err := http.Get(w.address(alice, "x") + "/info/refs?service=git-receive-pack")
	must(t, err)
	defer resp.Body.Close()
	shown, err := io.ReadAll(resp.Body)
	must(t, err)
	if text := string(shown); !strings.Contains(text, mainBranch) || strings.Contains(text, "refs/nostr") {
		t.Errorf("who pushes is shown %q", text)
	}
}
