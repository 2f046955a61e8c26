package repository_test

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture/gittest"
)

// has fails the test unless all of the objects are there, or none of them.
func has(t testing.TB, r *repository.Locked, want bool, ids ...string) {
	t.Helper()
	missing, err := r.Missing(t.Context(), ids)
	if err != nil || want && len(missing) > 0 || !want && len(missing) < len(ids) {
		t.Errorf("of %q are missing %q, %v", ids, missing, err)
	}
}

func TestMissing(t *testing.T) {
	r, w := begin(t)
	id := w.Commit("a", "a")
	gittest.Fill(t, r.Repo, w.Pack("main"))
	none, long := strings.Repeat("1", 40), strings.Repeat("2", 64)
	// A branch whose name looks like an object id must not be taken for one.
	must(t, errors.Join(r.SetRef(t.Context(), "refs/heads/"+long, id), r.SetRef(t.Context(), "refs/heads/"+none, id)))
	has(t, r, true, id, w.Git("rev-parse", "main^{tree}"), w.Git("rev-parse", "main:a"))
	has(t, r, false, none, long, "", "HEAD", "--help", "main", id+"\n"+none, strings.ToUpper(id), strings.Repeat("0", 40), id[:39])
}

func TestOnlySoundPacksWithSomethingThatIsWantedAreTaken(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	w.Commit("dir/a", "a")
	commit := w.Commit("dir/b", "b")
	tree, dir, a, blob := w.Git("rev-parse", "main^{tree}"), w.Git("rev-parse", "main:dir"), w.Git("rev-parse", "main:dir/a"), w.Git("rev-parse", "main:dir/b")
	w.Git("update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("4", 40)+",sub")
	w.Git("commit", "--quiet", "--message", "submodule")
	submodule := w.Git("rev-parse", "HEAD")
	whole := w.Pack(commit)
	damaged := bytes.Clone(whole)
	damaged[len(damaged)/2] ^= 0x40
	write := func(content string, args ...string) string {
		return strings.TrimSpace(string(gittest.Input(t, w.Dir, []byte(content), args...)))
	}
	object := []string{"hash-object", "-t", "commit", "-w", "--stdin", "--literally"}
	old := write("tree "+tree+"\nauthor A <a@example.com> 1 +051800\ncommitter A <a@example.com>1 +0000\n\nx\n", object...)
	dotgit := write("100644 blob "+blob+"\t.git\n", "mktree")
	link := write("100644 blob "+strings.Repeat("3", 40)+"\tgone\n", "mktree", "--missing")
	thin := gittest.NewWork(t)
	base := thin.Commit("a", strings.Repeat("a line of text\n", 2000))
	thin.Commit("a", strings.Repeat("a line of text\n", 2000)+"the last\n")
	for name, tc := range map[string]struct {
		pack   []byte
		wanted string
		err    error // nil: it is taken
	}{
		"nothing":                    {nil, commit, repository.ErrBadPack},
		"damaged":                    {damaged, commit, repository.ErrBadPack},
		"commit without parent":      {w.PackOf(commit, tree, dir, blob, a), commit, repository.ErrBadPack},
		"tree without blob":          {w.PackOf(link), link, repository.ErrBadPack},
		"tree with .git":             {w.PackOf(dotgit, blob), dotgit, repository.ErrBadPack},
		"deltas against nowhere":     {thin.Pack("main", "^"+base), thin.Git("rev-parse", "main"), repository.ErrBadPack},
		"nothing of what is wanted":  {whole, strings.Repeat("1", 40), repository.ErrUnwanted},
		"whole":                      {whole, commit, nil},
		"a submodule":                {w.Pack(submodule), submodule, nil},
		"faults that git once wrote": {w.Pack(old), old, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := gittest.Lock(t, gittest.Repo(t, gittest.Store(t), "taken"))
			err := gittest.Take(t, r.Repo, tc.pack, strings.Repeat("6", 40), tc.wanted)
			if !errors.Is(err, tc.err) {
				t.Errorf("error %v", err)
			}
			if err != nil && (len(err.Error()) > 6000 || strings.Contains(err.Error(), r.Path)) {
				t.Errorf("the error tells too much: %v", err)
			}
			has(t, r, tc.err == nil, tc.wanted)
			if tc.err != nil {
				gittest.Untouched(t, r.Repo)
			} else {
				must(t, r.Fsck(t.Context()))
			}
		})
	}
}

