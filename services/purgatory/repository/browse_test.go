package repository_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture/gittest"
)

// TestBrowse reads folders, files and commits as pages show them, and nothing that is asked for in
// a way that git would read as something else.
func TestBrowse(t *testing.T) {
	repo, work := begin(t)
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(work.Dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(content), 0o644))
	}
	write("README.md", "# Title\n")
	write("readme.txt", "plain")
	write("src/a b.go", "package a\n")
	write("empty", "")
	write("large", strings.Repeat("x", proto.MaxRepoFile+1))
	must(t, os.Symlink("src", filepath.Join(work.Dir, "link")))
	work.Git("add", ".")
	work.Git("commit", "--quiet", "--message", "the first\n\nand more")
	first := work.Git("rev-parse", "HEAD")
	work.Git("tag", "--annotate", "--message", "a tag", "v1")
	tag := work.Git("rev-parse", "v1")
	for n := range 3 {
		work.Git("commit", "--quiet", "--allow-empty", "--message", fmt.Sprint("next ", n))
	}
	tip := work.Git("rev-parse", "HEAD")
	gittest.Fill(t, repo.Repo, work.Pack("main", "v1"))
	must(t, repo.SetRefs(t.Context(), refs{"refs/heads/main": tip, "refs/tags/v1": tag}, nil, "refs/heads/main"))

	root, err := repo.Folder(t.Context(), "client", tip, "")
	must(t, err)
	var names []string
	for _, e := range root.Entries {
		names = append(names, e.Name+":"+string(e.Kind))
	}
	if got := strings.Join(names, " "); got != "README.md:file empty:file large:file link:link readme.txt:file src:folder" {
		t.Errorf("the root: %s", got)
	}
	if root.Commit == nil || root.Commit.ID != tip || root.Commit.Subject != "next 2" || root.Commit.At.IsZero() || root.Commit.Author == "" {
		t.Errorf("its commit: %+v", root.Commit)
	}
	if root.Readme == nil || root.Readme.Name != "README.md" || string(root.Readme.Data) != "# Title\n" {
		t.Errorf("its README: %+v", root.Readme)
	}
	tagged, err := repo.Folder(t.Context(), "client", tag, "src")
	must(t, err)
	if len(tagged.Entries) != 1 || tagged.Entries[0].Name != "a b.go" || tagged.Commit.ID != first || tagged.Commit.Subject != "the first" {
		t.Errorf("a folder of a tag: %+v", tagged)
	}
	for path, want := range map[string]string{"src/a b.go": "package a\n", "empty": "", "large": ""} {
		a, err := repo.Folder(t.Context(), "client", tip, path)
		must(t, err)
		if a.File == nil || string(a.File.Data) != want || a.File.Name != filepath.Base(path) || a.Commit == nil {
			t.Errorf("%s: %+v", path, a.File)
		}
	}
	for _, path := range []string{"nothing", "../x", "./src", "src/", "/src", "src//a", "a\nb", "src/..", "\x00"} {
		if a, err := repo.Folder(t.Context(), "client", tip, path); err != nil || a.Commit != nil {
			t.Errorf("%q: %+v, %v", path, a, err)
		}
	}
	for _, id := range []string{"", "HEAD", "main", "--all", strings.Repeat("0", 40), root.Entries[0].Name} {
		if a, err := repo.Folder(t.Context(), "client", id, ""); err != nil || a.Commit != nil {
			t.Errorf("the folder of %q: %+v, %v", id, a, err)
		}
	}
	log, err := repo.Log(t.Context(), "client", tag, 0)
	must(t, err)
	all, err := repo.Log(t.Context(), "client", tip, 1)
	must(t, err)
	if len(log.Commits) != 1 || log.Commits[0].ID != first || len(all.Commits) != 3 || all.Commits[0].Subject != "next 1" || all.More {
		t.Errorf("logs: %+v, %+v", log, all)
	}
	for _, skip := range []int{-1, proto.MaxRepoSkip + 1} {
		if a, err := repo.Log(t.Context(), "client", tip, skip); err != nil || len(a.Commits) > 0 {
			t.Errorf("the log behind %d: %+v, %v", skip, a, err)
		}
	}
}

