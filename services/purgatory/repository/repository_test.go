package repository_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

var must = fixture.Must

// begin makes a repository and a work tree.
func begin(t *testing.T) (*repository.Locked, *gittest.Work) {
	t.Parallel()
	return gittest.Lock(t, gittest.Repo(t, gittest.Store(t), "x")), gittest.NewWork(t)
}

// files lists every file below a folder, and every folder but the store's own.
func files(t testing.TB, root string) (found []string) {
	t.Helper()
	must(t, filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		if !slices.Contains([]string{".", ".new", ".trash"}, name) {
			found = append(found, name)
		}
		return err
	}))
	return found
}

func places(t testing.TB, s *repository.Store, only nostr.RepoRef) (found []repository.Place) {
	t.Helper()
	for place, err := range s.Places(t.Context(), only) {
		must(t, err)
		found = append(found, place)
	}
	return found
}

func TestRepositoriesOfAnyIdentifierStayBelowTheRoot(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	identifiers := []string{"plain", "a/b", "..", ".", "../..", "🌱 seed", "-x", "--upload-pack=touch", ".git", "a.git", "a%2Fb", "x\\y", "CON:"}
	for _, identifier := range identifiers {
		r := gittest.Lock(t, gittest.Repo(t, s, identifier))
		folder, err := filepath.Rel(s.Root, r.Path)
		if err != nil || strings.Count(folder, "/") != 1 || !strings.HasPrefix(folder, "npub1") || !strings.HasSuffix(folder, ".git") {
			t.Errorf("%q lies at %q (%v)", identifier, folder, err)
		}
		if places := places(t, s, r.RepoRef); !slices.Equal(places, []repository.Place{r.Place}) {
			t.Errorf("%q is found at %v", identifier, places)
		}
	}
	for _, ref := range []nostr.RepoRef{
		{PubKey: gittest.Owner},
		{PubKey: "../../etc", Identifier: "a"},
		{PubKey: strings.ToUpper(gittest.Owner), Identifier: "a"},
		{PubKey: gittest.Owner, Identifier: "a\x00b"},
		{PubKey: gittest.Owner, Identifier: strings.Repeat("a", 201)},
		{PubKey: gittest.Owner, Identifier: "\xff"},
	} {
		if r, err := s.Repo(ref); err == nil {
			t.Errorf("%q was given the path %q", ref, r.Path)
		}
	}
}

// TestPlaces: contributors' repositories lie apart, and are not taken for announced ones.
func TestPlaces(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	empty, err := s.Empty(t.Context()) // is none of them
	must(t, err)
	if out := gittest.Git(t, t.TempDir(), "ls-remote", empty.Path); out != "" {
		t.Errorf("the empty one has %s", out)
	}
	hosted := repository.Place{RepoRef: nostr.RepoRef{PubKey: gittest.Owner, Identifier: "my repo/ü"}}
	offered := repository.Place{RepoRef: hosted.RepoRef, PRs: true}
	elsewhere := repository.Place{RepoRef: nostr.RepoRef{PubKey: strings.Repeat("77", 32), Identifier: "x"}}
	for _, at := range []repository.Place{hosted, offered, elsewhere} {
		r, err := s.At(at)
		must(t, err)
		must(t, gittest.Lock(t, r).Ensure(t.Context()))
	}
	for only, want := range map[nostr.RepoRef][]repository.Place{
		{}:                                 {hosted, elsewhere, offered},
		{PubKey: gittest.Owner}:            {hosted, offered},
		{Identifier: "my repo/ü"}:          {hosted, offered},
		elsewhere.RepoRef:                  {elsewhere},
		{PubKey: strings.Repeat("88", 32)}: nil,
	} {
		if got := places(t, s, only); !slices.Equal(got, want) {
			t.Errorf("of %v there is %v, want %v", only, got, want)
		}
	}
	must(t, os.Mkdir(filepath.Join(s.Root, "foreign"), 0o755))
	if strange, err := s.Strange(); err != nil || !slices.Equal(strange, []string{"foreign"}) {
		t.Errorf("strange: %q, %v", strange, err)
	}
}