// TestATakenPackMayBeThin where a reference reaches what it lacks, and what was there before does not
// speak for what comes later.
func TestATakenPackMayBeThin(t *testing.T) {
	r, w := begin(t)
	first := w.Commit("a", strings.Repeat("line\n", 1000))
	second := w.Commit("a", strings.Repeat("line\n", 1000)+"more\n")
	w.Git("checkout", "--quiet", "--orphan", "other")
	other := w.Commit("b", "b")
	must(t, gittest.Take(t, r.Repo, w.Pack(first), first))
	if err := gittest.Take(t, r.Repo, w.Pack(other), first, second); !errors.Is(err, repository.ErrUnwanted) {
		t.Errorf("error %v", err)
	}
	has(t, r, false, other)
	if err := gittest.Take(t, r.Repo, w.Pack(second, "^"+first, other), second); !errors.Is(err, repository.ErrBadPack) {
		t.Errorf("a pack builds on what only lies there: %v", err)
	}
	w.Git("checkout", "--quiet", "--orphan", "delta", second)
	base := w.Git("rev-parse", first+":a") // of a delta in the pack: git completes it by what lies there
	w.Git("update-index", "--add", "--cacheinfo", "100644,"+base+",b")
	w.Git("commit", "--quiet", "--message", "has the base too")
	delta := w.Git("rev-parse", "HEAD")
	thin := gittest.Input(t, w.Dir, []byte("-"+first+"\n"+delta+"\n"+w.Git("rev-parse", delta+"^{tree}")+"\n"+
		w.Git("rev-parse", delta+":a")+" a\n"), "pack-objects", "--stdout", "-q")
	for _, behind := range []string{"", gittest.Noise(1 << 16)} { // git passes over what follows a pack
		if err := gittest.Take(t, r.Repo, append(bytes.Clone(thin), behind...), delta); !errors.Is(err, repository.ErrBadPack) {
			t.Errorf("a pack has a delta of what only lies there, and %d bytes behind it: %v", len(behind), err)
		}
		spool := r.Store.Spool("client", nil)
		_, err := spool.Write(append(bytes.Clone(thin), behind...))
		must(t, err)
		if err := r.Brings(t.Context(), spool, "client", 0, 1<<20, []string{delta}); !errors.Is(err, repository.ErrBadPack) {
			t.Errorf("it is pushed, with %d bytes behind it: %v", len(behind), err)
		}
		spool.Close()
	}
	must(t, r.SetRef(t.Context(), "refs/heads/main", first))
	for range 2 { // again changes nothing
		must(t, gittest.Take(t, r.Repo, w.Pack(second, "^"+first, other), second))
	}
	has(t, r, true, first, second, other)
	gittest.Git(t, r.Path, "fsck", "--full", "--strict")
}

// TestWhatFollowsAPackNamesNoFile: a server may send anything behind its pack, and git repeats that
// where it tells the hash.
func TestWhatFollowsAPackNamesNoFile(t *testing.T) {
	r, w := begin(t)
	id := w.Commit("a", "a")
	for _, behind := range []string{"/../../../../../escaped", " escaped", "\n", strings.Repeat("x", 10_000)} {
		if err := gittest.Take(t, r.Repo, append(w.Pack("main"), behind...), id); err != nil {
			t.Errorf("behind the pack is %.30q: %.200v", behind, err)
		}
	}
	has(t, r, true, id)
	packs, err := os.ReadDir(filepath.Join(r.Path, "objects", "pack"))
	must(t, err)
	for _, file := range packs {
		if name, _, _ := strings.Cut(file.Name(), "."); len(name) != len("pack-")+40 {
			t.Errorf("there is a file %q", file.Name())
		}
	}
	if outside, err := filepath.Glob(filepath.Join(r.Store.Root, "escaped*")); err != nil || len(outside) > 0 {
		t.Errorf("it came to %q, %v", outside, err)
	}
	must(t, r.Fsck(t.Context()))
}

