package check

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
)

const (
	key    = "0000000000000000000000000000000000000000000000000000000000000003"
	domain = "grasp.test"
)

// place is a system without services: a log, an index of it, and a git folder.
type place struct {
	t     *testing.T
	bus   *bus.Bus
	index string
	root  string
	owner string
	repo  *repository.Repo
	state *nostr.Event
	pull  *nostr.Event
	head  string // what main is
	tip   string // of the pull request
}

func event(t testing.TB, kind int, tags ...nostr.Tag) *nostr.Event {
	t.Helper()
	ev := &nostr.Event{Kind: kind, CreatedAt: 1000, Tags: tags}
	if err := ev.Sign(key); err != nil {
		t.Fatal(err)
	}
	return ev
}

// git runs git in a folder, as an operator may.
func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME=/nonexistent", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org",
		// Newer gits tidy up in the background, in a folder that the test may be removing by then.
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=maintenance.auto", "GIT_CONFIG_VALUE_0=false")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// newPlace is one with a repository of a branch and a pull request, all as it should be.
func newPlace(t *testing.T) *place {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	p := &place{t: t, bus: b, index: filepath.Join(t.TempDir(), "index-up"), root: t.TempDir()}
	p.owner, err = gonostr.GetPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	p.repo, err = p.store().Repo(nostr.RepoRef{PubKey: p.owner, Identifier: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.repo.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := p.repo.Path()
	tree := git(t, path, "hash-object", "-t", "tree", "-w", "--stdin")
	p.head = git(t, path, "commit-tree", "-m", "first", tree)
	p.tip = git(t, path, "commit-tree", "-m", "a fix", "-p", p.head, tree)
	npub, err := nip19.EncodePublicKey(p.owner)
	if err != nil {
		t.Fatal(err)
	}
	announcement := event(t, 30617, nostr.Tag{"d", "mine"}, nostr.Tag{"clone", "http://" + domain + "/" + npub + "/mine.git"}, nostr.Tag{"relays", "ws://" + domain})
	p.state = event(t, 30618, nostr.Tag{"d", "mine"}, nostr.Tag{"refs/heads/main", p.head}, nostr.Tag{"HEAD", "ref: refs/heads/main"})
	p.pull = event(t, 1618, nostr.Tag{"a", "30617:" + p.owner + ":mine"}, nostr.Tag{"c", p.tip})
	p.log(announcement, p.state, p.pull)
	if _, err := p.repo.SetRefs(t.Context(), map[string]string{"refs/heads/main": p.head}, nil, "refs/heads/main"); err != nil {
		t.Fatal(err)
	}
	if err := p.repo.SetRef(t.Context(), "refs/nostr/"+p.pull.ID, p.tip); err != nil {
		t.Fatal(err)
	}
	git(t, path, "repack", "-adq")
	p.makeIndex()
	return p
}

func (p *place) store() *repository.Store {
	p.t.Helper()
	store, err := repository.NewStore(repository.Options{Root: p.root})
	if err != nil {
		p.t.Fatal(err)
	}
	return store
}

// log writes events as ingest does.
func (p *place) log(events ...*nostr.Event) {
	p.t.Helper()
	for _, ev := range events {
		p.logAt(proto.EventSubjectOf(ev).String(), ev.String())
	}
}

func (p *place) logAt(subject, data string) {
	p.t.Helper()
	if _, err := p.bus.PublishBatch(p.t.Context(), []*nats.Msg{{Subject: subject, Data: []byte(data)}}, nil); err != nil {
		p.t.Fatal(err)
	}
}

// removal writes a message in the place of an event that leaves the log.
func (p *place) removal(subject, id, data string) {
	p.t.Helper()
	m := &nats.Msg{Subject: subject, Header: nats.Header{proto.HeaderRemoved: {id}}, Data: []byte(data)}
	if _, err := p.bus.PublishBatch(p.t.Context(), []*nats.Msg{m}, nil); err != nil {
		p.t.Fatal(err)
	}
}

// makeIndex makes the index of the log as it is now.
func (p *place) makeIndex() {
	p.t.Helper()
	db, err := eventdb.Open(p.index, eventdb.Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	c := &checker{System: System{Bus: p.bus, Progress: func(string, int, int) {}}, report: &Report{}, truth: db}
	if err := c.readLog(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		p.t.Fatal(err)
	}
}

// check runs a check and gives its findings as "part: problem".
func (p *place) check(repair bool) (findings []string, report *Report) {
	p.t.Helper()
	unlock, err := eventdb.Lock(p.index)
	if err != nil {
		p.t.Fatal(err)
	}
	defer unlock()
	store, err := repository.NewStore(repository.Options{Root: p.root, LookOnly: !repair})
	if err != nil {
		p.t.Fatal(err)
	}
	report, err = Run(p.t.Context(), System{
		Bus: p.bus, Rules: repository.Rules{Rules: config.Rules{Home: domain}, Store: store}, Store: store, Indexes: []string{p.index}, Temp: p.t.TempDir(), Repair: repair, Progress: func(string, int, int) {},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range report.Findings {
		if repair && f.Mend != "" && !f.Mended {
			p.t.Errorf("not mended: %+v", f)
		}
		findings = append(findings, f.Part+": "+f.Problem)
	}
	return findings, report
}

// TestEachDamageIsFoundAndMended spoils one thing after the other.
func TestEachDamageIsFoundAndMended(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		spoil  func(t *testing.T, p *place)
		want   []string // prefixes
		mended bool     // a check after --repair is clean
	}{
		{"nothing", func(*testing.T, *place) {}, nil, true},
		{"a branch moved", func(t *testing.T, p *place) { git(t, p.repo.Path(), "update-ref", "refs/heads/main", p.tip) },
			[]string{"references: they are not what the state"}, true},
		{"a branch too many", func(t *testing.T, p *place) { git(t, p.repo.Path(), "update-ref", "refs/heads/other", p.tip) },
			[]string{"references: they are not what the state"}, true},
		{"HEAD elsewhere", func(t *testing.T, p *place) { git(t, p.repo.Path(), "symbolic-ref", "HEAD", "refs/heads/x") },
			[]string{"references: they are not what the state"}, true},
		{"a pull request's commit is not named", func(t *testing.T, p *place) {
			git(t, p.repo.Path(), "update-ref", "-d", "refs/nostr/"+p.pull.ID)
		}, []string{"references: refs/nostr/"}, true},
		{"another commit is", func(t *testing.T, p *place) {
			git(t, p.repo.Path(), "update-ref", "refs/nostr/"+p.pull.ID, p.head)
		}, []string{"references: refs/nostr/"}, true},
		{"a commit is named for an issue", func(t *testing.T, p *place) {
			issue := event(t, 1621, nostr.Tag{"a", "30617:" + p.owner + ":mine"})
			p.log(issue)
			git(t, p.repo.Path(), "update-ref", "refs/nostr/"+issue.ID, p.head)
		}, []string{"references: refs/nostr/"}, true},
		{"a commit waits for its event", func(t *testing.T, p *place) {
			git(t, p.repo.Path(), "update-ref", "refs/nostr/"+strings.Repeat("1", 64), p.head)
		}, nil, true},
		{"its objects are gone", func(t *testing.T, p *place) {
			must(t, os.RemoveAll(filepath.Join(p.repo.Path(), "objects")))
			must(t, os.Mkdir(filepath.Join(p.repo.Path(), "objects"), 0o755))
		}, []string{"objects: 1 objects are gone", "objects: git fsck"}, false},
		{"a pack is broken", func(t *testing.T, p *place) {
			packs, err := filepath.Glob(filepath.Join(p.repo.Path(), "objects", "pack", "*.pack"))
			if err != nil || len(packs) == 0 {
				t.Fatal("no packs", err)
			}
			content, err := os.ReadFile(packs[0])
			must(t, err)
			content[len(content)-1] ^= 0xff
			must(t, os.Chmod(packs[0], 0o644))
			must(t, os.WriteFile(packs[0], content, 0o644))
		}, []string{"objects: 1 objects are gone", "objects: git fsck"}, false},
		{"an empty repository without an announcement", func(t *testing.T, p *place) {
			other, err := p.store().Repo(nostr.RepoRef{PubKey: p.owner, Identifier: "other"})
			must(t, err)
			must(t, other.Ensure(t.Context()))
		}, []string{"disk: no announcement names this repository, and it is empty"}, true},
		{"a repository without an announcement", func(t *testing.T, p *place) {
			git(t, p.root, "clone", "-q", "--bare", p.repo.Path(), filepath.Join(filepath.Dir(p.repo.Path()), "other.git"))
		}, []string{"disk: no announcement names"}, true},
		{"something else on the disk", func(t *testing.T, p *place) { must(t, os.Mkdir(filepath.Join(p.root, "notes"), 0o755)) },
			[]string{"disk: it lies in the git folder"}, false},
		{"the repository is gone", func(t *testing.T, p *place) { must(t, os.RemoveAll(p.repo.Path())) },
			[]string{"disk: it is announced and not on the disk"}, false},
		{"an event was moved in the log", func(_ *testing.T, p *place) {
			p.logAt("grasp.event.1621."+p.owner+"."+strings.Repeat("a", 32), event(p.t, 1621).String())
			p.makeIndex()
		}, []string{"log: its event belongs at"}, false},
		{"an event was changed in the log", func(_ *testing.T, p *place) {
			ev := event(p.t, 1621)
			p.logAt(proto.EventSubjectOf(ev).String(), strings.Replace(ev.String(), `"content":""`, `"content":"other"`, 1))
			p.makeIndex()
		}, []string{"log: the id is not that of the event"}, false},
		{"something else in the log", func(_ *testing.T, p *place) {
			p.logAt("grasp.event.1621."+p.owner+"."+strings.Repeat("a", 32), "hello")
			p.makeIndex()
		}, []string{"log: it is no event"}, false},
		{"an event has left the log", func(t *testing.T, p *place) {
			issue := event(t, 1621, nostr.Tag{"a", "30617:" + p.owner + ":mine"})
			p.log(issue)
			p.makeIndex()
			p.removal(proto.EventSubjectOf(issue).String(), issue.ID, "")
		}, nil, true},
		{"something else left the log", func(_ *testing.T, p *place) {
			subject := "grasp.event.1621." + p.owner + "." + strings.Repeat("a", 32)
			p.removal(subject, strings.Repeat("b", 64), "")
			p.makeIndex()
		}, []string{"log: it removes the event " + strings.Repeat("b", 64) + ", which belongs elsewhere"}, false},
		{"what left the log is there", func(_ *testing.T, p *place) {
			p.removal("grasp.event.1621."+p.owner+"."+strings.Repeat("a", 32), strings.Repeat("a", 64), "{}")
			p.makeIndex()
		}, []string{"log: it removes the event " + strings.Repeat("a", 64) + ", and is not empty"}, false},
		{"no event left the log", func(_ *testing.T, p *place) {
			p.removal("grasp.event.1621."+p.owner+"."+strings.Repeat("a", 32), "x", "")
			p.makeIndex()
		}, []string{"log: it removes what is no event"}, false},
		{"the index lags", func(t *testing.T, p *place) { p.log(event(t, 1621, nostr.Tag{"a", "30617:" + p.owner + ":mine"})) }, nil, true},
		{"a file of the index is broken", func(t *testing.T, p *place) {
			tables, err := filepath.Glob(filepath.Join(p.index, "*.sst"))
			if err != nil || len(tables) == 0 {
				t.Fatal("no tables", err)
			}
			must(t, os.Truncate(tables[0], 10))
		}, []string{"index: its files are damaged"}, true},
		{"the index has another event", func(t *testing.T, p *place) {
			db, err := eventdb.Open(p.index, eventdb.Options{})
			must(t, err)
			must(t, db.Apply([]eventdb.Record{{Seq: 4, Event: event(t, 1621)}}))
			must(t, db.Close())
			p.logAt(proto.SubjectEventsMark, "{}") // of the same sequence
		}, []string{"index: "}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			c.spoil(t, p)
			before := contents(t, p.root, p.index)
			found, report := p.check(false)
			if !slices.EqualFunc(found, c.want, strings.HasPrefix) {
				t.Fatalf("found %q, want %q", found, c.want)
			}
			if after := contents(t, p.root, p.index); !maps.Equal(before, after) {
				t.Errorf("the check has changed something: %v after %v", after, before)
			}
			if clean := report.Clean(); clean != (len(c.want) == 0) {
				t.Errorf("clean: %t", clean)
			}
			p.check(true)
			if after, report := p.check(false); report.Clean() != c.mended {
				t.Errorf("clean after the repair: %t: %q", report.Clean(), after)
			}
		})
	}
}

// contents is every file of some folders and what is in it.
func contents(t testing.TB, dirs ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range dirs {
		must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				all[path] = ""
				return err
			}
			content, err := os.ReadFile(path)
			all[path] = string(content)
			return err
		}))
	}
	return all
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestAnOrphanIsKept: the copy of a repository without an announcement has everything, and is not
// looked at again.
func TestAnOrphanIsKept(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	npub := filepath.Base(filepath.Dir(p.repo.Path()))
	git(t, p.root, "clone", "-q", "--bare", p.repo.Path(), filepath.Join(filepath.Dir(p.repo.Path()), "other.git"))
	p.check(true)
	kept := filepath.Join(p.root, repository.OrphansFolder, npub, "other.git")
	if got := git(t, kept, "rev-parse", "refs/heads/main"); got != p.head {
		t.Errorf("the copy has %s", got)
	}
	git(t, p.root, "clone", "-q", "--bare", p.repo.Path(), filepath.Join(filepath.Dir(p.repo.Path()), "other.git"))
	unlock, err := eventdb.Lock(p.index)
	must(t, err)
	defer unlock()
	report, err := Run(t.Context(), System{
		Bus: p.bus, Rules: repository.Rules{Rules: config.Rules{Home: domain}, Store: p.store()}, Store: p.store(), Temp: t.TempDir(), Repair: true, Progress: func(string, int, int) {},
	})
	if err != nil || len(report.Findings) != 1 || !strings.Contains(report.Findings[0].Failed, "is there already") {
		t.Errorf("a second one of that name: %+v, %v", report.Findings, err)
	}
}

