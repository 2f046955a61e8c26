package repository_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

// TestPlaces: contributors' repositories lie apart, and are not taken for announced ones.
func TestPlaces(t *testing.T) {
	t.Parallel()
	store := gittest.Store(t)
	ctx := t.Context()
	ref := nostr.RepoRef{PubKey: gittest.Owner, Identifier: "my repo/ü"}
	hosted, err := store.Repo(ref)
	if err != nil {
		t.Fatal(err)
	}
	offered, err := store.At(repository.Place{RepoRef: ref, PRs: true})
	if err != nil {
		t.Fatal(err)
	}
	if offered.Exists() || offered.Path() == hosted.Path() {
		t.Fatalf("%s and %s", offered.Path(), hosted.Path())
	}
	for _, r := range []*repository.Repo{hosted, offered} {
		if err := r.Ensure(ctx); err != nil {
			t.Fatal(err)
		}
	}
	var announced []nostr.RepoRef
	for ref, err := range store.All(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		announced = append(announced, ref)
	}
	var places, of []repository.Place
	for place, err := range store.Places(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, place)
	}
	for place, err := range store.PRsOf(ctx, gittest.Owner) {
		if err != nil {
			t.Fatal(err)
		}
		of = append(of, place)
	}
	if !slices.Equal(announced, []nostr.RepoRef{ref}) || !slices.Equal(places, []repository.Place{hosted.Place(), offered.Place()}) || !slices.Equal(of, places[1:]) {
		t.Errorf("announced %v, places %v, the contributor's %v", announced, places, of)
	}

	work := gittest.NewWork(t)
	commit := work.Commit("a", "1")
	gittest.Git(t, work.Dir, "push", "-q", offered.Path(), "HEAD:refs/nostr/"+strings.Repeat("ab", 32))
	if missing, err := hosted.Missing(ctx, []string{commit}); err != nil || len(missing) != 1 {
		t.Errorf("what waits is in the announced repository: %v, %v", missing, err)
	}
	if beside, err := store.Beside(ref.Identifier); err != nil || !slices.Equal(beside, places) {
		t.Errorf("of the identifier there is %v, %v", beside, err)
	}
	if err := hosted.Remove(ctx); err != nil {
		t.Fatal(err)
	}
	if err := offered.Remove(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(offered.Path())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the contributor's folder is left behind: %v", err)
	}
}

// TestEmpty: one repository stands for all that nobody has pushed to, and is none of them.
func TestEmpty(t *testing.T) {
	t.Parallel()
	store := gittest.Store(t)
	for range 2 {
		empty, err := store.Empty(t.Context())
		if err != nil || !empty.Exists() {
			t.Fatal(err)
		}
		if out := gittest.Git(t, t.TempDir(), "ls-remote", empty.Path()); out != "" {
			t.Errorf("it has %s", out)
		}
	}
	for place, err := range store.Places(t.Context()) {
		t.Errorf("%v is listed, %v", place, err)
	}
}

// TestArchiveMark: it is there until it is taken away.
func TestArchiveMark(t *testing.T) {
	t.Parallel()
	repo := gittest.Repo(t, gittest.Store(t), "x")
	for _, is := range []bool{false, true, true, false, false} {
		if err := repo.SetArchive(is); err != nil || repo.IsArchive() != is {
			t.Errorf("set to %v it is %v: %v", is, repo.IsArchive(), err)
		}
	}
}