// TestWhatGitRefusesBringsNothing: a pack that git does not check, or an id that it does not find,
// passes for nothing.
func TestWhatGitRefusesBringsNothing(t *testing.T) {
	r, w := begin(t)
	first := w.Commit("a", "a")
	must(t, gittest.Take(t, r.Repo, w.Pack(first), first))
	for what, pack := range map[string][]byte{"no pack": []byte("no pack"), "another's": w.Pack(first)} {
		spool := r.Store.Spool("client", nil)
		_, err := spool.Write(pack)
		must(t, err)
		err = r.Brings(t.Context(), spool, "client", 0, 1<<20, []string{strings.Repeat("1", 40)})
		if failed, is := errors.AsType[*repository.Error](err); !errors.Is(err, repository.ErrBadPack) || !is {
			t.Errorf("%s: %v (%v)", what, err, failed)
		}
		spool.Close()
	}
}

// maintained makes the empty repository of one of several maintainers.
func maintained(t testing.TB, s *repository.Store, n int) *repository.Locked {
	t.Helper()
	r, err := s.Repo(nostr.RepoRef{PubKey: fmt.Sprintf("%064x", n), Identifier: `of "many"`})
	must(t, err)
	locked := gittest.Lock(t, r)
	must(t, locked.Ensure(t.Context()))
	return locked
}

// onDisk is how many KiB the files below a folder take up, each once, however often it is linked.
func onDisk(t testing.TB, root string) (size int64) {
	t.Helper()
	out, err := exec.Command("du", "-sk", root).Output()
	must(t, err)
	fmt.Sscan(string(out), &size)
	return size
}

// TestMaintainersShareWhatTheyHaveInCommon: three repositories take little more room than one, at
// first, after pushes and after housekeeping.
func TestMaintainersShareWhatTheyHaveInCommon(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	w := gittest.NewWork(t)
	tip := w.Commit("large", gittest.Noise(17<<20)) // more than housekeeping packs again
	first := maintained(t, s, 1)
	gittest.Fill(t, first.Repo, w.Pack("main"))
	set(t, first, tip)
	alone := onDisk(t, s.Root)
	group := []*repository.Locked{first}
	share := func() {
		for _, r := range group[1:] {
			must(t, r.Share(t.Context(), first.Repo, []string{tip}))
			set(t, r, tip)
		}
	}
	small := func(when string) {
		t.Helper()
		if all := onDisk(t, s.Root); all > alone*12/10 {
			t.Errorf("%s three take %d KiB, one %d", when, all, alone)
		}
		gittest.Fsck(t, group[1].Path)
	}
	for n := range 2 {
		group = append(group, maintained(t, s, n+2))
	}
	share()
	small("at first")
	for n := range 3 {
		before := tip
		tip = w.Commit("small", fmt.Sprint(n))
		gittest.Fill(t, first.Repo, w.Pack("main", "^"+before))
		set(t, first, tip)
		share()
	}
	small("after pushes")
	for _, r := range group {
		must(t, r.Gc(t.Context()))
		has(t, r, true, tip)
	}
	small("after housekeeping")
	must(t, first.Remove(t.Context()))
	has(t, group[1], true, tip)
	gittest.Fsck(t, group[1].Path)
}

