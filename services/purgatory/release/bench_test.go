package release_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"testing"

	"tendril.dev/services/purgatory/repository"
)

// counting returns a store whose git notes every process that is started, and how many there were.
func counting(t testing.TB) (*repository.Store, func() int) {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	notes, script := filepath.Join(folder, "started"), filepath.Join(folder, "git")
	if err := os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\necho \"$1\" >> '%s'\nexec '%s' \"$@\"\n", notes, git), 0o755); err != nil {
		t.Fatal(err)
	}
	store, err := repository.NewStore(repository.Options{Root: filepath.Join(folder, "repositories"), Git: script})
	if err != nil {
		t.Fatal(err)
	}
	return store, func() int {
		data, err := os.ReadFile(notes)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		os.Remove(notes)
		return bytes.Count(data, []byte("\n"))
	}
}

// crowd makes an identifier of one owner with data and of others who announce the same, each with a
// state whose object never comes.
func crowd(t testing.TB, others int) (*world, func() int) {
	w := newWorld(t)
	store, started := counting(t)
	w.store, w.r.Store = store, store
	c1 := w.work.Commit("a", "1")
	w.accept(w.announce("announcement", alice))
	w.give(alice, "main")
	w.state("state", alice, mainBranch, c1)
	for n := range others {
		w.announce("other", key(100+n))
		w.state("never", key(100+n), mainBranch, fmt.Sprintf("%040x", n+1))
	}
	w.release()
	started()
	return w, started
}

// TestStrangersCostLittle: where nothing happened no git is started, however many announce the same
// identifier and wait for something.
func TestStrangersCostLittle(t *testing.T) {
	t.Parallel()
	w, started := crowd(t, 0)
	w.release()
	if n := started(); n != 0 {
		t.Errorf("%d git processes where nothing happened", n)
	}
	w, started = crowd(t, 10)
	w.release()
	if n := started(); n != 0 {
		t.Errorf("%d git processes for 10 strangers who wait for something that has not come", n)
	}
	w.give(key(105), "main")
	w.release()
	if n := started() - 1; n > 1 {
		t.Errorf("%d git processes to look for what one of 10 strangers waits for in what has come, want 1", n)
	}
	// An announcement that names the owner as a maintainer does not make the owner's next state dearer than
	// by what it brings.
	c2 := w.work.Commit("a", "2")
	w.give(alice, c2)
	w.state("second", alice, mainBranch, c2)
	started()
	w.release()
	if n := started(); n > 4 {
		t.Errorf("%d git processes for one more state", n)
	}
}

// TestANewRepositoryStartsFewProcesses: none makes it, one looks whether everything is there, one
// walks through that, and two set the references and HEAD. A start from nothing is that a thousand
// times.
func TestANewRepositoryStartsFewProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store, started := counting(t)
	w.store, w.r.Store = store, store
	commit := w.work.Commit("a", "1")
	w.announce("announcement", alice)
	started() // to learn its version
	w.release()
	if n := started(); n != 0 {
		t.Errorf("%d git processes to make a repository", n)
	}
	w.give(alice, "main")
	w.state("first", alice, mainBranch, commit)
	started()
	w.release()
	if n := started(); n > 4 {
		t.Errorf("%d git processes to apply the first state, want 4", n)
	}
	repo := w.repo(alice)
	if head, err := repo.Head(); head != mainBranch || err != nil || !repo.IsNamed(mainBranch, commit) {
		t.Errorf("HEAD follows %q, %v", head, err)
	}
}