func TestStoreSaysWhatIsWrongWithItsSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o644))
	for want, o := range map[string]repository.Options{
		"executable file not found in $PATH; install git 2.37 or newer": {Root: t.TempDir(), Git: "no-such-git"},
		"it does not say which version":                                 {Root: t.TempDir(), Git: gittest.Script(t, "echo hello")},
		"it is git 2.36: want 2.37 or newer":                            {Root: t.TempDir(), Git: gittest.Script(t, "echo git version 2.36.9")},
		"NGIT_GIT_DATA_PATH is \"" + file:                               {Root: file},
		"NGIT_GIT_DATA_PATH is \"\"":                                    {},
	} {
		if _, err := repository.NewStore(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	if _, err := repository.NewStore(repository.Options{Root: t.TempDir(), Git: gittest.Script(t, "echo git version 3.0.1")}); err != nil {
		t.Errorf("git 3: %v", err)
	}
}

// TestAnUnwritableGitFolderNamesItsSetting, and no file of ours.
func TestAnUnwritableGitFolderNamesItsSetting(t *testing.T) {
	t.Parallel()
	const folder = "/proc/self" // which not even root may write to
	if _, err := os.Stat(folder); err != nil {
		t.Skip("this system has no folder without a writer")
	}
	_, err := repository.TakeFolder(folder, "", "example.com", nil)
	if err == nil || !strings.HasPrefix(err.Error(), `NGIT_GIT_DATA_PATH is "/proc/self": want a folder that this user may write to (`) ||
		strings.Contains(err.Error(), ".belongs") {
		t.Error(err)
	}
}

func TestEnsureIsSafeForManyAndRemoveTakesAllAway(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	repo, err := s.Repo(nostr.RepoRef{PubKey: gittest.Owner, Identifier: "busy"})
	must(t, err)
	r := gittest.Lock(t, repo)
	for range 3 {
		errs := make(chan error)
		for range 8 { // any number of readers
			go func() { _, err := s.Empty(t.Context()); errs <- err }()
		}
		for range 8 {
			must(t, <-errs)
		}
		empty, err := s.Empty(t.Context())
		must(t, errors.Join(err, os.RemoveAll(empty.Path)))
		must(t, errors.Join(r.Ensure(t.Context()), r.Ensure(t.Context()))) // again changes nothing
		// A stranger's announcement costs as little as can be.
		if got, want := files(t, r.Path), []string{"HEAD", "config", "objects", "refs", "unproven"}; !slices.Equal(got, want) {
			t.Errorf("there is %q, want %q", got, want)
		}
		gittest.Git(t, t.TempDir(), "clone", "--quiet", r.Path, "clone")
		git := exec.Command("git", "init", "--quiet", "--bare", filepath.Join(t.TempDir(), "of git"))
		git.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1"}
		must(t, git.Run())
		want, err := os.ReadFile(filepath.Join(git.Args[4], "HEAD"))
		if got, failed := os.ReadFile(filepath.Join(r.Path, "HEAD")); err != nil || failed != nil || !bytes.Equal(got, want) {
			t.Errorf("HEAD is %q, git makes it %q", got, want)
		}
		must(t, errors.Join(r.Remove(t.Context()), r.Remove(t.Context()))) // what is not there is no error
		if left := files(t, s.Root); len(left) != 0 || r.Exists() {
			t.Errorf("left behind: %q", left)
		}
	}
}

func TestSweepRemovesWhatKilledProcessesLeft(t *testing.T) {
	r, w := begin(t)
	id := w.Commit("a", "a")
	gittest.Fill(t, r.Repo, w.Pack("main"))
	old := time.Now().Add(-48 * time.Hour)
	for _, name := range files(t, r.Path) {
		must(t, os.Chtimes(filepath.Join(r.Path, name), old, old))
	}
	whole := files(t, r.Path)
	const day = 24 * time.Hour
	stays := map[string]bool{}
	for name, age := range map[string]time.Duration{
		"HEAD.lock": time.Hour, "packed-refs.lock": time.Hour, "refs/heads/main.lock": time.Hour, ".tmp-small-1": time.Hour, "objects/tmp_objdir-incoming-1": 0,
		"objects/tmp_objdir-pack-1": 2 * day, "objects/pack/.tmp-7-pack-1": 2 * day, "objects/pack/tmp_pack_1": 2 * day,
		"refs/heads/new.lock": 0, "stays objects/tmp_objdir-pack-2": time.Hour, "stays objects/pack/tmp_pack_2": time.Hour, "stays refs/heads/tmp_branch": 2 * day,
		"stays objects/pack/pack-blind.pack": 2 * day, // its index may be what was lost
	} {
		name, is := strings.CutPrefix(name, "stays ")
		stays[name] = is
		path := filepath.Join(r.Path, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if strings.Contains(name, "objdir") {
			must(t, os.MkdirAll(filepath.Join(path, "pack"), 0o755))
		} else {
			must(t, os.WriteFile(path, []byte(id+"\n"), 0o644))
		}
		at := time.Now().Add(-age)
		must(t, os.Chtimes(path, at, at))
	}
	if err := r.SetRef(t.Context(), "refs/heads/main", id); err == nil {
		t.Error("a lock was passed over")
	}
	must(t, r.Sweep())
	left := files(t, r.Path)
	for name, want := range stays {
		if slices.Contains(left, name) != want {
			t.Errorf("%s is there: %t", name, !want)
		}
	}
	for _, name := range whole {
		if !slices.Contains(left, name) {
			t.Errorf("%s is gone", name)
		}
	}
	must(t, r.SetRef(t.Context(), "refs/heads/main", id))
}

// TestNotes: what is noted is there until it is forgotten, and what makes no sense is none.
func TestNotes(t *testing.T) {
	t.Parallel()
	r := gittest.Lock(t, gittest.Repo(t, gittest.Store(t), "x"))
	is := func(when string, archive bool, want *repository.Ended, waits ...repository.WaitingPush) {
		t.Helper()
		note, err := r.Ended()
		all, failed := r.Waiting()
		if r.IsArchive() != archive || (note == nil) != (want == nil) || note != nil && *note != *want || !slices.Equal(all, waits) || errors.Join(err, failed) != nil {
			t.Errorf("%s: archive %t, ended %+v (%v), waiting %v (%v)", when, r.IsArchive(), note, err, all, failed)
		}
	}
	end := &repository.Ended{Announcement: strings.Repeat("ab", 32), Reason: "deleted", Since: time.Unix(1000, 5).UTC(), Kept: true}
	waits := []repository.WaitingPush{{Event: strings.Repeat("a", 64), Client: "2001:db8::/64"}, {Event: strings.Repeat("c", 64)}}
	is("new", false, nil)
	if !r.IsUnproven() {
		t.Error("a new repository is proven")
	}
	must(t, errors.Join(r.SetArchive(true), r.SetEnded(end), r.SetWaiting(waits)))
	is("noted", true, end, waits...)
	for range 2 {
		must(t, errors.Join(r.SetArchive(false), r.SetEnded(nil), r.SetWaiting(nil), r.SetProven()))
		is("forgotten", false, nil)
	}
	if left := files(t, r.Path); len(left) != 4 {
		t.Errorf("left: %q", left)
	}
	for _, content := range []string{"", "x", "[]", `{"announcement":"x"}`} {
		for _, name := range []string{"ended", "waiting"} {
			must(t, os.WriteFile(filepath.Join(r.Path, name), []byte(content), 0o644))
		}
		is(fmt.Sprintf("with %q", content), false, nil)
	}
}

// TestAFolderBelongsToOneSystem: a process of another log or another domain is refused with both
// names and the setting that accepts the change, and changes nothing until it is set.
func TestAFolderBelongsToOneSystem(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "git")
	const one, two, a, b = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z", "a.example.com", "b.example.com"
	for _, step := range []struct {
		name        string
		log, domain string
		given       string
		refused     []string // words of the sentence; nil: it is taken
		domains     []string
	}{
		{"a new folder", one, a, "", nil, []string{a}},
		{"another domain", one, b, "", []string{root, a, b, "NGIT_FORGET_LOG=" + a}, nil},
		{"another log", two, a, "", []string{root, one, two, "NGIT_FORGET_LOG=" + one}, nil},
		{"a log in memory", "", a, "", nil, []string{a}},
		{"a new domain, accepted", one, b, a, nil, []string{a, b}},
		{"back, by mistake", one, a, a, []string{b}, nil},
		{"back, accepted", one, a, b, nil, []string{b, a}},
		{"a new log, accepted", two, a, one, nil, []string{b, a}},
	} {
		before, _ := os.ReadFile(filepath.Join(root, ".belongs"))
		got, err := repository.TakeFolder(root, step.log, step.domain, []string{step.given})
		if step.refused == nil {
			if err != nil || !slices.Equal(got.Domains, step.domains) || got.Since.IsZero() {
				t.Errorf("%s: %+v, %v; want %q", step.name, got, err, step.domains)
			}
			continue
		}
		for _, word := range step.refused {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v does not name %s", step.name, err, word)
			}
		}
		if after, _ := os.ReadFile(filepath.Join(root, ".belongs")); string(after) != string(before) {
			t.Errorf("%s: the file has changed to %q", step.name, after)
		}
	}
	must(t, os.WriteFile(filepath.Join(root, ".belongs"), []byte(`{"log":"`), 0o644))
	if _, err := repository.TakeFolder(root, one, a, nil); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged file: %v", err)
	}
}