func TestShareBringsOnlyWhatIsReachable(t *testing.T) {
	t.Parallel()
	s, err := repository.NewStore(repository.Options{Root: filepath.Join(t.TempDir(), `a "quoted": folder`)})
	must(t, err)
	from, to := maintained(t, s, 1), maintained(t, s, 2)
	w := gittest.NewWork(t)
	first := w.Commit("a", "a")
	gittest.Fill(t, to.Repo, w.Pack("main"))
	set(t, to, first)
	second := w.Commit("a", "aa")
	w.Git("tag", "--annotate", "--message", "v1", "v1")
	tag := w.Git("rev-parse", "v1")
	w.Git("checkout", "--quiet", "-b", "other", first)
	other := w.Commit("b", "b")
	gittest.Fill(t, from.Repo, w.Pack("main", "other", "v1"))
	for range 2 { // again changes nothing
		must(t, to.Copy(t.Context(), from.Repo, []string{tag, second, tag}, 0))
		has(t, to, true, first, second, tag)
		has(t, to, false, other)
	}
	if err := to.Share(t.Context(), from.Repo, []string{strings.Repeat("5", 40)}); !errors.Is(err, repository.ErrBroken) {
		t.Errorf("what is nowhere: %v", err)
	}
	gittest.Fsck(t, to.Path)
}

// TestSharingLinksNothingUnreached: what the other has let go of stays there, until its
// housekeeping removes it.
func TestSharingLinksNothingUnreached(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	from, to := maintained(t, s, 1), maintained(t, s, 2)
	w := gittest.NewWork(t)
	first := w.Commit("a", "1")
	secret := w.Commit("a", "secret")
	gittest.Fill(t, from.Repo, w.Pack("main"))
	set(t, from, first)
	must(t, from.Gc(t.Context()))
	has(t, from, true, secret)
	must(t, to.Share(t.Context(), from.Repo, []string{first}))
	has(t, to, true, first)
	has(t, to, false, secret)
}

// TestPacksAreLinkedTogether or not at all: a part of them would look like the whole for ever, because
// what is there is not brought again.
func TestPacksAreLinkedTogether(t *testing.T) {
	t.Parallel()
	for _, goes := range []string{".pack", ".idx"} { // as the other's housekeeping takes them away
		s := gittest.Store(t)
		from, to := maintained(t, s, 1), maintained(t, s, 2)
		w := gittest.NewWork(t)
		first := w.Commit("a", "1")
		gittest.Fill(t, from.Repo, w.Pack("main"))
		packs, err := filepath.Glob(filepath.Join(from.Path, "objects/pack/*"+goes))
		must(t, err)
		tip := w.Commit("a", "2")
		gittest.Fill(t, from.Repo, w.Pack("main", "^"+first))
		must(t, errors.Join(os.Rename(packs[0], packs[0]+".away"), os.Mkdir(packs[0], 0o755)))
		if err := to.Share(t.Context(), from.Repo, []string{tip}); !errors.Is(err, repository.ErrBroken) {
			t.Errorf("without a %s: %v", goes, err)
		}
		gittest.Untouched(t, to.Repo)
		must(t, errors.Join(os.Remove(packs[0]), os.Rename(packs[0]+".away", packs[0])))
		must(t, to.Share(t.Context(), from.Repo, []string{tip}))
		set(t, to, tip)
		gittest.Fsck(t, to.Path)
	}
}

