package repository_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

func store(t testing.TB, r *repository.Repo, pack []byte) {
	t.Helper()
	if n, _, err := r.StorePack(t.Context(), bytes.NewReader(pack)); err != nil || n != int64(len(pack)) {
		t.Fatalf("stored %d of %d bytes: %v", n, len(pack), err)
	}
}

// has fails the test unless exactly the objects that are wanted are there.
func has(t testing.TB, r *repository.Repo, want bool, ids ...string) {
	t.Helper()
	missing, err := r.Missing(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	if want && len(missing) > 0 {
		t.Errorf("missing: %q", missing)
	}
	if !want && len(missing) < len(ids) {
		t.Errorf("of %q only %q are missing", ids, missing)
	}
}

// untouched fails the test if anything came into the repository.
func untouched(t testing.TB, r *repository.Repo) {
	t.Helper()
	if data, err := r.HasData(t.Context()); err != nil || data {
		t.Errorf("has data: %v, %v", data, err)
	}
	for _, folder := range []string{"objects", "objects/pack"} {
		entries, err := os.ReadDir(filepath.Join(r.Path(), folder))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if name := entry.Name(); name != "pack" && name != "info" {
				t.Errorf("left behind in %s: %s", folder, name)
			}
		}
	}
}

func TestStoredObjectsAreThere(t *testing.T) {
	t.Parallel()
	r := gittest.Repo(t, gittest.Store(t), "objects")
	untouched(t, r)
	w := gittest.NewWork(t)
	first := w.Commit("dir/a", strings.Repeat("line\n", 1000))
	second := w.Commit("dir/a", strings.Repeat("line\n", 1000)+"more\n")
	w.Git("tag", "--annotate", "--message", "v1", "v1")
	tag, tree, blob := w.Git("rev-parse", "v1"), w.Git("rev-parse", "main^{tree}"), w.Git("rev-parse", "main:dir/a")

	n, objects, err := r.StorePack(t.Context(), bytes.NewReader(w.Pack(first)))
	if err != nil || objects != 4 || n == 0 {
		t.Fatalf("stored %d objects in %d bytes: %v", objects, n, err)
	}
	has(t, r, true, first)
	has(t, r, false, second, tag, tree, blob)
	store(t, r, w.Pack(second, tag, "^"+first)) // thin: its deltas stand on what is there
	has(t, r, true, first, second, tag, tree, blob)

	types, err := r.Types(t.Context(), []string{first, tag, tree, blob, strings.Repeat("1", 40)})
	if err != nil {
		t.Fatal(err)
	}
	if len(types) != 4 || types[first] != "commit" || types[tag] != "tag" || types[tree] != "tree" || types[blob] != "blob" {
		t.Errorf("types %v", types)
	}
	if data, err := r.HasData(t.Context()); err != nil || !data {
		t.Errorf("has data: %v, %v", data, err)
	}
	gittest.Git(t, r.Path(), "fsck", "--full", "--strict")
}

func TestMissing(t *testing.T) {
	t.Parallel()
	r := gittest.Repo(t, gittest.Store(t), "missing")
	w := gittest.NewWork(t)
	id := w.Commit("a", "a")
	store(t, r, w.Pack("main"))
	none, long := strings.Repeat("1", 40), strings.Repeat("2", 64)
	// A branch whose name looks like an object id must not be taken for one.
	if _, err := r.SetRefs(t.Context(), map[string]string{"refs/heads/" + long: id, "refs/heads/" + none: id}, nil, ""); err != nil {
		t.Fatal(err)
	}
	missing, err := r.Missing(t.Context(), []string{long, id, none, none})
	if err != nil || !slices.Equal(missing, []string{long, none}) {
		t.Errorf("missing %q, %v", missing, err)
	}
	for _, bad := range []string{"", "HEAD", "--help", "main", id + "\n" + none, strings.ToUpper(id), strings.Repeat("0", 40), id[:39]} {
		if _, err := r.Missing(t.Context(), []string{bad}); err == nil {
			t.Errorf("%q was taken for an object id", bad)
		}
	}
	if missing, err := r.Missing(t.Context(), nil); err != nil || missing != nil {
		t.Errorf("of nothing %q are missing, %v", missing, err)
	}
}

