package repository_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tendril.dev/services/purgatory/repository/gittest"
)

// TestWhatGitDoesNotSeeIsNotNamed: a repository that lost the line by which it borrows from its
// pool, as in a restore, gets no references to what only the pool has.
func TestWhatGitDoesNotSeeIsNotNamed(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	tip := w.Commit("a", "1")
	first := owned(t, s, 0, "x")
	store(t, first, w.Pack(tip))
	accept(t, first, refs{main: tip})
	second := owned(t, s, 1, "x")
	must(t, os.Remove(filepath.Join(second.Path(), "objects", "info", "alternates")))
	if _, err := second.SetRefs(t.Context(), refs{main: tip}, nil, main); err == nil {
		t.Error("references were set")
	}
	if err := second.SetRef(t.Context(), "refs/nostr/x", tip); err == nil {
		t.Error("a reference was set")
	}
	if names := gittest.Git(t, second.Path(), "for-each-ref"); names != "" {
		t.Errorf("there are references: %s", names)
	}
	accept(t, second, refs{main: tip})
	gittest.Fsck(t, second.Path())
}

// TestReferencesOfAKilledProcessAreFinished: one was renamed, two are locks still, and a folder is
// left in which there is no reference.
func TestReferencesOfAKilledProcessAreFinished(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	tip := w.Commit("a", "1")
	r := owned(t, s, 0, "x")
	store(t, r, w.Pack(tip))
	must(t, r.Promote(t.Context(), []string{tip}))
	killed := time.Now().Add(-2 * time.Minute)
	for name, content := range map[string]string{"a": tip + "\n", "b.lock": "", "c/d.lock": tip + "\n"} {
		path := filepath.Join(r.Path(), "refs", "heads", name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(content), 0o600))
		must(t, os.Chtimes(path, killed, killed))
	}
	must(t, os.MkdirAll(filepath.Join(r.Path(), "refs", "heads", "e", "empty"), 0o755))
	want := refs{"refs/heads/a": tip, "refs/heads/b": tip, "refs/heads/c/d": tip, "refs/heads/e": tip, "refs/tags/v": tip}
	if _, err := r.SetRefs(t.Context(), want, nil, "refs/heads/a"); err != nil {
		t.Fatal(err)
	}
	if now, err := r.Refs(t.Context()); err != nil || !maps.Equal(now.ByName, want) {
		t.Errorf("%v, %v", now.ByName, err)
	}
}

// TestSmallPacksAreReadByTurns: however many repositories are new at once, no more of them are in
// memory than packs are looked through at once.
func TestSmallPacksAreReadByTurns(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	tip := w.Commit("a", "1")
	r := owned(t, s, 0, "x")
	store(t, r, w.Pack(tip))
	s.HoldScans(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Promote(ctx, []string{tip}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("promoted without a turn: %v", err)
	}
}
