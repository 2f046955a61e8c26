package purgatory_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
)

// TestGitFolderThatCannotBeWritten is told by /readyz and to who pushes, who must not believe that
// the announcement is gone.
func TestGitFolderThatCannotBeWritten(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	// What keeps root out, too: where repositories are made there is no folder any more.
	workshop := filepath.Join(w.git, ".new")
	if err := errors.Join(os.RemoveAll(workshop), os.WriteFile(workshop, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	why := "nothing can be written to the git folder (NGIT_GIT_DATA_PATH): not a directory"
	eventually(t, "/readyz says why", func() bool { return w.Ready.Failing()["git folder"] == why })
	w.in.waits("x", proto.SourceUser, announcement(t, "announcement", alice, "x"), state("state", alice, "x", 1001, c1))
	w.refuses("remote: "+githttp.Unwritable, alice, "x", "main")
	if err := errors.Join(os.Remove(workshop), os.Mkdir(workshop, 0o755)); err != nil {
		t.Fatal(err)
	}
	w.pushes(alice, "x", "main")
}
