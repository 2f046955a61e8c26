package gittree

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture/gittest"
)

// share makes a repository share its objects as the field's server does: they lie in a family of
// the folder, and the repository names the path that the folder had on another machine.
func share(t testing.TB, root, name, family string) {
	t.Helper()
	at, objects := filepath.Join(root, name), filepath.Join(root, families, family, "objects")
	must(t, os.MkdirAll(filepath.Dir(objects), 0o755))
	must(t, os.Rename(filepath.Join(at, "objects"), objects))
	must(t, os.MkdirAll(filepath.Join(at, "objects", "info"), 0o755))
	must(t, os.WriteFile(filepath.Join(at, "objects", "info", "alternates"),
		[]byte("/srv/elsewhere/git/"+families+"/"+family+"/objects\n"), 0o644))
	id := strings.TrimSpace(gittest.Git(t, filepath.Join(root, name), "--git-dir=.", "rev-parse", "refs/heads/main"))
	retained := filepath.Join(root, families, family, "refs", "grasp", "retained")
	must(t, os.MkdirAll(retained, 0o755))
	must(t, os.WriteFile(filepath.Join(retained, "1"), []byte(id+"\n"), 0o644))
}

// fingerprint is what everything in a folder is: names, modes, times, contents and link targets.
func fingerprint(t testing.TB, root string) string {
	t.Helper()
	sum := sha256.New()
	must(t, filepath.WalkDir(root, func(at string, entry fs.DirEntry, err error) error {
		must(t, err)
		info, err := entry.Info()
		must(t, err)
		fmt.Fprintln(sum, at, info.Mode(), info.ModTime().UnixNano(), info.Size())
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(at)
			must(t, err)
			sum.Write(text)
		}
		return nil
	}))
	return hex.EncodeToString(sum.Sum(nil))
}

// open opens a folder until the test ends, and lists it.
func open(t testing.TB, root string) (f *Folder, byName map[string]Repo, passed map[string]string) {
	t.Helper()
	f, err := OpenFolder(root)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	all, over, err := f.List()
	must(t, err)
	byName, passed = map[string]Repo{}, map[string]string{}
	for _, r := range all {
		byName[r.Name] = r
	}
	for _, p := range over {
		passed[p.Path] = p.Why
	}
	return f, byName, passed
}

// TestFoldersOfOtherServers: both layouts of the field's server can be read where they were copied
// to, with either hash; git gets every object; nothing of the folder changes.
func TestFoldersOfOtherServers(t *testing.T) {
	t.Parallel()
	root, out := t.TempDir(), t.TempDir()
	hexKey := keyOf(npub, false)
	bare(t, root, npub+"/complete.git")
	bare(t, root, npub+"/shared.git")
	share(t, root, npub+"/shared.git", "sha1/shared.git")
	bare(t, root, "prs/"+npub+"/complete.git")
	bare(t, root, "prs/"+hexKey+"/theirs.git")
	share(t, root, "prs/"+hexKey+"/theirs.git", "sha1/theirs.git")
	long := filepath.Join(root, npub, "long.git")
	gittest.Git(t, root, "init", "-q", "--bare", "--object-format=sha256", long)
	tree := gittest.Git(t, long, "hash-object", "-w", "-t", "tree", "/dev/null")
	gittest.Git(t, long, "update-ref", "refs/heads/main", gittest.Git(t, long, "commit-tree", "-m", "one", tree))
	share(t, root, npub+"/long.git", "sha256/long.git")
	before := fingerprint(t, root)

	f, repos, passed := open(t, root)
	want := []string{npub + "/complete.git", npub + "/long.git", npub + "/shared.git", "prs/" + npub + "/complete.git", "prs/" + npub + "/theirs.git"}
	if got := slices.Sorted(maps.Keys(repos)); !slices.Equal(got, want) || len(passed) > 0 {
		t.Fatalf("found are %q, passed over %v", got, passed)
	}
	server := gittest.Backend(t, out).URL
	for name, r := range repos {
		v, err := f.View(r)
		must(t, err)
		if missing, err := v.Missing(t.Context(), v.Refs); err != nil || len(missing) > 0 {
			t.Errorf("%s lacks %v, %v", name, missing, err)
		}
		format := "sha1"
		if name == npub+"/long.git" {
			format = "sha256"
		}
		to := filepath.Join(out, name)
		gittest.Git(t, out, "init", "-q", "--bare", "--object-format="+format, to)
		gittest.Git(t, to, "config", "http.receivepack", "true")
		if _, err := v.Push(t.Context(), r.On(server).At); err != nil {
			t.Error(err)
		}
		if _, err := v.PushPulls(t.Context(), r.On(server).At, v.Pulls()); err != nil {
			t.Error(err)
		}
		gittest.Fsck(t, to)
		refs := map[string]string{}
		for line := range strings.Lines(gittest.Git(t, to, "for-each-ref", "--format=%(objectname) %(refname)")) {
			id, ref, _ := strings.Cut(strings.TrimSpace(line), " ")
			refs[ref] = id
		}
		if !maps.Equal(refs, v.Refs) || len(refs) == 0 {
			t.Errorf("%s: %v were pushed, want %v", name, refs, v.Refs)
		}
	}
	if fingerprint(t, root) != before {
		t.Error("the folder has changed")
	}
	temp := f.temp
	must(t, f.Close())
	if _, err := os.Stat(temp); err == nil {
		t.Error("something is left of the views")
	}
}

