package purgatory

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

func removes(context.Context, repository.Place) (bool, error) { return false, nil }

// TestWhatHousekeepingKeeps, by authority.md.
func TestWhatHousekeepingKeeps(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		authority, follows bool
		branchesAndTags    int
		until              time.Time
		want               bool
	}{
		"no one has authority":                  {false, true, 3, now.Add(-time.Hour), true},
		"no one has authority, nothing is left": {false, false, 0, now.Add(-time.Hour), true},
		"a state counts":                        {true, true, 3, now.Add(time.Hour), false},
		"no state is left that applies":         {true, false, 3, now.Add(-time.Hour), true},
		"its author has deleted the state":      {true, false, 0, now.Add(time.Hour), true},
		"its author deleted it long ago":        {true, false, 0, now.Add(-time.Hour), false},
	} {
		if got := keepsObjects(c.authority, c.follows, c.branchesAndTags, c.until, now); got != c.want {
			t.Errorf("%s: keeps %t", name, got)
		}
	}
	for _, keeps := range []bool{true, false} {
		repo, w := gittest.Repo(t, gittest.Store(t), "old"), gittest.NewWork(t)
		commit := w.Commit("a", "that no reference reaches")
		gittest.Fill(t, repo, w.Pack("main"))
		long := now.Add(-30 * 24 * time.Hour)
		packs, err := filepath.Glob(filepath.Join(repo.Path, "objects/pack/*"))
		fixture.Must(t, err)
		for _, file := range packs {
			fixture.Must(t, os.Chtimes(file, long, long))
		}
		says := func(context.Context, repository.Place) (bool, error) { return keeps, nil }
		for range 2 { // the second time it is in a cruft pack
			if busy, err := tidy(t.Context(), repo, says); busy || err != nil {
				t.Fatalf("busy %v, %v", busy, err)
			}
		}
		missing, err := repo.Missing(t.Context(), []string{commit})
		if err != nil || (len(missing) == 0) != keeps {
			t.Errorf("keeps %t: missing %v, %v", keeps, missing, err)
		}
	}
}

// TestHousekeepingBesideAWriter: while a client writes, housekeeping removes nothing, however old
// it is. A push builds on a commit whose branch was deleted long ago; after its check the commit
// must stay until the push has set its reference, and from then on because of that.
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
	if busy, err := tidy(t.Context(), repo, removes); !busy || err != nil {
		t.Errorf("housekeeping beside a push: busy %v, %v", busy, err)
	}
	child := w.Commit("b", "pushed")
	gittest.Fill(t, repo, w.Pack("main", "^"+parent))
	fixture.Must(t, push.SetRef(t.Context(), "refs/heads/main", child))
	push.Done()

	if busy, err := tidy(t.Context(), repo, removes); busy || err != nil {
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
	if busy, err := tidy(t.Context(), repo, removes); busy || err != nil {
		t.Errorf("busy %v, %v", busy, err)
	}
	if left, err := filepath.Glob(filepath.Join(repo.Path, "objects/*/*.lock")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
