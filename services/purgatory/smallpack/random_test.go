package smallpack_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril.dev/services/purgatory/repository/gittest"
	"tendril.dev/services/purgatory/smallpack"
)

// stream writes a random history as git fast-import reads it: merges, folders, links, programs,
// submodules, files that go and come again, tags of commits, of files, and of tags.
func stream(r *rand.Rand) string {
	var b strings.Builder
	who := "a <a@example.org> 1700000000 +0000\ndata 0\n"
	const blobs, mark = 8, ":%d\n"
	for n := range blobs {
		content := strings.Repeat(fmt.Sprintf("line %d\n", n), 1+r.IntN(40))
		fmt.Fprintf(&b, "blob\nmark "+mark+"data %d\n%s\n", n+1, len(content), content)
	}
	commits := 1 + r.IntN(12)
	for n := range commits {
		fmt.Fprintf(&b, "commit refs/heads/b%d\nmark "+mark+"committer %s", r.IntN(3), 100+n, who)
		if n > 0 {
			fmt.Fprintf(&b, "from "+mark, 100+r.IntN(n))
			for range r.IntN(3) {
				fmt.Fprintf(&b, "merge "+mark, 100+r.IntN(n))
			}
		}
		for range 1 + r.IntN(4) {
			path := []string{"a", "b", "c/d", "c/e", "f/g/h", "f/g/i"}[r.IntN(6)]
			switch mode := []string{"100644", "100755", "120000", "160000", ""}[r.IntN(5)]; mode {
			case "":
				fmt.Fprintf(&b, "D %s\n", path)
			case "160000":
				fmt.Fprintf(&b, "M 160000 %040d module%d\n", 1+r.IntN(9), r.IntN(2))
			default:
				fmt.Fprintf(&b, "M %s :%d %s\n", mode, 1+r.IntN(blobs), path)
			}
		}
	}
	for n := range r.IntN(4) {
		of := 100 + r.IntN(commits)
		if r.IntN(3) == 0 {
			of = 1 + r.IntN(blobs)
		}
		if n > 0 && r.IntN(2) == 0 {
			of = 200 + n - 1
		}
		fmt.Fprintf(&b, "tag t%d\nmark "+mark+"from "+mark+"tagger %s", n, 200+n, of, who)
	}
	return b.String()
}

// TestRandomHistories: in some packs, which may lack something, and have the same thing twice. A
// walk that ends well is git's, and it does where nothing lacks. (Where something does git may end
// well alone: it knows the empty tree by itself.)
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			whole, some := t.TempDir(), t.TempDir()
			gittest.Git(t, whole, "init", "--quiet", "--bare")
			gittest.Git(t, some, "init", "--quiet", "--bare")
			gittest.Input(t, whole, []byte(stream(r)), "fast-import", "--quiet", "--force")
			gittest.Git(t, whole, "update-ref", "refs/tags/tree", gittest.Git(t, whole, "rev-parse", gittest.Git(t, whole, "rev-list", "--all", "--max-count=1")+"^{tree}"))
			all := strings.Fields(gittest.Git(t, whole, "rev-list", "--objects", "--no-object-names", "--all"))
			packs := make([][]string, 1+r.IntN(3))
			lacks := seed%2 == 1
			for _, id := range all {
				if lacks && r.IntN(len(all)) < 2 {
					continue
				}
				for again := true; again; again = r.IntN(8) == 0 {
					n := r.IntN(len(packs))
					packs[n] = append(packs[n], id)
				}
			}
			for _, ids := range packs {
				if len(ids) == 0 {
					continue
				}
				pack := gittest.Input(t, whole, []byte(strings.Join(ids, "\n")+"\n"), "pack-objects", "--stdout", "--quiet")
				gittest.Input(t, some, pack, "index-pack", "--stdin")
			}
			set := &smallpack.Set{}
			names, err := filepath.Glob(filepath.Join(some, "objects", "pack", "*.pack"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if err := set.Add(strings.TrimSuffix(name, ".pack")); err != nil {
					t.Fatal(err)
				}
			}
			tips := strings.Fields(gittest.Git(t, whole, "for-each-ref", "--format=%(objectname)"))
			for _, tip := range append(tips, all[r.IntN(len(all))]) {
				sameWalk(t, set, some, lacks, tip)
			}
			sameWalk(t, set, some, lacks, tips...)
		})
	}
}

// sameWalk compares a walk with git's in a repository that has the same packs.
func sameWalk(t *testing.T, set *smallpack.Set, dir string, lacks bool, tips ...string) {
	t.Helper()
	reached, err := set.Walk(ids(t, tips...))
	said, failed := gittest.Try(t, dir, append([]string{"rev-list", "--objects", "--no-object-names"}, tips...)...)
	if err == nil && failed != nil || err != nil && !lacks {
		t.Errorf("from %s: %v; git: %v", tips, err, failed)
	}
	if err != nil || failed != nil {
		return
	}
	want, got := strings.Fields(said), make([]string, len(reached))
	for i, id := range reached {
		got[i] = id.String()
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("from %s: walked %d objects, git %d", tips, len(got), len(want))
	}
}
