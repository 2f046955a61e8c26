package repository_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tendril.dev/lib/nip34"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

const main = "refs/heads/main"

// owned makes an empty repository of the n-th owner of an identifier.
func owned(t testing.TB, s *repository.Store, n int, identifier string) *repository.Repo {
	t.Helper()
	r, err := s.Repo(nip34.RepoRef{PubKey: fmt.Sprintf("%064x", n+1), Identifier: identifier})
	must(t, err)
	must(t, r.Ensure(t.Context()))
	return r
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// accept is what a release does: objects go to the pool, then references name them.
func accept(t testing.TB, r *repository.Repo, refs map[string]string) {
	t.Helper()
	var tips []string
	for _, id := range refs {
		tips = append(tips, id)
	}
	must(t, r.Promote(t.Context(), tips))
	_, err := r.SetRefs(t.Context(), refs, nil, main)
	must(t, err)
	must(t, r.DropPromoted())
}

func hasOwn(t testing.TB, r *repository.Repo) bool {
	t.Helper()
	own, err := r.HasOwnObjects()
	must(t, err)
	return own
}

// inFolder reports whether the repository, or the pool itself, has an object.
func inFolder(t testing.TB, path, id string) bool {
	t.Helper()
	_, err := gittest.Try(t, path, "cat-file", "-e", id)
	return err == nil
}

// used is what folders take up on the disk, in bytes.
func used(t testing.TB, paths ...string) int64 {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "du", append([]string{"-s", "-c", "-B1"}, paths...)...).Output()
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	n, err := strconv.ParseInt(strings.Fields(lines[len(lines)-1])[0], 10, 64)
	must(t, err)
	return n
}

// TestManyRepositoriesOfOneIdentifierLieOnce: 100 of them take hardly more room than one, and each
// can be cloned.
func TestManyRepositoriesOfOneIdentifierLieOnce(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	w.Commit("noise", gittest.Noise(4<<20))
	tip := w.Commit("a", "1")
	first := owned(t, s, 0, "x")
	root := filepath.Dir(filepath.Dir(first.Path()))
	empty := used(t, root)
	store(t, first, w.Pack("main"))
	accept(t, first, refs{main: tip})
	one := used(t, root)
	frame := empty // what each further repository takes up without any objects, its references included
	all := []*repository.Repo{first}
	for n := 1; n < 100; n++ {
		r := owned(t, s, n, "x")
		accept(t, r, refs{main: tip})
		all = append(all, r)
	}
	if hundred := used(t, root); hundred-99*frame > one+one/10 {
		t.Errorf("one repository takes up %d bytes, 100 of them %d, of which %d is their folders", one, hundred, 99*frame)
	}
	for n, r := range all {
		if hasOwn(t, r) {
			t.Fatalf("%s has objects of its own", r.Ref())
		}
		if n%20 == 0 {
			gittest.Fsck(t, r.Path())
		}
	}
	gittest.Fsck(t, first.Pool().Path())
	clone := filepath.Join(t.TempDir(), "clone")
	gittest.Git(t, t.TempDir(), "clone", "--quiet", "--no-local", all[99].Path(), clone)
	if got := gittest.Git(t, clone, "rev-parse", "HEAD"); got != tip {
		t.Errorf("cloned %s, want %s", got, tip)
	}
}

// TestDataOfTheRepositoryItself: what others have brought to the pool is no data of a repository.
func TestDataOfTheRepositoryItself(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	tip := w.Commit("a", "1")
	mine, other := owned(t, s, 0, "x"), owned(t, s, 1, "x")
	store(t, mine, w.Pack("main"))
	for step, want := range []bool{true, true} {
		if got, err := mine.HasData(t.Context()); err != nil || got != want {
			t.Errorf("step %d: has data: %v (%v)", step, got, err)
		}
		accept(t, mine, refs{main: tip})
	}
	if got, err := other.HasData(t.Context()); err != nil || got {
		t.Errorf("a repository has data because the pool has some (%v)", err)
	}
	if missing, err := other.Missing(t.Context(), []string{tip}); err != nil || len(missing) != 0 {
		t.Errorf("it does not see the pool: %v (%v)", missing, err)
	}
}

