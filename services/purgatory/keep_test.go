package purgatory

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

// TestHousekeepingBesideAWriter: while somebody writes, housekeeping removes nothing, however old it
// is. A push builds on a commit whose branch was deleted long ago; after its check the commit must
// stay until the push has set its reference, and from then on because of that.
func TestHousekeepingBesideAWriter(t *testing.T) {
	t.Parallel()
	repo, w := gittest.Repo(t, gittest.Store(t), "old"), gittest.NewWork(t)
	parent := w.Commit("a", "of a branch that was deleted")
	gittest.Fill(t, repo, w.Pack("main"))
	long := time.Now().Add(-30 * 24 * time.Hour)
	packs, err := filepath.Glob(filepath.Join(repo.Path, "objects/pack/*"))
	fixture.Must(t, err)
	for _, file := range packs {
		fixture.Must(t, os.Chtimes(file, long, long))
	}

	push := gittest.Lock(t, repo)
	missing, err := push.Missing(t.Context(), []string{parent}) // what the push is checked on
	if err != nil || len(missing) > 0 {
		t.Fatalf("missing: %v, %v", missing, err)
	}
	if busy, err := tidy(t.Context(), repo); !busy || err != nil {
		t.Errorf("housekeeping beside a push: busy %v, %v", busy, err)
	}
	child := w.Commit("b", "pushed")
	gittest.Fill(t, repo, w.Pack("main", "^"+parent))
	fixture.Must(t, push.SetRef(t.Context(), "refs/heads/main", child))
	push.Done()

	if busy, err := tidy(t.Context(), repo); busy || err != nil {
		t.Errorf("housekeeping after the push: busy %v, %v", busy, err)
	}
	missing, err = repo.Missing(t.Context(), []string{parent, child})
	if err != nil || len(missing) > 0 {
		t.Errorf("after housekeeping the pushed commit or its parent is gone: %v, %v", missing, err)
	}
	gittest.Fsck(t, repo.Path)
}

// TestHousekeepingAfterOneThatWasKilled: the locks that it left do not stop the next one.
func TestHousekeepingAfterOneThatWasKilled(t *testing.T) {
	t.Parallel()
	repo, w := gittest.Repo(t, gittest.Store(t), "killed"), gittest.NewWork(t)
	tip := w.Commit("a", "a")
	gittest.Fill(t, repo, w.Pack("main"))
	gittest.Git(t, repo.Path, "update-ref", "refs/heads/main", tip)
	for _, name := range []string{"info/commit-graph.lock", "info/commit-graphs/commit-graph-chain.lock", "pack/multi-pack-index.lock"} {
		path := filepath.Join(repo.Path, "objects", name)
		fixture.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		fixture.Must(t, os.WriteFile(path, nil, 0o444))
	}
	if busy, err := tidy(t.Context(), repo); busy || err != nil {
		t.Errorf("busy %v, %v", busy, err)
	}
	if left, err := filepath.Glob(filepath.Join(repo.Path, "objects/*/*.lock")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
