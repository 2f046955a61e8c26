package repository_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

// maintained makes the empty repository of one of several maintainers.
func maintained(t testing.TB, s *repository.Store, n int) *repository.Repo {
	t.Helper()
	r, err := s.Repo(nostr.RepoRef{PubKey: fmt.Sprintf("%064x", n), Identifier: `of "many"`})
	if err == nil {
		err = r.Ensure(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// set lets main name a commit, and fails the test if that cannot be.
func set(t testing.TB, r *repository.Repo, id string) {
	t.Helper()
	if _, err := r.SetRefs(t.Context(), refs{"refs/heads/main": id}, nil, "refs/heads/main"); err != nil {
		t.Fatal(err)
	}
}

// onDisk is how many bytes the files below a folder take up, each once, however often it is linked.
func onDisk(t testing.TB, root string) (bytes int64) {
	t.Helper()
	var counted []os.FileInfo
	err := filepath.WalkDir(root, func(_ string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil && !slices.ContainsFunc(counted, func(other os.FileInfo) bool { return os.SameFile(info, other) }) {
			counted, bytes = append(counted, info), bytes+info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// TestMaintainersShareWhatTheyHaveInCommon: five repositories take little more room than one, at
// first, after pushes and after housekeeping.
func TestMaintainersShareWhatTheyHaveInCommon(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	w := gittest.NewWork(t)
	tip := w.Commit("large", gittest.Noise(20<<20))
	first := maintained(t, s, 1)
	store(t, first, w.Pack("main"))
	set(t, first, tip)
	alone := onDisk(t, filepath.Dir(filepath.Dir(first.Path())))
	group := []*repository.Repo{first}
	for n := range 4 {
		r := maintained(t, s, n+2)
		if err := r.Share(t.Context(), first, []string{tip}); err != nil {
			t.Fatal(err)
		}
		set(t, r, tip)
		group = append(group, r)
	}
	small := func(when string) {
		t.Helper()
		if all := onDisk(t, filepath.Dir(filepath.Dir(first.Path()))); all > alone*12/10 {
			t.Errorf("%s five take %d bytes, one %d", when, all, alone)
		}
		for _, r := range group {
			gittest.Fsck(t, r.Path())
		}
	}
	small("at first")
	for n := range 10 {
		before := tip
		tip = w.Commit("small", fmt.Sprint(n))
		store(t, first, w.Pack("main", "^"+before))
		set(t, first, tip)
		for _, r := range group[1:] {
			if err := r.Share(t.Context(), first, []string{tip}); err != nil {
				t.Fatal(err)
			}
			set(t, r, tip)
		}
	}
	small("after ten pushes")
	for _, r := range group {
		if err := r.Gc(t.Context()); err != nil {
			t.Fatal(err)
		}
		has(t, r, true, tip)
	}
	small("after housekeeping")
	if err := first.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(t, group[1], true, tip)
	gittest.Fsck(t, group[1].Path())
}

func TestShareBringsOnlyWhatIsReachable(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	from, to := maintained(t, s, 1), maintained(t, s, 2)
	w := gittest.NewWork(t)
	first := w.Commit("a", "a")
	store(t, to, w.Pack("main"))
	set(t, to, first)
	second := w.Commit("a", "aa")
	w.Git("tag", "--annotate", "--message", "v1", "v1")
	tag := w.Git("rev-parse", "v1")
	w.Git("checkout", "--quiet", "-b", "other", first)
	other := w.Commit("b", "b")
	store(t, from, w.Pack("main", "other", "v1"))

	for range 2 { // again changes nothing
		if err := to.Share(t.Context(), from, []string{tag, second, tag}); err != nil {
			t.Fatal(err)
		}
		has(t, to, true, first, second, tag)
		has(t, to, false, other)
	}
	if err := to.Share(t.Context(), from, []string{strings.Repeat("5", 40)}); !errors.Is(err, repository.ErrBroken) {
		t.Errorf("what is nowhere: %v", err)
	}
	gittest.Fsck(t, to.Path())
}

// TestHalfAHistoryIsNotNamed: what is there without all that it links to is neither shared nor
// named by a reference.
func TestHalfAHistoryIsNotNamed(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	half, other := maintained(t, s, 1), maintained(t, s, 2)
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	id := w.Commit("a", "aa")
	// As if a part had been lost: git checks what we store.
	gittest.Git(t, half.Path(), "init", "--quiet", "--bare")
	gittest.Input(t, half.Path(), w.PackOf(id), "unpack-objects", "-q")
	has(t, half, true, id)
	if err := other.Share(t.Context(), half, []string{id}); !errors.Is(err, repository.ErrBroken) {
		t.Errorf("shared: %v", err)
	}
	if _, err := half.SetRefs(t.Context(), refs{"refs/heads/main": id}, nil, ""); !errors.Is(err, repository.ErrBroken) {
		t.Errorf("a branch is set: %v", err)
	}
	if err := half.SetRef(t.Context(), "refs/nostr/"+strings.Repeat("e", 64), id); !errors.Is(err, repository.ErrBroken) {
		t.Errorf("a reference is set: %v", err)
	}
	untouched(t, other)
}

// TestANewRepositoryIsTwoFiles: a stranger's announcement costs as little as can be.
func TestANewRepositoryIsTwoFiles(t *testing.T) {
	t.Parallel()
	r := gittest.Repo(t, gittest.Store(t), "new")
	if got, want := files(t, r.Path()), []string{"HEAD", "config", "objects", "refs"}; !slices.Equal(got, want) {
		t.Errorf("there is %q, want %q", got, want)
	}
	if got := files(t, filepath.Dir(filepath.Dir(r.Path()))); len(got) != 6 { // and the two folders that it is in
		t.Errorf("the root has %q", got)
	}
	gittest.Fsck(t, r.Path())
	if out, err := gittest.Try(t, t.TempDir(), "clone", "--quiet", r.Path(), "clone"); err != nil {
		t.Errorf("git cannot clone it: %v %s", err, out)
	}
}

func TestHousekeeping(t *testing.T) {
	t.Parallel()
	r := gittest.Repo(t, gittest.Store(t), "kept")
	w := gittest.NewWork(t)
	var ids []string
	for i := range 60 {
		ids = append(ids, w.Commit("a", strings.Repeat("a", i)))
		revisions := ids[i : i+1]
		if i > 0 {
			revisions = []string{ids[i], "^" + ids[i-1]}
		}
		store(t, r, w.Pack(revisions...))
		if due, err := r.NeedsGc(time.Now()); err != nil || due != (i >= 50) {
			t.Fatalf("with %d packs: %v, %v", i+1, due, err)
		}
	}
	set(t, r, ids[30])
	if err := os.WriteFile(filepath.Join(r.Path(), "gc.pid"), []byte("1 elsewhere\n"), 0o644); err != nil { // of one that was killed
		t.Fatal(err)
	}
	if err := r.Gc(t.Context()); err != nil {
		t.Fatal(err)
	}
	packs, err := filepath.Glob(filepath.Join(r.Path(), "objects/pack/*.pack"))
	if err != nil || len(packs) != 2 {
		t.Errorf("%d packs are left, %v", len(packs), err)
	}
	has(t, r, true, ids...) // what nothing reaches is kept for a day
	if _, err := os.Lstat(filepath.Join(r.Path(), "packed-refs")); err == nil {
		t.Error("references were packed")
	}
	if due, err := r.NeedsGc(time.Now()); err != nil || due {
		t.Errorf("at once again: %v, %v", due, err)
	}
	old := time.Now().Add(-25 * time.Hour)
	for _, name := range packs {
		mtimes := strings.TrimSuffix(name, ".pack") + ".mtimes"
		if _, err := os.Stat(mtimes); err != nil {
			continue
		}
		// As if the day had passed: the table of times is what git goes by (gitformat-pack).
		table, err := os.ReadFile(mtimes)
		if err != nil {
			t.Fatal(err)
		}
		gittest.Age(t, strings.TrimSuffix(name, ".pack"), table, old)
	}
	if due, err := r.NeedsGc(time.Now().Add(25 * time.Hour)); err != nil || !due {
		t.Errorf("a day later: %v, %v", due, err)
	}
	if err := r.Gc(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(t, r, true, ids[:31]...)
	has(t, r, false, ids[31:]...)
	gittest.Fsck(t, r.Path())
}

// TestWhatALargePackHidesGoesToo: packs that housekeeping leaves as they are may have what was let
// go of.
func TestWhatALargePackHidesGoesToo(t *testing.T) {
	t.Parallel()
	r := gittest.Repo(t, gittest.Store(t), "large")
	w := gittest.NewWork(t)
	first := w.Commit("large", gittest.Noise(17<<20))
	second := w.Commit("secret", "hunter2")
	store(t, r, w.Pack("main"))
	set(t, r, second)
	set(t, r, first)
	if err := r.Gc(t.Context()); err != nil {
		t.Fatal(err)
	}
	cruft, err := filepath.Glob(filepath.Join(r.Path(), "objects/pack/*.mtimes"))
	if err != nil || len(cruft) != 1 {
		t.Errorf("what nothing reaches is in %d packs of its own, %v", len(cruft), err)
	}
	set(t, r, second) // it is there for a day
	gittest.Fsck(t, r.Path())
}

func TestWhenHousekeepingIsDue(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, tc := range map[string]struct {
		packs         int
		cruft         bool
		changed, last time.Duration // ago
		want          bool
	}{
		"empty":                     {changed: time.Hour, last: 48 * time.Hour},
		"many packs":                {packs: 51, changed: time.Hour, last: time.Hour, want: true},
		"changed today":             {packs: 2, changed: time.Hour, last: 2 * time.Hour},
		"changed since, a day ago":  {packs: 2, changed: time.Hour, last: 25 * time.Hour, want: true},
		"not changed":               {packs: 2, changed: 48 * time.Hour, last: 25 * time.Hour},
		"what nothing reaches":      {packs: 2, cruft: true, changed: 48 * time.Hour, last: 25 * time.Hour, want: true},
		"what nothing reaches, new": {packs: 2, cruft: true, changed: 48 * time.Hour, last: time.Hour},
	} {
		if got := repository.Due(tc.packs, tc.cruft, ago(tc.changed), ago(tc.last), now); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestHousekeepingOnAFullDiskLeavesNothing, though it is tried again and again. Not parallel:
// gittest.CrampedStore.
func TestHousekeepingOnAFullDiskLeavesNothing(t *testing.T) {
	r := gittest.Repo(t, gittest.CrampedStore(t, 256), "packs")
	w := gittest.NewWork(t)
	const packs, size = 33, 16 << 10
	noise, previous := gittest.Noise(packs*size), ""
	for i := range packs {
		id := w.Commit("a", noise[i*size:(i+1)*size])
		revisions := []string{id}
		if i > 0 {
			revisions = append(revisions, "^"+previous)
		}
		if _, _, err := r.StorePack(t.Context(), bytes.NewReader(w.Pack(revisions...))); err != nil {
			t.Fatal(err)
		}
		previous = id
	}
	set(t, r, previous)
	before := files(t, filepath.Join(r.Path(), "objects", "pack"))
	for range 2 {
		if err := r.Gc(t.Context()); !repository.Unwritable(err) {
			t.Errorf("%v", err)
		}
	}
	if after := files(t, filepath.Join(r.Path(), "objects", "pack")); !slices.Equal(before, after) {
		t.Errorf("there is %q, and was %q", after, before)
	}
	has(t, r, true, previous)
}