// TestOnlyWhatIsProvenEntersThePool: what lies beside it in the repository, pushed by a stranger,
// stays out, and goes with its reference; the pool is not touched for it.
func TestOnlyWhatIsProvenEntersThePool(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	tip := w.Commit("a", "1")
	w.Git("checkout", "--quiet", "-b", "pending")
	pending := w.Commit("b", gittest.Noise(1<<20))
	r := owned(t, s, 0, "x")
	store(t, r, w.Pack("main", "pending"))
	event := "refs/nostr/" + strings.Repeat("e", 64)
	must(t, r.SetRef(t.Context(), event, pending))
	accept(t, r, refs{main: tip})
	if pool := r.Pool().Path(); !inFolder(t, pool, tip) || inFolder(t, pool, pending) {
		t.Errorf("in the pool: %v, %v", inFolder(t, pool, tip), inFolder(t, pool, pending))
	}
	if pruned := gittest.Prune(t, r.Pool()); pruned.Repacked {
		t.Error("nothing has gone, and the pool was repacked")
	}
	if !inFolder(t, r.Path(), pending) {
		t.Fatal("what a reference names was pruned")
	}
	gittest.Fsck(t, r.Path())
	must(t, r.DeleteRef(t.Context(), event))
	if pruned := gittest.Prune(t, r.Pool()); pruned.Repacked {
		t.Error("the pool was repacked for what was never in it")
	}
	if inFolder(t, r.Path(), pending) || hasOwn(t, r) {
		t.Error("the pushed bytes are still there")
	}
	gittest.Fsck(t, r.Path())
}

// TestPruneFreesWhatNothingNeeds, and nothing else; where references only went on, it does not even
// repack.
func TestPruneFreesWhatNothingNeeds(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	first := w.Commit("a", "1")
	w.Git("checkout", "--quiet", "-b", "big")
	big := w.Commit("b", gittest.Noise(1<<20))
	w.Git("checkout", "--quiet", "main")
	second := w.Commit("a", "2")
	mine, other := owned(t, s, 0, "x"), owned(t, s, 1, "x")
	store(t, mine, w.Pack(first, "big"))
	accept(t, mine, refs{main: first, "refs/heads/big": big})
	accept(t, other, refs{main: first, "refs/heads/big": big})
	store(t, mine, w.Pack(second, "^"+first))
	accept(t, mine, refs{main: second, "refs/heads/big": big})
	if pruned := gittest.Prune(t, mine.Pool()); !pruned.Looked || pruned.Repacked {
		t.Errorf("a branch went on: %+v", pruned)
	}
	if mine.Pool().Marked() {
		t.Error("still marked")
	}
	accept(t, mine, refs{main: second})
	if pruned := gittest.Prune(t, mine.Pool()); pruned.Repacked || !inFolder(t, other.Path(), big) {
		t.Errorf("another repository needs it: %+v", pruned)
	}
	accept(t, other, refs{main: second})
	before := used(t, mine.Pool().Path())
	pruned := gittest.Prune(t, mine.Pool())
	if after := used(t, mine.Pool().Path()); !pruned.Repacked || pruned.Freed < 1<<20 || before-after < 1<<20 {
		t.Errorf("%+v; %d bytes before, %d after", pruned, before, after)
	}
	if inFolder(t, mine.Path(), big) || !inFolder(t, mine.Path(), second) {
		t.Error("the wrong objects have gone")
	}
	for _, r := range []*repository.Repo{mine, other} {
		gittest.Fsck(t, r.Path())
	}
	if pruned := gittest.Prune(t, mine.Pool()); pruned.Looked {
		t.Errorf("pruned again: %+v", pruned)
	}
}

