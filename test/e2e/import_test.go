package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// field is what another GRASP server leaves behind: a folder of git data and its events.
type field struct {
	t      *testing.T
	root   string
	events []*nostr.Event
	work   *world.WorkTree
}

// newField begins a folder. Its repositories hold what a work tree has.
func newField(t *testing.T) *field {
	work := world.NewWorkTree(t)
	work.Git("tag", "-a", "v1", "-m", "version 1")
	return &field{t: t, root: t.TempDir(), work: work}
}

// complete adds a repository in the layout of the server's version 1.
func (f *field) complete(owner *fixture.Person, identifier string) (path string) {
	path = filepath.Join(f.root, owner.Npub, identifier+".git")
	world.Git(f.t, f.root, "clone", "-q", "--bare", f.work.Dir, path)
	f.events = append(f.events, owner.Announce(identifier), owner.State(identifier, f.work.Refs()))
	return path
}

// shared adds a repository in the layout of version 3: its objects are those of all owners of the
// identifier, at a path that is not valid here.
func (f *field) shared(owner *fixture.Person, identifier string) (family string) {
	path := f.complete(owner, identifier)
	family = filepath.Join(f.root, ".grasp", "families", "sha1", identifier+".git")
	f.takeObjects(path, family)
	return family
}

// takeObjects moves the objects of a repository into a family.
func (f *field) takeObjects(path, family string) {
	if _, err := os.Stat(family); err != nil {
		world.Git(f.t, f.root, "init", "-q", "--bare", family)
	}
	for name, id := range map[string]string{"retained/1": "refs/heads/main", "bases/1": "refs/heads/main"} {
		world.Git(f.t, family, "fetch", "-q", path, id+":refs/grasp/"+name)
	}
	world.Git(f.t, family, "fetch", "-q", path, "+refs/*:refs/take/*")
	must(f.t, os.RemoveAll(filepath.Join(path, "objects")), os.MkdirAll(filepath.Join(path, "objects", "info"), 0o755))
	at := "/srv/ngit/git/.grasp/families/sha1/" + filepath.Base(family) + "/objects\n"
	must(f.t, os.WriteFile(filepath.Join(path, "objects", "info", "alternates"), []byte(at), 0o644))
}

// write writes the events to a file, in the worst order.
func (f *field) write() (path string) {
	var b strings.Builder
	for _, ev := range slices.Backward(f.events) {
		b.WriteString(ev.String() + "\n")
	}
	path = filepath.Join(f.t.TempDir(), "events.jsonl")
	must(f.t, os.WriteFile(path, []byte(b.String()), 0o600))
	return path
}

// fingerprint is what everything in the folder is.
func (f *field) fingerprint() string {
	sum := sha256.New()
	must(f.t, filepath.WalkDir(f.root, func(at string, entry fs.DirEntry, err error) error {
		must(f.t, err)
		info, err := entry.Info()
		must(f.t, err)
		fmt.Fprintln(sum, at, info.Mode(), info.ModTime().UnixNano(), info.Size())
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(at)
			must(f.t, err)
			sum.Write(text)
		}
		return nil
	}))
	return hex.EncodeToString(sum.Sum(nil))
}