// TestACopyHasABound: nothing stays of one that would take more.
func TestACopyHasABound(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	from, to := maintained(t, s, 1), maintained(t, s, 2)
	w := gittest.NewWork(t)
	id := w.Commit("a", gittest.Noise(3<<20))
	gittest.Fill(t, from.Repo, w.Pack("main"))
	err := to.Copy(t.Context(), from.Repo, []string{id}, 1<<20)
	if limit, _ := repository.LimitReached(err); limit != "size" {
		t.Errorf("a copy of 3 MiB for 1 MiB: %v", err)
	}
	gittest.Untouched(t, to.Repo)
	if left, err := os.ReadDir(filepath.Join(to.Path, "objects/pack")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	must(t, to.Copy(t.Context(), from.Repo, []string{id}, 4<<20))
	has(t, to, true, id)
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
	// As if a part had been lost: git checks what we take.
	gittest.Input(t, half.Path, w.PackOf(id), "unpack-objects", "-q")
	has(t, half, true, id)
	if err := other.Share(t.Context(), half.Repo, []string{id}); !errors.Is(err, repository.ErrBroken) {
		t.Errorf("shared: %v", err)
	}
	if err := half.SetRefs(t.Context(), refs{"refs/heads/main": id}, nil, ""); !errors.Is(err, repository.ErrBroken) {
		t.Errorf("a branch is set: %v", err)
	}
	if err := half.SetRef(t.Context(), "refs/nostr/"+strings.Repeat("e", 64), id); !errors.Is(err, repository.ErrBroken) {
		t.Errorf("a reference is set: %v", err)
	}
	gittest.Untouched(t, other.Repo)
}

// age makes all that nothing reaches as old as this: the table of times of a cruft pack is what git
// goes by (gitformat-pack, "pack-*.mtimes files").
func age(t testing.TB, r *repository.Locked, at time.Time) {
	t.Helper()
	tables, err := filepath.Glob(filepath.Join(r.Path, "objects/pack/*.mtimes"))
	must(t, err)
	for _, name := range tables {
		table, err := os.ReadFile(name)
		must(t, err)
		for i := 12; i < len(table)-2*sha1.Size; i += 4 {
			binary.BigEndian.PutUint32(table[i:], uint32(at.Unix()))
		}
		sum := sha1.Sum(table[:len(table)-sha1.Size])
		must(t, errors.Join(os.Chmod(name, 0o644), os.WriteFile(name, append(table[:len(table)-sha1.Size], sum[:]...), 0o444)))
		for _, suffix := range []string{".pack", ".mtimes", ".idx"} {
			must(t, os.Chtimes(strings.TrimSuffix(name, ".mtimes")+suffix, at, at))
		}
	}
}

func TestHousekeeping(t *testing.T) {
	r, w := begin(t)
	due := func(when string, at time.Time, want bool) {
		t.Helper()
		if due, err := r.NeedsGc(at); err != nil || due != want {
			t.Errorf("%s it is due: %v, %v", when, due, err)
		}
	}
	day := 25 * time.Hour
	due("without data", time.Now().Add(day), false)
	ids := []string{w.Commit("a", "")}
	gittest.Fill(t, r.Repo, w.Pack("main"))
	for i := range 51 {
		ids = append(ids, w.Commit("a", strings.Repeat("a", i+1)))
		gittest.Fill(t, r.Repo, w.Pack("main", "^"+ids[i]))
		due(fmt.Sprintf("with %d packs", i+2), time.Now(), i >= 49)
	}
	set(t, r, ids[30])
	must(t, os.WriteFile(filepath.Join(r.Path, "gc.pid"), []byte("1 elsewhere\n"), 0o644)) // of one that was killed
	must(t, r.Gc(t.Context()))
	if packs, err := filepath.Glob(filepath.Join(r.Path, "objects/pack/*.pack")); err != nil || len(packs) != 2 {
		t.Errorf("%d packs are left, %v", len(packs), err)
	}
	has(t, r, true, ids...) // what nothing reaches is kept for a day
	if _, err := os.Lstat(filepath.Join(r.Path, "packed-refs")); err == nil {
		t.Error("references were packed")
	}
	due("at once again", time.Now(), false)
	due("a day later", time.Now().Add(day), true)
	age(t, r, time.Now().Add(-day))
	must(t, r.Gc(t.Context()))
	has(t, r, true, ids[:31]...)
	has(t, r, false, ids[31:]...)
	due("when nothing has changed", time.Now().Add(day), false)
	must(t, r.SetRef(t.Context(), "refs/heads/old", ids[0]))
	due("when a reference came", time.Now().Add(time.Hour), false)
	due("a day after a reference came", time.Now().Add(day), true)
	gittest.Fsck(t, r.Path)
}

// TestWhatALargePackHidesGoesToo: packs that housekeeping leaves as they are may have what was let
// go of.
func TestWhatALargePackHidesGoesToo(t *testing.T) {
	r, w := begin(t)
	first := w.Commit("large", gittest.Noise(17<<20))
	secret := w.Commit("secret", "hunter2")
	gittest.Fill(t, r.Repo, w.Pack("main"))
	set(t, r, secret)
	set(t, r, first)
	must(t, r.Gc(t.Context()))
	has(t, r, true, secret) // for a day
	age(t, r, time.Now().Add(-25*time.Hour))
	must(t, r.Gc(t.Context()))
	has(t, r, false, secret)
	gittest.Fsck(t, r.Path)
}

// TestLargePacksDoNotCount among many packs: they stay as they are, so that housekeeping would be due
// again as soon as it has ended.
func TestLargePacksDoNotCount(t *testing.T) {
	r, _ := begin(t)
	must(t, os.MkdirAll(filepath.Join(r.Path, "objects/pack"), 0o755))
	for i := range 60 {
		name := filepath.Join(r.Path, fmt.Sprintf("objects/pack/pack-%040d", i))
		must(t, errors.Join(os.WriteFile(name+".pack", nil, 0o644), os.Truncate(name+".pack", 16<<20), os.WriteFile(name+".idx", nil, 0o444)))
	}
	if due, err := r.NeedsGc(time.Now()); err != nil || due {
		t.Errorf("housekeeping is due: %v, %v", due, err)
	}
}

// TestPacksWithoutIndex, which a git that was killed has left, keep no housekeeping from its work.
func TestPacksWithoutIndex(t *testing.T) {
	r, w := begin(t)
	id := w.Commit("a", "a")
	gittest.Fill(t, r.Repo, w.Pack("main"))
	set(t, r, id)
	must(t, r.Gc(t.Context()))
	other := w.Commit("a", "aa")
	gittest.Fill(t, r.Repo, w.Pack("main", "^"+id))
	indexes, err := filepath.Glob(filepath.Join(r.Path, "objects/pack/*.idx"))
	must(t, err)
	for _, index := range indexes {
		must(t, os.Remove(index))
	}
	none := filepath.Join(r.Path, "objects/pack/pack-"+strings.Repeat("1", 40))
	must(t, errors.Join(os.WriteFile(none+".pack", []byte("PACK"), 0o444), os.WriteFile(none+".rev", nil, 0o444)))
	has(t, r, false, id, other)
	must(t, r.Gc(t.Context()))
	has(t, r, true, id, other)
	gittest.Fsck(t, r.Path)
	for _, name := range files(t, filepath.Join(r.Path, "objects/pack")) {
		if strings.HasPrefix(name, filepath.Base(none)) {
			t.Errorf("%s is there", name)
		}
	}
	old := time.Now().Add(-48 * time.Hour)
	must(t, os.WriteFile(none+".pack", []byte("PACK"), 0o444))
	must(t, os.Chtimes(filepath.Join(r.Path, "objects/pack"), old, old))
	if due, err := r.NeedsGc(time.Now().Add(25 * time.Hour)); err != nil || !due {
		t.Errorf("housekeeping is due: %v, %v", due, err)
	}
}

// TestHousekeepingOnAFullDiskLeavesNothing, though it is tried again and again. Not parallel:
// gittest.CrampedStore.
func TestHousekeepingOnAFullDiskLeavesNothing(t *testing.T) {
	r := gittest.Lock(t, gittest.Repo(t, gittest.CrampedStore(t, 256), "packs"))
	w := gittest.NewWork(t)
	id := w.Commit("a", "a")
	gittest.Fill(t, r.Repo, w.Pack("main"))
	noise := gittest.Noise(20 << 14)
	for i := range 20 {
		before := id
		id = w.Commit("a", noise[i<<14:(i+1)<<14])
		gittest.Fill(t, r.Repo, w.Pack("main", "^"+before))
	}
	set(t, r, id)
	before := files(t, filepath.Join(r.Path, "objects", "pack"))
	for range 2 {
		if err := r.Gc(t.Context()); !repository.Unwritable(err) {
			t.Errorf("%v", err)
		}
	}
	if after := files(t, filepath.Join(r.Path, "objects", "pack")); !slices.Equal(before, after) {
		t.Errorf("there is %q, and was %q", after, before)
	}
	has(t, r, true, id)
}