// TestMarksOfWhatIsNamedGo: what was marked before a state was applied is named by its references
// then. Where anything else may be in the way, the mark stays for a prune.
func TestMarksOfWhatIsNamedGo(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	first := w.Commit("a", "1")
	second := w.Commit("a", "2")
	for name, tc := range map[string]struct {
		then func(t *testing.T, r *repository.Repo)
		gone bool
	}{
		"named": {then: func(*testing.T, *repository.Repo) {}, gone: true},
		"a branch goes on": {then: func(t *testing.T, r *repository.Repo) {
			store(t, r, w.Pack(second, "^"+first))
			accept(t, r, refs{main: second})
		}},
		"a branch goes":            {then: func(t *testing.T, r *repository.Repo) { accept(t, r, nil) }},
		"another is marked":        {then: func(t *testing.T, r *repository.Repo) { must(t, r.Pool().Orphan(second)) }},
		"anything may be there":    {then: func(t *testing.T, r *repository.Repo) { write(t, r.Pool(), "orphans", "*\n") }},
		"objects of its own":       {then: func(t *testing.T, r *repository.Repo) { must(t, r.Pool().OrphanOwn()) }},
		"own ones are not noted":   {then: func(t *testing.T, r *repository.Repo) { store(t, r, w.PackOf(w.Git("rev-parse", second+":a"))) }},
		"a prune was cut off":      {then: func(t *testing.T, r *repository.Repo) { write(t, r.Pool(), "orphans.pruning", first+"\n") }},
		"the repository went away": {then: func(t *testing.T, r *repository.Repo) { must(t, r.Remove(t.Context())) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := owned(t, s, 0, strings.ReplaceAll(name, " ", "-"))
			store(t, r, w.Pack(first))
			accept(t, r, refs{main: first})
			tc.then(t, r)
			elsewhere := owned(t, s, 0, "not-"+strings.ReplaceAll(name, " ", "-"))
			store(t, elsewhere, w.Pack("main"))
			accept(t, elsewhere, refs{main: first, "refs/heads/other": second})
			gone, err := r.Pool().Unmark(t.Context(), []*repository.Repo{r, elsewhere})
			if gone != tc.gone || err != nil || r.Pool().Marked() == gone {
				t.Errorf("gone %v, %v; marked %v", gone, err, r.Pool().Marked())
			}
		})
	}
}

// write writes a file of a pool.
func write(t *testing.T, p *repository.Pool, name, content string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(p.Path(), name), []byte(content), 0o600))
}

// TestRemovingOneHarmsNoOther, and with the last the pool goes.
func TestRemovingOneHarmsNoOther(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	shared := w.Commit("a", "1")
	own := w.Commit("b", gittest.Noise(1<<20))
	mine, other := owned(t, s, 0, "x"), owned(t, s, 1, "x")
	store(t, mine, w.Pack("main"))
	accept(t, mine, refs{main: own})
	accept(t, other, refs{main: shared})
	must(t, mine.Remove(t.Context()))
	gittest.Fsck(t, other.Path())
	pruned := gittest.Prune(t, other.Pool())
	if !pruned.Repacked || inFolder(t, other.Path(), own) || !inFolder(t, other.Path(), shared) {
		t.Errorf("%+v", pruned)
	}
	gittest.Fsck(t, other.Path())
	must(t, other.Remove(t.Context()))
	if pruned := gittest.Prune(t, other.Pool()); !pruned.Removed || other.Pool().Exists() {
		t.Errorf("%+v", pruned)
	}
}

