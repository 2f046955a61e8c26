package repository_test

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/test/fixture/gittest"
)

// TestLastChanges: each entry of a folder has the newest commit that changed it or something below
// it, under any name, and what is asked for again costs no git process.
func TestLastChanges(t *testing.T) {
	repo, work := begin(t)
	commit := func(subject string, files ...string) {
		t.Helper()
		for _, name := range files {
			path := filepath.Join(work.Dir, name)
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, []byte(subject), 0o644))
		}
		work.Git("add", ".")
		work.Git("commit", "--quiet", "--message", subject)
	}
	commit("all", "a", "ümläut \"x\"\t", ":(top)b", "dir/sub/c", "dir/d", "never")
	commit("below", "dir/sub/c")
	work.Git("checkout", "--quiet", "-b", "side")
	commit("aside", ":(top)b", "dir/*")
	work.Git("checkout", "--quiet", "main")
	commit("again", "a", "ümläut \"x\"\t")
	work.Git("merge", "--quiet", "--no-edit", "side")
	tip := work.Git("rev-parse", "HEAD")
	gittest.Fill(t, repo.Repo, work.Pack("main"))
	must(t, repo.SetRefs(t.Context(), refs{"refs/heads/main": tip}, nil, "refs/heads/main"))
	changes := func(place string) string {
		t.Helper()
		a, err := repo.Folder(t.Context(), "client", tip, place)
		must(t, err)
		var list []string
		for _, e := range a.Entries {
			list = append(list, e.Name+"="+e.Changed.Subject)
		}
		return strings.Join(list, "|")
	}
	want := ":(top)b=aside|a=again|dir=aside|never=all|ümläut \"x\"\t=again"
	if got := changes(""); got != want || changes("") != want {
		t.Errorf("the root: %s", got)
	}
	if got := changes("dir"); got != "*=aside|d=all|sub=below" {
		t.Errorf("a folder: %s", got)
	}
	if got := changes("dir/sub"); got != "c=below" {
		t.Errorf("a folder below: %s", got)
	}
}

// TestAnswerHasRoom: a folder full of names and subjects that JSON writes with six bytes a
// character still fits an answer.
func TestAnswerHasRoom(t *testing.T) {
	repo, work := begin(t)
	hostile := strings.Repeat("<", 200)
	for n := range 500 {
		must(t, os.WriteFile(filepath.Join(work.Dir, fmt.Sprint(hostile, n)), nil, 0o644))
	}
	work.Git("add", ".")
	work.Git("commit", "--quiet", "--message", strings.Repeat("<", 300))
	tip := work.Git("rev-parse", "HEAD")
	gittest.Fill(t, repo.Repo, work.Pack("main"))
	must(t, repo.SetRefs(t.Context(), refs{"refs/heads/main": tip}, nil, "refs/heads/main"))
	a, err := repo.Folder(t.Context(), "client", tip, "")
	if must(t, err); !a.More || len(a.Entries) == 0 || len(a.Entries) == 500 {
		t.Errorf("%d entries, more %v", len(a.Entries), a.More)
	}
}

// TestAges of branches and tags: of a tag with a text its own.
func TestAges(t *testing.T) {
	repo, work := begin(t)
	at := func(date string, args ...string) {
		t.Helper()
		git := exec.CommandContext(t.Context(), "git", args...)
		git.Dir, git.Env = work.Dir, append(os.Environ(), "GIT_COMMITTER_DATE="+date, "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@b")
		out, err := git.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	at("1000000000 +0200", "commit", "--quiet", "--allow-empty", "--message", "one")
	one := work.Git("rev-parse", "HEAD")
	at("1100000000 +0000", "tag", "--annotate", "--message", "a tag", "v1")
	gittest.Fill(t, repo.Repo, work.Pack("main", "v1"))
	must(t, repo.SetRefs(t.Context(), refs{"refs/heads/main": one, "refs/tags/v1": work.Git("rev-parse", "v1"), "refs/tags/light": one}, nil,
		"refs/heads/main"))
	ages, err := repo.Ages(t.Context(), "client")
	must(t, err)
	if len(ages) != 3 || ages["refs/heads/main"].Unix() != 1e9 || ages["refs/tags/v1"].Unix() != 11e8 || ages["refs/tags/light"].Unix() != 1e9 {
		t.Errorf("ages: %v", ages)
	}
}

// TestArchive: all files of a tag's commit in one folder, the same bytes each time, made once for
// who asks again.
func TestArchive(t *testing.T) {
	repo, work := begin(t)
	must(t, os.WriteFile(filepath.Join(work.Dir, "file"), []byte("content"), 0o644))
	work.Git("add", ".")
	work.Git("commit", "--quiet", "--message", "one")
	one := work.Git("rev-parse", "HEAD")
	gittest.Fill(t, repo.Repo, work.Pack("main"))
	must(t, repo.SetRefs(t.Context(), refs{"refs/heads/main": one, "refs/tags/v1": one}, nil, "refs/heads/main"))
	for tag, want := range map[string]string{"v1": one, "main": "", "../heads/main": "", "": ""} {
		if got, err := repo.Commit(t.Context(), "client", tag); err != nil || got != want {
			t.Errorf("the commit of %q is %q, %v", tag, got, err)
		}
	}
	first, err := repo.Archive(t.Context(), "client", one, "x-v1")
	must(t, err)
	again, err := repo.Archive(t.Context(), "other", one, "x-v1")
	must(t, err)
	if first != again {
		t.Error("the archive was made twice")
	}
	var names []string
	read, err := first.Read(func(content io.Reader) error {
		unpacked, err := gzip.NewReader(content)
		must(t, err)
		for files := tar.NewReader(unpacked); ; {
			file, err := files.Next()
			if err == io.EOF {
				return nil
			}
			if must(t, err); file.Typeflag != tar.TypeXGlobalHeader {
				names = append(names, file.Name)
			}
		}
	})
	if must(t, err); !read || strings.Join(names, " ") != "x-v1/ x-v1/file" {
		t.Errorf("it has %q", names)
	}
	for n := range 20 { // more than are kept
		_, err := repo.Archive(t.Context(), "client", one, fmt.Sprint("other-", n))
		must(t, err)
	}
	last, err := repo.Archive(t.Context(), "client", one, "x-v1")
	if must(t, err); last == first {
		t.Error("every archive is kept")
	}
	if _, err := repo.Archive(t.Context(), "client", one, "a/../b"); err == nil {
		t.Error("a folder above was taken")
	}
}
