package purgatory_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
)

// TestOneAuthorHasRoomForSoManyPullRequests: of one author no more are named in a repository,
// whether the commit is there or pushed; others have room, and the author has it again after a
// deletion.
func TestOneAuthorHasRoomForSoManyPullRequests(t *testing.T) {
	w := newWorld(t)
	commit := w.pushFirst()
	pulls := w.crowded(commit, 256)
	more, others := pull("one more", bob, commit, alice, "x"), pull("another's", carol, commit, alice, "x")
	w.in.waits("x", more, others)
	w.released(others)
	w.refuses("too many pull requests", alice, "x", commit+":refs/nostr/"+more.ID)
	if w.in.times(more.ID) > 0 || w.ref(alice, "x", "refs/nostr/"+more.ID) != "" {
		t.Error("one author has more than may be")
	}
	w.in.accept(deletion(bob, "e", pulls[0].ID))
	eventually(t, "the deleted one is named no more", func() bool { return w.ref(alice, "x", "refs/nostr/"+pulls[0].ID) == "" })
	w.pushes(alice, "x", commit+":refs/nostr/"+more.ID)
	w.released(more)
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

// TestAPushReadsNoPullRequests: beside 1,500 that are named in the repository, a push of a branch
// takes about as long as beside none. The times are told and not judged, because machines are busy.
// What is judged is that git does not show them to who pushes.
func TestAPushReadsNoPullRequests(t *testing.T) {
	w := newWorld(t)
	w.pushFirst()
	w.announced(alice, "y")
	w.pushState(alice, "y", 1001, w.work.Commit("b", "first"))
	const named, pushes = 1500, 5
	w.crowded(w.ref(alice, "x", mainBranch), named)
	took := map[string][]time.Duration{}
	for n := range pushes {
		for _, identifier := range []string{"x", "y"} {
			commit := w.work.Commit(identifier, fmt.Sprint(n))
			w.in.accept(state(fmt.Sprint("state ", n), alice, identifier, nostr.Timestamp(1100+n), commit))
			began := time.Now()
			w.pushes(alice, identifier, "+"+commit+":"+mainBranch)
			took[identifier] = append(took[identifier], time.Since(began))
		}
	}
	resp, err := http.Get(w.address(alice, "x") + "/info/refs?service=git-receive-pack")
	must(t, err)
	defer resp.Body.Close()
	shown, err := io.ReadAll(resp.Body)
	must(t, err)
	if text := string(shown); !strings.Contains(text, mainBranch) || strings.Contains(text, "refs/nostr") {
		t.Errorf("who pushes is shown %d bytes", len(text))
	}
	for _, times := range took {
		slices.Sort(times)
	}
	beside, alone := took["x"][pushes/2], took["y"][pushes/2]
	t.Logf("a push beside %d pull requests %s, beside none %s: %.2f", named, beside.Round(time.Millisecond), alone.Round(time.Millisecond),
		float64(beside)/float64(alone))
}