// TestReferencesWithoutAnEventKeepWhatTheyStandOn: a pushed commit may link to what has left the
// branches meanwhile.
func TestReferencesWithoutAnEventKeepWhatTheyStandOn(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	base := w.Commit("a", "1")
	old := w.Commit("b", "2")
	pending := w.Commit("c", "3")
	r := owned(t, s, 0, "x")
	store(t, r, w.Pack(old))
	accept(t, r, refs{main: old})
	store(t, r, w.Pack(pending, "^"+old))
	event := "refs/nostr/" + strings.Repeat("e", 64)
	must(t, r.SetRef(t.Context(), event, pending))
	accept(t, r, refs{main: base})
	for range 2 {
		if pruned := gittest.Prune(t, r.Pool()); pruned.Repacked || !inFolder(t, r.Path(), old) {
			t.Errorf("%+v: what a reference stands on is there: %v", pruned, inFolder(t, r.Path(), old))
		}
		gittest.Fsck(t, r.Path())
	}
	must(t, r.DeleteRef(t.Context(), event))
	if pruned := gittest.Prune(t, r.Pool()); !pruned.Repacked || inFolder(t, r.Path(), old) || inFolder(t, r.Path(), pending) {
		t.Errorf("%+v: it is still there when nothing stands on it", pruned)
	}
	gittest.Fsck(t, r.Path())
}

// TestWantedObjectsStay until nobody wants them: a hunt brings its parts one after the other.
func TestWantedObjectsStay(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	part := w.Commit("a", "1")
	w.Git("checkout", "--quiet", "--orphan", "junk")
	junk := w.Commit("b", gittest.Noise(1<<20))
	r := owned(t, s, 0, "x")
	store(t, r, w.Pack("main", "junk"))
	must(t, r.Pool().OrphanOwn())
	gittest.Prune(t, r.Pool(), part, strings.Repeat("7", 40))
	if !inFolder(t, r.Path(), part) || inFolder(t, r.Path(), junk) {
		t.Errorf("there: the wanted part %v, what came with it %v", inFolder(t, r.Path(), part), inFolder(t, r.Path(), junk))
	}
	must(t, r.Pool().OrphanOwn())
	gittest.Prune(t, r.Pool())
	if hasOwn(t, r) {
		t.Error("what nobody wants is still there")
	}
}

// TestBrokenLeftoversAreNoData: objects of which a part has gone are not taken for whole, and go.
func TestBrokenLeftoversAreNoData(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	base := w.Commit("a", "1")
	tip := w.Commit("a", "2")
	r := owned(t, s, 0, "x")
	// As a fetch leaves it that was checked against objects which were pruned a moment later.
	folder := filepath.Join(r.Path(), "objects", "pack")
	objects := tip + "\n" + w.Git("rev-parse", tip+"^{tree}", tip+":a") + "\n"
	gittest.Input(t, w.Dir, []byte(objects), "pack-objects", "-q", filepath.Join(folder, "pack"))
	if err := r.Promote(t.Context(), []string{tip}); !errors.Is(err, repository.ErrBroken) {
		t.Errorf("promoting what is broken: %v", err)
	}
	must(t, r.Pool().OrphanOwn())
	gittest.Prune(t, r.Pool(), tip)
	if missing, err := r.Missing(t.Context(), []string{tip}); err != nil || !slices.Equal(missing, []string{tip}) {
		t.Errorf("missing %v (%v): it is not fetched again", missing, err)
	}
	store(t, r, w.Pack("main"))
	accept(t, r, refs{main: tip})
	if !inFolder(t, r.Path(), base) {
		t.Error("it is not whole")
	}
}

