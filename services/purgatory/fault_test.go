package purgatory_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/node"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

// TestGitFolderThatCannotBeWritten is told by /readyz and to who pushes, who must not believe that
// the announcement is gone.
func TestGitFolderThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	work := gittest.NewWork(t)
	c1 := work.Commit("a", "1")
	// What keeps root out, too: where repositories are made there is no folder any more.
	workshop := filepath.Join(w.git, ".new")
	if err := errors.Join(os.RemoveAll(workshop), os.WriteFile(workshop, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	why := "nothing can be written to the git folder (NGIT_GIT_DATA_PATH): not a directory"
	eventually(t, "/readyz says why", func() bool { return w.Ready.Failing()["git folder"] == why })
	w.in.waits("x", proto.SourceUser, announcement(t, "announcement", alice, "x"), state("state", alice, "x", 1001, c1))
	w.refuses("remote: "+githttp.Unwritable, work, alice, "x", "main")
	if err := errors.Join(os.Remove(workshop), os.Mkdir(workshop, 0o755)); err != nil {
		t.Fatal(err)
	}
	w.pushes(work, alice, "x", "main")
}

// TestWhatAKilledPushLeft goes when a worker takes over: it may be as large as a push may be.
func TestWhatAKilledPushLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	work := gittest.NewWork(t)
	w.pushFirst(work)
	w.stop()
	left := filepath.Join(w.repo(alice, "x").Path(), "objects", "tmp_objdir-incoming-1")
	if err := os.Mkdir(left, 0o755); err != nil {
		t.Fatal(err)
	}
	w.worker = start(t, "two", w.git, w.Bus.ClientURL())
	eventually(t, "it is gone", func() bool { _, err := os.Lstat(left); return os.IsNotExist(err) })
}

// TestWhyItDoesNotStart is one sentence, in which the service and what it was doing stand once:
// `purgatory: ` stands before it on the terminal.
func TestWhyItDoesNotStart(t *testing.T) {
	t.Parallel()
	sizing := proto.DefaultSizing()
	sizing.MemoryOnly = true
	b, err := bus.Open(t.Context(), bus.Options{Sizing: sizing, Name: t.Name(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	other := filepath.Join(t.TempDir(), "git")
	if _, err := repository.TakeFolder(other, repository.System{Domain: "old.example.com"}, nil); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ flags, want string }{
		"the folder of another domain": {"--git-data-path=" + other, `NGIT_DOMAIN is "` + domain + `", and the repositories in NGIT_GIT_DATA_PATH (` + other + ") were served as old.example.com" +
			": nothing was changed; want NGIT_DOMAIN=old.example.com, or, if the service has moved to the new domain, NGIT_FORGET_LOG=old.example.com"},
		"the port is taken": {"--git-listen=" + taken.Addr().String(),
			`NGIT_GIT_LISTEN is "` + taken.Addr().String() + `": address already in use; stop what listens there, or choose another`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := open(t, "two", filepath.Join(t.TempDir(), "git"), b.ClientURL(), c.flags)
			err := n.Run(t.Context(), node.Service{Name: "purgatory", Run: purgatory.Run})
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