// TestWhatItsOwnerGaveUpIsLeftAlone: a repository that purgatory keeps is no finding, and a repair
// does not touch it; nor one of which purgatory has noted nothing yet.
func TestWhatItsOwnerGaveUpIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, note := range map[string]*repository.Ended{"noted": {Announcement: strings.Repeat("a", 64), Reason: "deleted", Since: time.Now()}, "not noted yet": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.log(event(t, 5, nostr.Tag{"a", "30617:" + p.owner + ":mine"}))
			if note != nil {
				must(t, p.repo.SetEnded(*note))
			}
			for _, repair := range []bool{false, true} {
				if found, _ := p.check(repair); len(found) > 0 {
					t.Errorf("found %q", found)
				}
			}
			if got := git(t, p.repo.Path(), "rev-parse", "refs/heads/main"); got != p.head {
				t.Errorf("main is %s", got)
			}
		})
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		findings []Finding
		want     string
	}{
		{nil, "1 event in the log, 0 indexes, 2 repositories were looked at\nnote: n\nclean\n"},
		{[]Finding{{Part: PartDisk, What: "x", Problem: "p", Mend: "m", Mended: true}}, "disk: x: p (mended: m)\n1 finding, all mended\n"},
		{[]Finding{
			{Part: PartDisk, What: "y", Problem: "p", Mend: "m"}, {Part: PartDisk, What: "z", Problem: "p", Mend: "m", Failed: "no room"},
			{Part: PartDisk, What: "x", Problem: "p", Mend: "m", Mended: true}, {Part: PartLog, What: "message 1", Problem: "it is no event"},
		}, "\nlog: message 1: it is no event\ndisk: x: p (mended: m)\ndisk: y: p (--repair: m)\ndisk: z: p (could not be mended: no room)\n" +
			"4 findings: 1 mended, 1 can be mended by --repair, 2 only by hand\n"},
		{[]Finding{{Part: PartDisk, What: "x", Problem: "p"}}, "1 finding: 1 only by hand\n"},
		{[]Finding{{Part: PartDisk, What: "x", Problem: "p", Mend: "m"}}, "1 finding: 1 can be mended by --repair\n"},
	} {
		r := &Report{Events: 1, Repositories: 2, Notes: []string{"n"}, Findings: c.findings}
		r.sort()
		var out bytes.Buffer
		r.Write(&out, false)
		if !strings.Contains(out.String(), c.want) {
			t.Errorf("no %q in\n%s", c.want, &out)
		}
	}
}

// TestObjectsComeFromACopy: what docs/moving.md says for objects that are gone.
func TestObjectsComeFromACopy(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	kept := filepath.Join(t.TempDir(), "copy.git")
	must(t, gittree.Git("git").Mirror(t.Context(), p.repo.Path(), kept))
	must(t, os.RemoveAll(filepath.Join(p.repo.Path(), "objects")))
	must(t, os.Mkdir(filepath.Join(p.repo.Path(), "objects"), 0o755))
	if found, _ := p.check(true); len(found) == 0 {
		t.Fatal("nothing is found")
	}
	pipe := exec.Command("sh", "-c", `git -C "$0" pack-objects -q --all --stdout </dev/null | git -C "$1" index-pack --stdin`, kept, p.repo.Path())
	if out, err := pipe.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p.check(true)
	if found, report := p.check(false); !report.Clean() {
		t.Errorf("still found: %q", found)
	}
}