// TestFoldersFromBeforePools: a repository made by an older version is brought into the pool as it
// is used.
func TestFoldersFromBeforePools(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	w.Commit("a", "1")
	w.Commit("a", "2")
	r, err := s.Repo(nip34.RepoRef{PubKey: gittest.Owner, Identifier: "x"})
	must(t, err)
	must(t, os.MkdirAll(filepath.Dir(r.Path()), 0o755))
	gittest.Git(t, t.TempDir(), "clone", "--quiet", "--bare", "--no-local", w.Dir, r.Path())
	tip := w.Commit("a", "3")
	w.Git("push", "--quiet", r.Path(), "HEAD:refs/heads/main") // as loose objects
	if _, err := os.Stat(filepath.Join(r.Path(), "objects", "info", "alternates")); err == nil {
		t.Fatal("it borrows already")
	}
	must(t, r.Ensure(t.Context()))
	must(t, r.Ensure(t.Context()))
	gittest.Fsck(t, r.Path())
	must(t, r.Promote(t.Context(), []string{tip}))
	must(t, r.DropPromoted())
	if hasOwn(t, r) || !inFolder(t, r.Pool().Path(), tip) {
		t.Error("its objects are not in the pool")
	}
	gittest.Fsck(t, r.Path())
}

// TestTheRootCanBeMoved: repositories find their pool by a relative path.
func TestTheRootCanBeMoved(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	tip := w.Commit("a", "1")
	r := owned(t, s, 0, "🌱 a/b")
	store(t, r, w.Pack("main"))
	accept(t, r, refs{main: tip})
	root := filepath.Dir(filepath.Dir(r.Path()))
	moved := filepath.Join(t.TempDir(), "elsewhere")
	must(t, os.Rename(root, moved))
	path, err := filepath.Rel(root, r.Path())
	must(t, err)
	gittest.Fsck(t, filepath.Join(moved, path))
}

var errKilled = errors.New("killed")

// TestKilledAtEveryStep: whatever step of promoting, pruning and slimming is the last that a
// process does, every repository is whole at once, and the next process brings it to the end.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	first := w.Commit("a", "1")
	w.Git("checkout", "--quiet", "-b", "gone")
	gone := w.Commit("b", gittest.Noise(1<<16))
	w.Git("checkout", "--quiet", "main")
	second := w.Commit("a", "2")
	w.Git("checkout", "--quiet", "-b", "pending")
	pending := w.Commit("c", "3")
	event := "refs/nostr/" + strings.Repeat("e", 64)
	life := func(t *testing.T, s *repository.Store) error {
		ctx := t.Context()
		mine, other := owned(t, s, 0, "x"), owned(t, s, 1, "x")
		bring := func(r *repository.Repo, pack []byte, tips ...string) error {
			if missing, err := r.Missing(ctx, tips); err != nil || len(missing) == 0 {
				return err
			}
			store(t, r, pack)
			return nil
		}
		apply := func(r *repository.Repo, refs map[string]string) error {
			var tips []string
			for _, id := range refs {
				tips = append(tips, id)
			}
			if err := r.Promote(ctx, tips); err != nil {
				return err
			}
			if _, err := r.SetRefs(ctx, refs, nil, main); err != nil {
				return err
			}
			return r.DropPromoted()
		}
		prune := func() error {
			_, err := mine.Pool().Prune(ctx, repository.Pruning{
				Lock:   func(context.Context) (func(), error) { return func() {}, nil },
				Wanted: func(context.Context) ([]string, error) { return nil, nil },
				Forget: func() {},
			})
			return err
		}
		for _, step := range []func() error{
			func() error { return bring(mine, w.Pack(first, gone), first, gone) },
			func() error { return apply(mine, refs{main: first, "refs/heads/gone": gone}) },
			func() error { return apply(other, refs{main: first}) },
			func() error { return bring(mine, w.Pack(second, pending, "^"+first), second, pending) },
			func() error { return mine.SetRef(ctx, event, pending) },
			func() error { return apply(mine, refs{main: second}) },
			prune,
			func() error { return mine.DeleteRef(ctx, event) },
			prune,
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	}
	for last := 0; ; last++ {
		s, steps, name := gittest.Store(t), 0, ""
		s.Fail(func(step string) error {
			if steps++; steps == last+1 {
				name = step
			}
			if steps > last {
				return errKilled
			}
			return nil
		})
		err := life(t, s)
		if name != "" && !errors.Is(err, errKilled) {
			t.Fatalf("killed before %q: %v", name, err)
		}
		s.Fail(nil)
		for n := range 2 {
			gittest.Fsck(t, owned(t, s, n, "x").Path())
		}
		must(t, life(t, s))
		mine, other := owned(t, s, 0, "x"), owned(t, s, 1, "x")
		for _, path := range []string{mine.Path(), other.Path(), mine.Pool().Path()} {
			gittest.Fsck(t, path)
			if inFolder(t, path, gone) || inFolder(t, path, pending) || !inFolder(t, path, second) {
				t.Errorf("killed before %q: in the end there are %v, %v, %v", name, inFolder(t, path, gone), inFolder(t, path, pending), inFolder(t, path, second))
			}
		}
		if hasOwn(t, mine) || mine.Pool().Marked() || t.Failed() {
			t.Fatalf("killed before %q: own objects %v, marked %v", name, hasOwn(t, mine), mine.Pool().Marked())
		}
		if name == "" {
			if last < 12 {
				t.Errorf("only %d steps", last)
			}
			return // it came to its end
		}
	}
}