// TestImportOfAnotherServer: the folder of the field's server, in both layouts, comes in whole:
// after a kill in the middle too, with commits of pull requests that only a family has, and with
// the repositories of contributors. What is missing is told. Nothing in the folder changes.
func TestImportOfAnotherServer(t *testing.T) {
	t.Parallel()
	f := newField(t)
	owner, other, guest := fixture.NewPerson(), fixture.NewPerson(), fixture.NewPerson()
	f.complete(owner, "version-one")
	for n := range 10 {
		f.shared(owner, fmt.Sprint("shared-", n))
	}
	family := f.shared(other, "shared-0")
	gone := f.shared(owner, "gone")
	must(t, os.RemoveAll(filepath.Join(gone, "objects")))
	f.complete(other, "nobodys")
	f.events = f.events[:len(f.events)-2] // nothing announces it

	f.work.Git("checkout", "-q", "-b", "fix")
	tip := f.work.Commit("a fix")
	pull := guest.Pull("please", tip, owner.Repo("shared-0"))
	world.Git(t, family, "fetch", "-q", f.work.Dir, "fix:refs/grasp/retained/2")
	theirs := filepath.Join(f.root, "prs", guest.PubKey, "version-one.git")
	world.Git(t, f.root, "init", "-q", "--bare", theirs)
	mine := f.work.Commit("another fix")
	contributed := guest.Pull("for version one", mine, owner.Repo("version-one"),
		nostr.Tag{"clone", "https://" + fixture.Domain + "/prs/" + guest.Npub + "/version-one.git"})
	world.Git(t, theirs, "fetch", "-q", f.work.Dir, "fix:refs/nostr/"+contributed.ID)
	f.events = append(f.events, pull, contributed, guest.Sign(1621, "broken", owner.Repo("shared-3")))
	events, before := f.write(), f.fingerprint()

	p := world.Start(t, map[string]string{"NGIT_GRASP06_ENABLE": "true"})
	var report struct {
		Announced, Repositories, Sharing, Contributors, Pulls int
		NotAnnounced                                          []string `json:"not_announced"`
		Lacking                                               []string
	}
	out := tool(t, p, "import", events, "--git", f.root, "--dry-run", "--json", "--domain", fixture.Domain)
	must(t, json.Unmarshal([]byte(out), &report))
	if report.Announced != 13 || report.Repositories != 14 || report.Sharing != 11 || report.Contributors != 1 || report.Pulls != 1 ||
		!slices.Equal(report.NotAnnounced, []string{other.Npub + "/nobodys"}) ||
		len(report.Lacking) != 1 || !strings.HasPrefix(report.Lacking[0], owner.Npub+"/gone: ") {
		t.Errorf("the report is %+v", report)
	}
	if n := p.Count(nostr.Filter{Kinds: []int{nostr.KindAnnouncement, nostr.KindState, 1621}}); n != 0 {
		t.Errorf("a dry run brought %d events", n)
	}

	args := []string{"import", events, "--git", f.root, "--server", p.URL, "--json"}
	env := map[string]string{"NGIT_NATS_LISTEN": strings.TrimPrefix(p.NATS, "nats://")}
	killed := world.Begin(t, p.Dir, env, args...)
	fixture.Await(t, "the first repositories are here", func() bool {
		return p.Count(nostr.Filter{Kinds: []int{nostr.KindState}}) > 0
	})
	killed.Kill()

	type result struct {
		Accepted, Known, Held, Refused int
		Waiting                        []string
		Git                            struct {
			Repositories, Pulls, Contributors int
			NotHosted                         []string `json:"not_hosted"`
			Incomplete                        []string
		}
	}
	run := func() (r result) {
		must(t, json.Unmarshal([]byte(tool(t, p, args...)), &r))
		if r.Git.Repositories != 12 || r.Git.Pulls != 2 || r.Git.Contributors != 1 ||
			!slices.Equal(r.Git.NotHosted, []string{other.Npub + "/nobodys"}) || len(r.Git.Incomplete) != 1 ||
			!strings.Contains(r.Git.Incomplete[0], "/gone: the folder lacks") ||
			!slices.Equal(r.Waiting, []string{owner.Npub + "/gone"}) {
			t.Errorf("the import gives %+v", r)
		}
		return r
	}
	if r := run(); r.Held != 2 || r.Refused != 0 || r.Accepted+r.Known != len(f.events)-2 {
		t.Errorf("after a kill: %+v", r)
	}
	if r := run(); r.Held != 2 || r.Refused+r.Accepted != 0 || r.Known != len(f.events)-2 {
		t.Errorf("once more: %+v", r)
	}
	p.Serves(f.events[0], pull, contributed)
	for at, ref := range map[string]string{
		p.Repo(owner, "shared-0"): "refs/nostr/" + pull.ID, p.Repo(other, "shared-0"): "refs/tags/v1",
		p.Repo(owner, "version-one"):                      "refs/nostr/" + contributed.ID,
		p.URL + "/prs/" + guest.Npub + "/version-one.git": "refs/nostr/" + contributed.ID,
	} {
		if listed := world.Git(t, p.Dir, "ls-remote", at, ref); !strings.HasSuffix(listed, ref) {
			t.Errorf("%s has no %s: %q", at, ref, listed)
		}
	}
	world.Git(t, t.TempDir(), "clone", "-q", p.Repo(owner, "version-one"))
	if f.fingerprint() != before {
		t.Error("the folder has changed")
	}
}