// leased makes a repository whose lease ends with the context.
func leased(t testing.TB, root, git string, lease context.Context) *repository.Locked {
	t.Helper()
	s, err := repository.NewStore(repository.Options{Root: root, Git: git, Enter: func(string) (repository.Tenure, error) {
		return repository.Tenure{Lease: lease, Open: t.Context(), Leave: func() {}}, nil
	}})
	must(t, err)
	return gittest.Lock(t, gittest.Repo(t, s, "x"))
}

// TestNothingIsWrittenAfterTheLease: neither is anything moved or removed, nor a reference set;
// what the next worker has stored stays. Reading goes on.
func TestNothingIsWrittenAfterTheLease(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "git")
	lease, end := context.WithCancel(t.Context())
	before := leased(t, root, "", lease)
	w := gittest.NewWork(t)
	first := w.Commit("a", "1")
	must(t, gittest.Take(t, before.Repo, w.Pack("main"), first))
	set(t, before, first)
	end()

	next, err := repository.NewStore(repository.Options{Root: root})
	must(t, err)
	second := w.Commit("a", "2")
	gittest.Fill(t, before.Repo, w.Pack("main", "^"+first))
	gittest.Git(t, before.Path, "update-ref", "refs/heads/main", second)
	other := maintained(t, next, 1)
	third := w.Commit("a", "3")
	gittest.Fill(t, other.Repo, w.Pack("main"))
	ctx := t.Context()
	for name, write := range map[string]func() error{
		"a pack":       func() error { return gittest.Take(t, before.Repo, w.Pack("main"), third) },
		"references":   func() error { return before.SetRefs(ctx, refs{"refs/heads/main": first}, nil, "") },
		"a reference":  func() error { return before.SetRef(ctx, "refs/tags/x", first) },
		"a deletion":   func() error { return before.DeleteRef(ctx, "refs/heads/main") },
		"housekeeping": func() error { return before.Gc(ctx) },
		"sharing":      func() error { return before.Share(ctx, other.Repo, []string{third}) },
		"a sweep":      before.Sweep,
		"removal":      func() error { return before.Remove(ctx) },
		"a note":       func() error { return before.SetWaiting([]repository.WaitingPush{{Event: "e"}}) },
		"a push":       func() error { return before.ReceivePack(1<<20, false).Run(ctx) },
	} {
		if err := write(); !errors.Is(err, repository.ErrLease) {
			t.Errorf("%s: %v", name, err)
		}
	}
	has(t, before, true, first, second)
	has(t, before, false, third)
	if got, err := before.Refs(); err != nil || got.ByName["refs/heads/main"] != second {
		t.Errorf("main is %v, %v", got, err)
	}
	gittest.Fsck(t, before.Path)
}