// TestAFetchWhileARepositoryIsCleared: what a reference needs stays, also where the pack that is
// made for it is one that is there already, and a fetch shows another one in that moment.
func TestAFetchWhileARepositoryIsCleared(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	pending := w.Commit("a", "1")
	r := owned(t, s, 0, "x")
	needless := func(n int) {
		t.Helper()
		store(t, r, gittest.Pack(gittest.Blob([]byte(fmt.Sprint("needless ", n)))))
	}
	store(t, r, w.Pack("main"))
	must(t, r.SetRef(t.Context(), "refs/nostr/"+strings.Repeat("e", 64), pending))
	needless(1)
	must(t, r.Pool().OrphanOwn())
	gittest.Prune(t, r.Pool()) // from here on the objects lie as git packs them
	needless(2)
	must(t, r.Pool().OrphanOwn())
	fetched := false
	s.Fail(func(step string) error {
		if step == "show a pack" && !fetched {
			fetched = true
			needless(3)
		}
		return nil
	})
	gittest.Prune(t, r.Pool())
	if !fetched {
		t.Fatal("nothing was packed")
	}
	has(t, r, true, pending)
	has(t, r, false, gittest.BlobID([]byte("needless 2")))
	gittest.Fsck(t, r.Path())
}

// TestTidyBesideAPool: many pushes that wait for their events, some of whose packs are in the pool
// too, are brought together.
func TestTidyBesideAPool(t *testing.T) {
	t.Parallel()
	s, w := gittest.Store(t), gittest.NewWork(t)
	tip := w.Commit("noise", gittest.Noise(1<<20))
	r := owned(t, s, 0, "x")
	store(t, r, w.Pack("main"))
	accept(t, r, refs{main: tip})
	var pending []string
	for n := range 40 {
		w.Git("checkout", "--quiet", "-B", "pending", "main")
		pending = append(pending, w.Commit("b", fmt.Sprint("pending ", n)))
		store(t, r, w.Pack("pending", "^main"))
		must(t, r.SetRef(t.Context(), fmt.Sprintf("refs/nostr/%064x", n), pending[n]))
	}
	for _, id := range pending[:20] {
		must(t, r.Promote(t.Context(), []string{id}))
	}
	if done, err := r.Tidy(t.Context()); err != nil || !done {
		t.Fatalf("tidied: %v (%v)", done, err)
	}
	packs, err := filepath.Glob(filepath.Join(r.Path(), "objects", "pack", "*.idx"))
	must(t, err)
	if len(packs) > 9 {
		t.Errorf("%d packs are left", len(packs))
	}
	has(t, r, true, pending...)
	gittest.Fsck(t, r.Path())
	gittest.Prune(t, r.Pool())
	has(t, r, true, pending...)
	gittest.Fsck(t, r.Path())
}
