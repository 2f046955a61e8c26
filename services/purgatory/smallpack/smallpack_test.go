package smallpack_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril.dev/services/purgatory/repository/gittest"
	"tendril.dev/services/purgatory/smallpack"
)

// indexed lets git write packs into a folder, each with its index, and adds them to a set.
func indexed(t *testing.T, packs ...[]byte) (*smallpack.Set, error) {
	t.Helper()
	dir, set := t.TempDir(), &smallpack.Set{}
	gittest.Git(t, dir, "init", "--quiet", "--bare")
	for _, pack := range packs {
		gittest.Input(t, dir, pack, "index-pack", "--stdin")
	}
	names, err := filepath.Glob(filepath.Join(dir, "objects", "pack", "*.pack"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := set.Add(strings.TrimSuffix(name, ".pack")); err != nil {
			return set, err
		}
	}
	return set, nil
}

func ids(t *testing.T, hex ...string) (ids []smallpack.ID) {
	t.Helper()
	for _, s := range hex {
		id, ok := smallpack.ParseID(s)
		if !ok {
			t.Fatalf("%q is no id", s)
		}
		ids = append(ids, id)
	}
	return ids
}

// history has what histories have: merges, folders, deltas, tags of tags, links, programs, and a
// submodule.
func history(t *testing.T) (w *gittest.Work, tips []string) {
	t.Helper()
	w = gittest.NewWork(t)
	for i := range 12 {
		w.Commit("dir/sub/file", strings.Repeat("a line that does not change\n", 300)+fmt.Sprint(i))
	}
	w.Git("branch", "side")
	w.Commit("a", "1")
	if err := errors.Join(os.Symlink("a", filepath.Join(w.Dir, "link")), os.WriteFile(filepath.Join(w.Dir, "run"), []byte("#!/bin/sh\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	w.Git("update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("5", 40)+",module")
	w.Git("add", "link", "run")
	w.Git("commit", "--quiet", "--message", "odd entries")
	w.Git("switch", "--quiet", "side")
	w.Commit("b", "2")
	w.Git("merge", "--quiet", "--no-edit", "main")
	w.Git("tag", "--annotate", "--message", "v1", "v1")
	w.Git("tag", "--annotate", "--message", "of a tag", "v2", "v1")
	w.Git("tag", "--annotate", "--message", "of a file", "file", "HEAD:a")
	for _, name := range []string{"side", "v2", "file"} {
		tips = append(tips, w.Git("rev-parse", name))
	}
	return w, tips
}

// TestAsGitSays: git lists the same objects, and says of each that it is of the same type.
func TestAsGitSays(t *testing.T) {
	t.Parallel()
	w, tips := history(t)
	set, err := indexed(t, w.Pack(tips...))
	if err != nil {
		t.Fatal(err)
	}
	reached, err := set.Walk(ids(t, tips...))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(w.Git(append([]string{"rev-list", "--objects", "--no-object-names"}, tips...)...))
	got := make([]string, len(reached))
	for i, id := range reached {
		got[i] = id.String()
		kind, found, err := set.Kind(id)
		if says := w.Git("cat-file", "-t", id.String()); kind.String() != says || !found || err != nil {
			t.Errorf("%s is a %s, %v, %v; git says %s", id, kind, found, err, says)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("walked %d objects, git %d", len(got), len(want))
	}
	if !strings.Contains(w.Git("verify-pack", "-v", packOf(t, w, tips)), "chain length") {
		t.Error("no delta was read")
	}
}

// packOf is the path of an index with deltas of a history.
func packOf(t *testing.T, w *gittest.Work, tips []string) string {
	t.Helper()
	dir := t.TempDir()
	gittest.Git(t, dir, "init", "--quiet", "--bare")
	gittest.Input(t, dir, w.Pack(tips...), "index-pack", "--stdin")
	names, err := filepath.Glob(filepath.Join(dir, "objects", "pack", "*.idx"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	return names[0]
}

// TestSeveralPacks: what one pack has links to what another has.
func TestSeveralPacks(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	first := w.Commit("a", "1")
	second := w.Commit("b", "2")
	set, err := indexed(t, w.Pack(first), w.PackOf(strings.Fields(w.Git("rev-list", "--objects", "--no-object-names", second, "^"+first))...))
	if err != nil {
		t.Fatal(err)
	}
	if reached, err := set.Walk(ids(t, second)); err != nil || len(reached) != 6 {
		t.Errorf("%d objects, %v; want 6", len(reached), err)
	}
}

// TestGitIsToBeAsked: what is not there, is too large, or is not as git writes it.
func TestGitIsToBeAsked(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	first := w.Commit("a", "1")
	blob := w.Git("rev-parse", first+":a")
	second := w.Commit("b", "2")
	tree := func(content string) []byte { return gittest.Pack(gittest.Raw(2, int64(len(content)), []byte(content))) }
	raw := string(ids(t, blob)[0][:])
	for name, tc := range map[string]struct {
		pack []byte
		tip  string
	}{
		"a tip that is not there":     {w.Pack(first), second},
		"a parent that is not there":  {w.PackOf(second, second+"^{tree}", w.Git("rev-parse", second+":b"), blob), second},
		"a file that is not there":    {w.PackOf(first, first+"^{tree}"), first},
		"a tree that is not there":    {w.PackOf(first, blob), first},
		"a file that is a tree":       {tree("40000 a\x00" + raw), ""},
		"a tree that ends too soon":   {tree("100644 a\x00" + raw[:19]), ""},
		"a tree without an end":       {tree("100644 a"), ""},
		"an entry of no known mode":   {tree("100600 a\x00" + raw), ""},
		"a commit without a tree":     {gittest.Pack(gittest.Raw(1, 9, []byte("author a\n"))), ""},
		"a commit without an author":  {gittest.Pack(gittest.Raw(1, 46, []byte("tree "+blob+"\n"))), ""},
		"a parent that is no id":      {gittest.Pack(gittest.Raw(1, 53, []byte("tree "+blob+"\nparent\n"))), ""},
		"a tag of nothing":            {gittest.Pack(gittest.Raw(4, 9, []byte("type tag\n"))), ""},
		"a tag of a type that is not": {gittest.Pack(gittest.Raw(4, 58, []byte("object "+blob+"\ntype thing"))), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set, err := indexed(t, tc.pack)
			if err != nil {
				t.Fatal(err)
			}
			tips := set.IDs()
			if tc.tip != "" {
				tips = ids(t, strings.Fields(tc.tip)...)
			}
			if reached, err := set.Walk(tips); !errors.Is(err, smallpack.ErrNotSmall) {
				t.Errorf("walked %v, %v", reached, err)
			}
		})
	}
}

// TestBounds: packs and objects that are too large for memory.
func TestBounds(t *testing.T) {
	t.Parallel()
	noise := gittest.Noise(600 << 10)
	if _, err := indexed(t, gittest.Pack(gittest.Blob([]byte(noise)))); err != nil {
		t.Errorf("a pack of 600 KiB: %v", err)
	}
	if _, err := indexed(t, gittest.Pack(gittest.Blob([]byte(noise))), gittest.Pack(gittest.Blob([]byte(noise+"x")))); !errors.Is(err, smallpack.ErrNotSmall) {
		t.Errorf("two packs of 600 KiB: %v", err)
	}
	set, err := indexed(t, gittest.Pack(gittest.Zeros(2, 2<<20)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := set.Walk(set.IDs()); !errors.Is(err, smallpack.ErrNotSmall) {
		t.Errorf("a tree of 2 MiB of zeros: %v", err)
	}
}

// FuzzWalk: whatever packs and indexes hold, a walk ends without harm.
func FuzzWalk(f *testing.F) {
	content := []byte("tree 0123456789012345678901234567890123456789\nauthor ")
	f.Add([]byte("\xfftOc\x00\x00\x00\x02"), gittest.Pack(gittest.Raw(1, int64(len(content)), content)))
	f.Add(smallpack.Index([]smallpack.ID{{1}, {2}}, []uint32{12, 40}), gittest.Pack(gittest.Raw(2, 3, []byte("abc")), gittest.OffsetDelta(11, gittest.DeltaHeader(3, 5))))
	f.Fuzz(func(t *testing.T, index, pack []byte) {
		set, err := smallpack.Of(index, pack)
		if err != nil {
			return
		}
		if reached, err := set.Walk(set.IDs()); err == nil && len(reached) != len(set.IDs()) {
			t.Errorf("walked %d of %d objects from all of them", len(reached), len(set.IDs()))
		}
	})
}