func TestBadPacksAreRefusedAndNothingIsSeenOfThem(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	w.Commit("dir/a", "a")
	commit := w.Commit("dir/b", "b")
	tree, blob := w.Git("rev-parse", "main^{tree}"), w.Git("rev-parse", "main:dir/b")
	whole := w.Pack("main")
	damaged := bytes.Clone(whole)
	damaged[len(damaged)/2] ^= 0x40
	faulty := strings.TrimSpace(string(gittest.Input(t, w.Dir, []byte("tree "+tree+"\nauthor nobody\n\nx\n"),
		"hash-object", "-t", "commit", "-w", "--stdin", "--literally")))
	dotgit := strings.TrimSpace(string(gittest.Input(t, w.Dir, []byte("100644 blob "+blob+"\t.git\n"), "mktree")))
	link := strings.TrimSpace(string(gittest.Input(t, w.Dir, []byte("100644 blob "+strings.Repeat("3", 40)+"\tgone\n"), "mktree", "--missing")))
	for name, pack := range map[string][]byte{
		"nothing":                {},
		"half a header":          whole[:7],
		"no pack":                []byte("<html><body>not found</body></html>"),
		"version 9":              append([]byte("PACK\x00\x00\x00\x09"), whole[8:]...),
		"four billion objects":   append([]byte("PACK\x00\x00\x00\x02\xff\xff\xff\xff"), whole[12:]...),
		"truncated":              whole[:len(whole)-30],
		"damaged":                damaged,
		"commit without tree":    w.PackOf(commit),
		"commit without parent":  w.PackOf(commit, tree, w.Git("rev-parse", "main:dir"), blob, w.Git("rev-parse", "main:dir/a")),
		"tree without blob":      w.PackOf(link),
		"tree with .git":         w.PackOf(dotgit, blob),
		"commit without sense":   w.PackOf(faulty, tree, w.Git("rev-parse", "main:dir"), blob, w.Git("rev-parse", "main:dir/a")),
		"deltas against nowhere": thinPack(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := gittest.Repo(t, gittest.Store(t), "bad")
			_, _, err := r.StorePack(t.Context(), bytes.NewReader(pack))
			if !errors.Is(err, repository.ErrBadPack) {
				t.Errorf("error %v", err)
			}
			if err != nil && (len(err.Error()) > 6000 || strings.Contains(err.Error(), r.Path())) {
				t.Errorf("the error tells too much: %v", err)
			}
			has(t, r, false, commit, tree, blob, link, dotgit, faulty)
			untouched(t, r)
		})
	}
}

// thinPack is a pack that stands on objects which its reader does not have.
func thinPack(t *testing.T) []byte {
	w := gittest.NewWork(t)
	first := w.Commit("a", strings.Repeat("a line of text\n", 2000))
	w.Commit("a", strings.Repeat("a line of text\n", 2000)+"the last\n")
	return w.Pack("main", "^"+first)
}

func TestOldFaultsAreForgiven(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	tree := w.Git("rev-parse", "main^{tree}")
	old := strings.TrimSpace(string(gittest.Input(t, w.Dir,
		[]byte("tree "+tree+"\nauthor A <a@example.com> 1 +051800\ncommitter A <a@example.com>1 +0000\n\nx\n"),
		"hash-object", "-t", "commit", "-w", "--stdin", "--literally")))
	r := gittest.Repo(t, gittest.Store(t), "old")
	store(t, r, w.Pack(old))
	has(t, r, true, old)
}

func TestEmptyPackChangesNothing(t *testing.T) {
	t.Parallel()
	r := gittest.Repo(t, gittest.Store(t), "empty")
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	if _, objects, err := r.StorePack(t.Context(), bytes.NewReader(w.Pack("main", "^main"))); err != nil || objects != 0 {
		t.Fatalf("%d objects, %v", objects, err)
	}
	untouched(t, r)
}

