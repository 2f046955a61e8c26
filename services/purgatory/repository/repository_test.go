package repository_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

func TestRepositoriesOfAnyIdentifierStayBelowTheRoot(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "git")
	s, err := repository.NewStore(repository.Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	identifiers := []string{"plain", "a/b", "..", ".", "../..", "🌱 seed", "-x", "--upload-pack=touch", ".git", "a.git", "a%2Fb", "x\\y", "CON:"}
	paths, unborn := map[string]bool{}, gittest.FirstBranch(t)
	for _, identifier := range identifiers {
		r := gittest.Repo(t, s, identifier)
		folder, err := filepath.Rel(root, r.Path())
		if err != nil || strings.Count(folder, "/") != 1 || !strings.HasPrefix(folder, "npub1") || !strings.HasSuffix(folder, ".git") {
			t.Errorf("%q lies at %q (%v)", identifier, folder, err)
		}
		if paths[folder] {
			t.Errorf("%q shares its folder with another", identifier)
		}
		paths[folder] = true
		refs, err := r.Refs(t.Context())
		if err != nil || refs.Head != unborn || len(refs.ByName) != 0 {
			t.Errorf("%q: references %+v, %v", identifier, refs, err)
		}
	}
	var found []string
	for ref, err := range s.All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if ref.PubKey != gittest.Owner {
			t.Errorf("owner %q", ref.PubKey)
		}
		found = append(found, ref.Identifier)
	}
	slices.Sort(identifiers)
	slices.Sort(found)
	if !slices.Equal(found, identifiers) {
		t.Errorf("found %q, want %q", found, identifiers)
	}
}

func TestIllegalReferencesAreRefused(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	for _, ref := range []nostr.RepoRef{
		{PubKey: gittest.Owner},
		{PubKey: "../../etc", Identifier: "a"},
		{PubKey: strings.ToUpper(gittest.Owner), Identifier: "a"},
		{PubKey: gittest.Owner, Identifier: "a\x00b"},
		{PubKey: gittest.Owner, Identifier: "a\nb"},
		{PubKey: gittest.Owner, Identifier: strings.Repeat("a", 201)},
		{PubKey: gittest.Owner, Identifier: "\xff"},
	} {
		if r, err := s.Repo(ref); err == nil {
			t.Errorf("%q was given the path %q", ref, r.Path())
		}
	}
}

// Not parallel: a program that is being written cannot be run, and a fork elsewhere holds its file
// open.
func TestStoreSaysWhatIsWrongWithItsSettings(t *testing.T) {
	script := func(prints string) string {
		path := filepath.Join(t.TempDir(), "git")
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+prints+"'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		options repository.Options
		want    string
	}{
		"no git":      {repository.Options{Root: t.TempDir(), Git: "no-such-git"}, `NGIT_GIT_BINARY is "no-such-git": want a git program`},
		"another":     {repository.Options{Root: t.TempDir(), Git: script("hello")}, "want a git program, but it does not say"},
		"old git":     {repository.Options{Root: t.TempDir(), Git: script("git version 2.36.9")}, "want git 2.37 or newer, but it is 2.36"},
		"root a file": {repository.Options{Root: file}, "NGIT_GIT_DATA_PATH is"},
		"no root":     {repository.Options{}, "NGIT_GIT_DATA_PATH is \"\""},
	} {
		if _, err := repository.NewStore(tc.options); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q in it", name, err, tc.want)
		}
	}
	if _, err := repository.NewStore(repository.Options{Root: t.TempDir(), Git: script("git version 3.0.1")}); err != nil {
		t.Errorf("git 3: %v", err)
	}
}

func TestEnsureIsSafeForManyAndRemoveTakesAllAway(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	r, err := s.Repo(nostr.RepoRef{PubKey: gittest.Owner, Identifier: "busy"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Exists() {
		t.Fatal("it is there before it was made")
	}
	for range 3 {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if err := r.Ensure(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if !r.Exists() {
			t.Fatal("it was not made")
		}
		if err := r.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r.Exists() {
			t.Fatal("it was not removed")
		}
	}
	if err := r.Remove(t.Context()); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
	if left := files(t, filepath.Dir(filepath.Dir(r.Path()))); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// files lists every file below a folder, and every folder but the store's own.
func files(t *testing.T, root string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		if err == nil && name != "." && name != ".new" && name != ".trash" {
			found = append(found, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestSweepRemovesWhatKilledProcessesLeft(t *testing.T) {
	t.Parallel()
	r := gittest.Repo(t, gittest.Store(t), "swept")
	w := gittest.NewWork(t)
	id := w.Commit("a", "a")
	store(t, r, w.Pack("main"))
	old := time.Now().Add(-48 * time.Hour)
	place := func(name string, age time.Time) string {
		path := filepath.Join(r.Path(), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, age, age); err != nil {
			t.Fatal(err)
		}
		return path
	}
	gone := []string{
		place("HEAD.lock", old), place("packed-refs.lock", old), place("refs/heads/main.lock", old),
		filepath.Dir(place("objects/tmp_objdir-pack-1/pack", old)),
	}
	if err := os.Chtimes(filepath.Join(r.Path(), "objects/tmp_objdir-pack-1"), old, old); err != nil {
		t.Fatal(err)
	}
	stays := []string{
		place("refs/heads/new.lock", time.Now()), place("objects/tmp_objdir-pack-2/pack", time.Now()),
		place("objects/pack/pack-blind.pack", old), // its index may be what was lost
	}
	packs, err := filepath.Glob(filepath.Join(r.Path(), "objects/pack/pack-????????????????????????????????????????.*"))
	if err != nil || len(packs) < 2 {
		t.Fatalf("packs %q, %v", packs, err)
	}
	for _, path := range packs {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	stays = append(stays, packs...)
	if err := r.Sweep(); err != nil {
		t.Fatal(err)
	}
	for _, path := range gone {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	for _, path := range stays {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone, but may be in use", path)
		}
	}
	if err := r.SetRef(t.Context(), "refs/heads/main", id); err != nil {
		t.Errorf("after the sweep: %v", err)
	}
}

func TestLockOfAKilledProcessDoesNotLastForEver(t *testing.T) {
	t.Parallel()
	r := gittest.Repo(t, gittest.Store(t), "locked")
	w := gittest.NewWork(t)
	id := w.Commit("a", "a")
	store(t, r, w.Pack("main"))
	lock := filepath.Join(r.Path(), "refs/heads/main.lock")
	if err := os.MkdirAll(filepath.Dir(lock), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lock, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.SetRef(t.Context(), "refs/heads/main", id); err == nil {
		t.Fatal("a fresh lock was passed over")
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(lock, old, old); err != nil {
		t.Fatal(err)
	}
	if err := r.SetRef(t.Context(), "refs/heads/main", id); err != nil {
		t.Errorf("an old lock was not passed over: %v", err)
	}
}