// TestAHostileFolder: who can write to the folder reaches nothing outside, and nothing of theirs
// runs.
func TestAHostileFolder(t *testing.T) {
	t.Parallel()
	outside, root := t.TempDir(), t.TempDir()
	secret := bare(t, outside, "secret.git")
	commit := gittest.Git(t, secret, "rev-parse", "main")
	gittest.Git(t, secret, "repack", "-adq")
	ran := filepath.Join(outside, "ran")
	program := filepath.Join(outside, "program")
	must(t, os.WriteFile(program, []byte("#!/bin/sh\ntouch "+ran+"\ncat\n"), 0o755))

	// Each of these names the secret commit, which lies outside.
	names := func(name string) (at string) {
		at = filepath.Join(root, npub, name+".git")
		gittest.Git(t, root, "init", "-q", "--bare", at)
		must(t, os.WriteFile(filepath.Join(at, "packed-refs"), []byte(commit+" refs/heads/main\n"), 0o644))
		return at
	}
	alternates := func(at, text string) {
		must(t, os.WriteFile(filepath.Join(at, "objects", "info", "alternates"), []byte(text), 0o644))
	}
	alternates(names("absolute"), secret+"/objects\n")
	alternates(names("relative"), "../../../../"+filepath.Base(outside)+"/secret.git/objects\n")
	alternates(names("up"), "/x/"+families+"/sha1/../../../../"+filepath.Base(outside)+"/secret.git/objects\n")
	alternates(names("other"), "/x/"+families+"/sha1/absolute.git/objects\n")
	alternates(names("linked"), "/x/"+families+"/sha1/linked.git/objects\n")
	must(t, os.MkdirAll(filepath.Join(root, families, "sha1"), 0o755))
	must(t, os.Symlink(secret, filepath.Join(root, families, "sha1", "linked.git")))
	alternates(names("chained"), "/x/"+families+"/sha1/chained.git/objects\n")
	chained := filepath.Join(root, families, "sha1", "chained.git", "objects", "info")
	must(t, os.MkdirAll(chained, 0o755))
	must(t, os.WriteFile(filepath.Join(chained, "alternates"), []byte(secret+"/objects\n"), 0o644))
	packs, err := filepath.Glob(filepath.Join(secret, "objects", "pack", "pack-*"))
	must(t, err)
	at := names("packs")
	for _, pack := range packs {
		must(t, os.Symlink(pack, filepath.Join(at, "objects", "pack", filepath.Base(pack))))
	}
	at = names("folders")
	must(t, os.RemoveAll(filepath.Join(at, "objects", "pack")))
	must(t, os.Symlink(filepath.Join(secret, "objects", "pack"), filepath.Join(at, "objects", "pack")))
	at = names("objects")
	must(t, os.RemoveAll(filepath.Join(at, "objects")))
	must(t, os.Symlink(filepath.Join(secret, "objects"), filepath.Join(at, "objects")))
	must(t, os.Symlink(secret, filepath.Join(root, npub, "repository.git")))
	must(t, os.Symlink(outside, filepath.Join(root, nostr.Npub(strings.Repeat("03", 32)))))
	must(t, os.MkdirAll(filepath.Join(root, npub, "a\nb.git", "objects"), 0o755))
	at = names("refs")
	must(t, os.Symlink(filepath.Join(secret, "refs", "heads", "main"), filepath.Join(at, "refs", "heads", "link")))
	must(t, os.WriteFile(filepath.Join(at, "packed-refs"),
		[]byte(commit+" refs/heads/../../evil\n"+commit+" refs/heads/a b\n-x refs/heads/c\n"), 0o644))

	// A repository that is in order, with programs wherever git may run one.
	honest := bare(t, root, npub+"/honest.git")
	must(t, os.MkdirAll(filepath.Join(honest, "hooks"), 0o755))
	for _, hook := range []string{"pre-push", "pre-receive", "update", "post-receive", "reference-transaction", "post-update"} {
		must(t, os.RemoveAll(filepath.Join(honest, "hooks", hook)))
		must(t, os.Symlink(program, filepath.Join(honest, "hooks", hook)))
	}
	for _, set := range []string{
		"core.fsmonitor", "core.sshCommand", "core.gitProxy", "core.alternateRefsCommand", "core.askPass", "core.pager",
		"uploadpack.packObjectsHook", "credential.helper", "pack.packObjectsHook", "gpg.program", "filter.x.clean",
	} {
		gittest.Git(t, honest, "config", set, program)
	}
	gittest.Git(t, honest, "config", "url."+outside+"/.insteadOf", "http://")
	gittest.Git(t, honest, "config", "push.gpgSign", "true")

	f, repos, passed := open(t, root)
	for _, name := range []string{"absolute", "relative", "up", "other", "linked", "chained", "packs", "folders"} {
		v, err := f.View(repos[npub+"/"+name+".git"])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if missing, err := v.Missing(t.Context(), v.Refs); err != nil || len(missing) != 1 || missing[0] != commit {
			t.Errorf("%s reaches outside: %v, %v", name, missing, err)
		}
	}
	for _, at := range []string{
		npub + "/objects.git", npub + "/repository.git", npub + "/a\nb.git", nostr.Npub(strings.Repeat("03", 32)),
		npub + "/absolute.git/objects/info/alternates", npub + "/linked.git/objects/info/alternates",
	} {
		if passed[at] == "" {
			t.Errorf("%q is not told", at)
		}
	}
	if refs, err := f.References(repos[npub+"/refs.git"]); err != nil || len(refs) > 0 {
		t.Errorf("references of a hostile repository: %v, %v", refs, err)
	}
	out := t.TempDir()
	to := filepath.Join(out, npub, "honest.git")
	gittest.Git(t, out, "init", "-q", "--bare", to)
	gittest.Git(t, to, "config", "http.receivepack", "true")
	v, err := f.View(repos[npub+"/honest.git"])
	must(t, err)
	if n, err := v.Push(t.Context(), repos[npub+"/honest.git"].On(gittest.Backend(t, out).URL).At); err != nil || n != 3 {
		t.Errorf("an honest repository: %d, %v", n, err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program of the folder ran")
	}
}