func TestSubmodulesNeedNoObjects(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	w.Git("update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("4", 40)+",sub")
	w.Git("commit", "--quiet", "--message", "submodule")
	r := gittest.Repo(t, gittest.Store(t), "submodule")
	store(t, r, w.Pack("main"))
	has(t, r, true, w.Git("rev-parse", "main"))
}

func TestOnlyPacksWithSomethingThatIsWantedAreKept(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	first := w.Commit("a", strings.Repeat("line\n", 1000))
	second := w.Commit("a", strings.Repeat("line\n", 1000)+"more\n")
	w.Git("checkout", "--quiet", "--orphan", "other")
	other := w.Commit("b", "b")
	none := strings.Repeat("1", 40)

	r := gittest.Repo(t, gittest.Store(t), "wanted")
	for _, wanted := range [][]string{nil, {none}, {none, second, strings.Repeat("2", 64)}} {
		n, objects, err := r.StoreWanted(t.Context(), bytes.NewReader(w.Pack(first)), wanted)
		if !errors.Is(err, repository.ErrUnwanted) || n == 0 || objects != 0 {
			t.Errorf("of %q came %d objects in %d bytes: %v", wanted, objects, n, err)
		}
		untouched(t, r)
	}
	if _, objects, err := r.StoreWanted(t.Context(), bytes.NewReader(w.Pack(first)), []string{none, first}); err != nil || objects != 3 {
		t.Errorf("%d objects, %v", objects, err)
	}
	// What was there before does not speak for a pack that comes later, and a thin one is looked
	// into as it is.
	if _, _, err := r.StoreWanted(t.Context(), bytes.NewReader(w.Pack(other)), []string{first, second}); !errors.Is(err, repository.ErrUnwanted) {
		t.Errorf("error %v", err)
	}
	has(t, r, false, other)
	if _, _, err := r.StoreWanted(t.Context(), bytes.NewReader(w.Pack(second, "^"+first, other)), []string{none, second}); err != nil {
		t.Error(err)
	}
	has(t, r, true, first, second, other)
	gittest.Git(t, r.Path(), "fsck", "--full", "--strict")
}

var errBroken = errors.New("the line went dead")

func TestBrokenAndCanceledStreamsLeaveNothing(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	commit := w.Commit("a", strings.Repeat("abc", 1000))
	pack := w.Pack("main")

	r := gittest.Repo(t, gittest.Store(t), "broken")
	_, _, err := r.StorePack(t.Context(), io.MultiReader(bytes.NewReader(pack[:50]), failing{errBroken}))
	if !errors.Is(err, errBroken) {
		t.Errorf("error %v", err)
	}
	untouched(t, r)

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	stalled := &stalling{first: bytes.NewReader(pack[:50]), until: ctx.Done()}
	_, _, err = r.StorePack(ctx, stalled)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	has(t, r, false, commit)
	untouched(t, r)
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// stalling gives a beginning, and then nothing until it is told to end.
type stalling struct {
	first io.Reader
	until <-chan struct{}
}

func (s *stalling) Read(p []byte) (int, error) {
	if n, err := s.first.Read(p); err == nil {
		return n, nil
	}
	<-s.until
	return 0, context.DeadlineExceeded
}

// TestPackWhoseIndexCannotFollowIsTakenBack: it would lie there unseen.
func TestPackWhoseIndexCannotFollowIsTakenBack(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	w := gittest.NewWork(t)
	id := w.Commit("a", "a")
	pack := w.Pack("main")
	model := gittest.Repo(t, s, "model")
	store(t, model, pack)
	index, err := filepath.Glob(filepath.Join(model.Path(), "objects/pack/*.idx"))
	if err != nil || len(index) != 1 {
		t.Fatalf("%q, %v", index, err)
	}
	r := gittest.Repo(t, s, "blocked")
	block := filepath.Join(r.Path(), "objects/pack", filepath.Base(index[0]))
	if err := os.MkdirAll(block, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.StorePack(t.Context(), bytes.NewReader(pack)); err == nil {
		t.Fatal("stored")
	}
	if err := os.Remove(block); err != nil {
		t.Fatal(err)
	}
	untouched(t, r)
	store(t, r, pack)
	store(t, r, pack) // what is there already stays
	has(t, r, true, id)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