// TestBrowseAgain: what a commit has never changes, so a folder that is shown again costs two git
// processes (one finds it, one reads its README), a file two, and commits none.
func TestBrowseAgain(t *testing.T) {
	repo, work := begin(t)
	work.Commit("README.md", "# Title\n")
	tip := work.Git("rev-parse", "HEAD")
	gittest.Fill(t, repo.Repo, work.Pack("main"))
	must(t, repo.SetRefs(t.Context(), refs{"refs/heads/main": tip}, nil, "refs/heads/main"))
	ran := filepath.Join(t.TempDir(), "ran")
	repo.Store.Git = gittest.Script(t, "echo x >>"+ran+"\nexec git \"$@\"")
	processes := func(ask func() (any, error)) (answer any, n int) {
		t.Helper()
		must(t, os.WriteFile(ran, nil, 0o600))
		answer, err := ask()
		must(t, err)
		lines, err := os.ReadFile(ran)
		must(t, err)
		return answer, len(lines) / 2
	}
	for name, row := range map[string]struct {
		most int
		ask  func() (any, error)
	}{
		"a folder": {2, func() (any, error) { return repo.Folder(t.Context(), "client", tip, "") }},
		"a file":   {2, func() (any, error) { return repo.Folder(t.Context(), "client", tip, "README.md") }},
		"commits":  {0, func() (any, error) { return repo.Log(t.Context(), "client", tip, 0) }},
	} {
		first, _ := processes(row.ask)
		if again, n := processes(row.ask); n > row.most || !reflect.DeepEqual(first, again) {
			t.Errorf("%s again: %d processes, want at most %d; %+v after %+v", name, n, row.most, again, first)
		}
	}
}

// TestAFolderThatWasCutIsLookedAtAgain: what a moment without time to look left out does not stay
// away.
func TestAFolderThatWasCutIsLookedAtAgain(t *testing.T) {
	repo, work := begin(t)
	work.Commit("README.md", "# Title\n")
	tip := work.Git("rev-parse", "HEAD")
	gittest.Fill(t, repo.Repo, work.Pack("main"))
	must(t, repo.SetRefs(t.Context(), refs{"refs/heads/main": tip}, nil, "refs/heads/main"))
	for _, c := range []struct {
		time time.Duration
		cut  bool
	}{{time.Nanosecond, true}, {time.Minute, false}, {time.Nanosecond, false}} {
		repo.Store.ChangesTime = c.time
		a, err := repo.Folder(t.Context(), "client", tip, "")
		if must(t, err); a.Partial != c.cut || (a.Entries[0].Changed == nil) != c.cut {
			t.Errorf("within %v: %+v", c.time, a)
		}
	}
}

// BenchmarkBrowse shows a folder of 1,000 files and the commits behind 5,000 newer ones, again and
// again.
func BenchmarkBrowse(b *testing.B) {
	repo := gittest.Repo(b, gittest.Store(b), "x")
	gittest.Do(b, repo, func(l *repository.Locked) error { return l.Ensure(b.Context()) })
	var in strings.Builder
	for n := range 6000 {
		fmt.Fprintf(&in, "commit refs/heads/main\ncommitter A <a@b> %d +0000\ndata 6\nchange\nM 644 inline file-%d\ndata 5\n%05d\n", 1e9+n, n%1000, n)
	}
	gittest.Input(b, repo.Path, []byte(in.String()), "fast-import", "--quiet")
	tip := gittest.Git(b, repo.Path, "rev-parse", "refs/heads/main")
	for name, ask := range map[string]func() error{
		"folder": func() error { _, err := repo.Folder(b.Context(), "client", tip, ""); return err },
		"log":    func() error { _, err := repo.Log(b.Context(), "client", tip, 5000); return err },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				must(b, ask())
			}
		})
	}
}