// TestTheEndOfALeaseStopsGit in the middle of its work, and at once, though it does not want to
// end.
func TestTheEndOfALeaseStopsGit(t *testing.T) {
	began := filepath.Join(t.TempDir(), "began")
	slow := gittest.Script(t, fmt.Sprintf("case \"$1\" in index-pack) trap '' TERM; touch %s; sleep 3600;; esac\nexec git \"$@\"", began))
	lease, end := context.WithCancel(t.Context())
	r := leased(t, filepath.Join(t.TempDir(), "git"), slow, lease)
	w := gittest.NewWork(t)
	id := w.Commit("a", "1")
	ended := make(chan time.Time, 1)
	go func() {
		for _, err := os.Stat(began); err != nil; _, err = os.Stat(began) {
			time.Sleep(time.Millisecond)
		}
		ended <- time.Now()
		end()
	}()
	if err := gittest.Take(t, r.Repo, w.Pack("main"), id); !errors.Is(err, repository.ErrLease) {
		t.Errorf("the pack: %v", err)
	}
	if took := time.Since(<-ended); took > 2*time.Second {
		t.Errorf("git wrote for %v after the lease", took)
	}
	gittest.Untouched(t, r.Repo)
}

// TestGitIsBounded in its memory and its time, and what it starts, and tells no paths.
func TestGitIsBounded(t *testing.T) {
	fake := gittest.Script(t, "case \"$1\" in upload-pack) read line; sh -c 'ulimit -d; ulimit -t'; printf '%05000d\\033[31m%s\\377\\r\\n' 7 \"$GIT_DIR\" >&2;; *) exec git \"$@\";; esac")
	s, err := repository.NewStore(repository.Options{Root: t.TempDir(), Git: fake, Memory: 512 << 20})
	must(t, err)
	r := gittest.Lock(t, gittest.Repo(t, s, "x"))
	var out bytes.Buffer
	c := r.UploadPack(false, "")
	c.Pack = 5 << 20
	c.Stdin, c.Stdout = strings.NewReader("go\n"), &out
	if err := c.Run(t.Context()); err != nil || out.String() != "303104\n20\n" { // 256 MiB and 8 times the pack
		t.Errorf("KiB and seconds %q, %v", out.String(), err)
	}
	w := gittest.NewWork(t)
	for range 3 {
		w.Commit("a", rand.Text())
	}
	gittest.Fill(t, r.Repo, w.Pack("main"))
	out.Reset()
	read := r.UploadPack(false, "")
	read.Stdin, read.Stdout = strings.NewReader("go\n"), &out
	if err := read.Run(t.Context()); err != nil || out.String() != "262148\n10\n" { // 256 MiB, and 512 bytes for each of 9 objects
		t.Errorf("KiB and seconds %q, %v", out.String(), err)
	}
	if said := c.Messages(); len(said) > 4<<10 || !strings.HasSuffix(said, "07[31m.?") {
		t.Errorf("%d bytes: …%q", len(said), said[max(0, len(said)-50):])
	}
}

// TestUnwritable tells the errors of a disk that takes nothing from all others.
func TestUnwritable(t *testing.T) {
	t.Parallel()
	said := func(words string) error {
		return &repository.Error{Command: "index-pack", Messages: words, Err: errors.New("exit status 128")}
	}
	for want, errs := range map[bool][]error{
		true: {
			fmt.Errorf("write: %w", &os.PathError{Op: "write", Err: syscall.ENOSPC}), syscall.EROFS, syscall.EACCES,
			fmt.Errorf("store: %w", said("fatal: write error: No space left on device")), said("unable to create temporary object directory"),
		},
		false: {nil, errors.New("No space left on device"), said("fatal: pack is corrupted (SHA1 mismatch)"), os.ErrNotExist, repository.ErrBadPack},
	} {
		for _, err := range errs {
			if got := repository.Unwritable(err); got != want {
				t.Errorf("%v: %v", err, got)
			}
		}
	}
}
