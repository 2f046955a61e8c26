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
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture/gittest"
)

const (
	key    = "0000000000000000000000000000000000000000000000000000000000000003"
	domain = "grasp.test"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func event(t testing.TB, kind int, tags ...nostr.Tag) *nostr.Event {
	t.Helper()
	ev := &nostr.Event{Kind: kind, CreatedAt: 1000, Tags: tags}
	must(t, ev.Sign(key))
	return ev
}

// place is a system without services: a log, an index of it, and a git folder.
type place struct {
	*testing.T
	bus   *bus.Bus
	index string
	root  string
	repo  *repository.Repo
	pull  *nostr.Event
	about nostr.Tag // that names the repository
	head  string    // what main is
	tip   string    // of the pull request
}

// newPlace is one with a repository of a branch and a pull request, all as it should be.
func newPlace(t *testing.T) *place {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing()})
	must(t, err)
	t.Cleanup(b.Close)
	p := &place{T: t, bus: b, index: filepath.Join(t.TempDir(), "index-up"), root: t.TempDir()}
	owner := event(t, 1).PubKey
	npub, err := nip19.EncodePublicKey(owner)
	must(t, err)
	p.about = nostr.Tag{"a", "30617:" + owner + ":mine"}
	p.repo, err = p.store(false).Repo(nostr.RepoRef{PubKey: owner, Identifier: "mine"})
	must(t, err)
	must(t, p.repo.Ensure(t.Context()))
	tree := p.git("hash-object", "-t", "tree", "-w", "--stdin")
	p.head = p.git("commit-tree", "-m", "first", tree)
	p.tip = p.git("commit-tree", "-m", "a fix", "-p", p.head, tree)
	p.pull = event(t, 1618, p.about, nostr.Tag{"c", p.tip})
	p.log(event(t, 30617, nostr.Tag{"d", "mine"}, nostr.Tag{"clone", "http://" + domain + "/" + npub + "/mine.git"}, nostr.Tag{"relays", "ws://" + domain}),
		event(t, 30618, nostr.Tag{"d", "mine"}, nostr.Tag{"refs/heads/main", p.head}, nostr.Tag{"HEAD", "ref: refs/heads/main"}), p.pull)
	err = p.repo.SetRefs(t.Context(), map[string]string{"refs/heads/main": p.head}, nil, "refs/heads/main")
	must(t, err)
	must(t, p.repo.SetRef(t.Context(), "refs/nostr/"+p.pull.ID, p.tip))
	p.git("repack", "-adq")
	p.makeIndex()
	return p
}

// git runs git in the repository, as an operator may.
func (p *place) git(args ...string) string { return gittest.Git(p, p.repo.Path, args...) }

// beside is the path of another repository of the owner.
func (p *place) beside(name string) string { return filepath.Join(filepath.Dir(p.repo.Path), name) }

func (p *place) store(look bool) *repository.Store {
	p.Helper()
	store, err := repository.NewStore(repository.Options{Root: p.root, LookOnly: look})
	must(p, err)
	return store
}

// log writes events as ingest does.
func (p *place) log(events ...*nostr.Event) {
	p.Helper()
	for _, ev := range events {
		p.publish(&nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: []byte(ev.String())})
	}
}

func (p *place) publish(m *nats.Msg) {
	p.Helper()
	_, err := p.bus.PublishBatch(p.Context(), []*nats.Msg{m}, nil)
	must(p, err)
}

// makeIndex makes the index of the log as it is now.
func (p *place) makeIndex() {
	p.Helper()
	db, err := eventdb.Open(p.index, eventdb.Options{})
	must(p, err)
	c := &checker{System: System{Bus: p.bus, Progress: func(string, int, int) {}}, Report: &Report{}, truth: db}
	must(p, c.readLog(p.Context()))
	must(p, db.Close())
}

// check runs a check and gives its findings as "part: problem".
func (p *place) check(repair bool) (findings []string, report *Report) {
	p.Helper()
	unlock, err := eventdb.Lock(p.index)
	must(p, err)
	defer unlock()
	store := p.store(!repair)
	report = NewReport(repair)
	must(p, Run(p.Context(), report, System{
		Bus: p.bus, Rules: repository.Rules{Rules: config.Rules{Home: domain}, Store: store}, Store: store,
		Indexes: []string{p.index}, Temp: p.TempDir(), Progress: func(string, int, int) {},
	}))
	for _, f := range report.Findings {
		findings = append(findings, f.Part+": "+f.Problem)
	}
	return findings, report
}

// TestEachDamageIsFoundAndMended spoils one thing after the other.
func TestEachDamageIsFoundAndMended(t *testing.T) {
	t.Parallel()
	const state, refsNostr = "references: they are not what the state", "references: refs/nostr/"
	for _, c := range []struct {
		name   string
		spoil  func(p *place)
		want   []string // prefixes
		mended bool     // a check after --repair is clean
	}{
		{"nothing", func(*place) {}, nil, true},
		{"a branch moved", func(p *place) { p.git("update-ref", "refs/heads/main", p.tip) }, []string{state}, true},
		{"HEAD elsewhere", func(p *place) { p.git("symbolic-ref", "HEAD", "refs/heads/x") }, []string{state}, true},
		{"a pull request's commit is not named", func(p *place) { p.git("update-ref", "-d", "refs/nostr/"+p.pull.ID) }, []string{refsNostr}, true},
		{"another commit is", func(p *place) { p.git("update-ref", "refs/nostr/"+p.pull.ID, p.head) }, []string{refsNostr}, true},
		{"a commit is named for an issue", func(p *place) {
			issue := event(p, 1621, p.about)
			p.log(issue)
			p.git("update-ref", "refs/nostr/"+issue.ID, p.head)
		}, []string{refsNostr}, true},
		{"a commit waits for its event", func(p *place) { p.git("update-ref", "refs/nostr/"+strings.Repeat("1", 64), p.head) }, nil, true},
		{"its objects are gone", func(p *place) {
			must(p, os.RemoveAll(filepath.Join(p.repo.Path, "objects")))
			must(p, os.Mkdir(filepath.Join(p.repo.Path, "objects"), 0o755))
		}, []string{"objects: 1 objects are gone", "objects: git fsck"}, false},
		{"a pack is broken", func(p *place) {
			packs, _ := filepath.Glob(filepath.Join(p.repo.Path, "objects", "pack", "*.pack"))
			content, err := os.ReadFile(packs[0])
			must(p, err)
			content[len(content)-1] ^= 0xff
			must(p, os.Chmod(packs[0], 0o644))
			must(p, os.WriteFile(packs[0], content, 0o644))
		}, []string{"objects: 1 objects are gone", "objects: git fsck"}, false},
		{"an empty repository without an announcement", func(p *place) {
			other, err := p.store(false).Repo(nostr.RepoRef{PubKey: p.repo.PubKey, Identifier: "other"})
			must(p, err)
			must(p, other.Ensure(p.Context()))
		}, []string{"disk: no announcement names this repository, and it is empty"}, true},
		{"a repository without an announcement", func(p *place) { p.git("clone", "-q", "--bare", ".", p.beside("other.git")) },
			[]string{"disk: no announcement names"}, true},
		{"something else on the disk", func(p *place) { must(p, os.Mkdir(filepath.Join(p.root, "notes"), 0o755)) }, []string{"disk: it lies in the git folder"}, false},
		{"the repository is gone", func(p *place) { must(p, os.RemoveAll(p.repo.Path)) }, []string{"disk: it is announced and not on the disk"}, false},
		{"its owner gave it up", func(p *place) {
			p.log(event(p, 5, p.about))
			must(p, p.repo.SetEnded(repository.Ended{Announcement: strings.Repeat("a", 64), Reason: "deleted", Since: time.Now()}))
		}, nil, true},
		{"its owner gave it up a moment ago", func(p *place) { p.log(event(p, 5, p.about)) }, nil, true},
		{"an event was changed in the log", func(p *place) {
			ev := event(p, 1621)
			p.publish(&nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: []byte(strings.Replace(ev.String(), `"content":""`, `"content":"other"`, 1))})
			p.makeIndex()
		}, []string{"log: the id is not that of the event"}, false},
		{"an event has left the log", func(p *place) {
			issue := event(p, 1621, p.about)
			p.log(issue)
			p.makeIndex()
			p.publish(&nats.Msg{Subject: proto.EventSubjectOf(issue).String(), Header: nats.Header{proto.HeaderRemoved: {issue.ID}}})
		}, nil, true},
		{"the index lags", func(p *place) { p.log(event(p, 1621, p.about)) }, nil, true},
		{"a file of the index is broken", func(p *place) {
			tables, _ := filepath.Glob(filepath.Join(p.index, "*.sst"))
			must(p, os.Truncate(tables[0], 10))
		}, []string{"index: its files are damaged"}, true},
		{"the index has another event", func(p *place) {
			db, err := eventdb.Open(p.index, eventdb.Options{})
			must(p, err)
			must(p, db.Apply([]eventdb.Record{{Seq: 4, Event: event(p, 1621)}}))
			must(p, db.Close())
			p.publish(&nats.Msg{Subject: proto.SubjectEventsMark, Data: []byte("{}")}) // of the same sequence
		}, []string{"index: "}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			c.spoil(p)
			before := contents(t, p.root, p.index)
			found, report := p.check(false)
			if !slices.EqualFunc(found, c.want, strings.HasPrefix) || report.Clean() != (len(c.want) == 0) {
				t.Fatalf("found %q, want %q", found, c.want)
			}
			if after := contents(t, p.root, p.index); !maps.Equal(before, after) {
				t.Errorf("the check has changed something: %v after %v", after, before)
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
			if err == nil && entry.Type().IsRegular() {
				content, failed := os.ReadFile(path)
				all[path], err = string(content), failed
			}
			return err
		}))
	}
	return all
}

// TestAnOrphanIsKept: the copy of a repository without an announcement has everything. Another one
// of that name stays where it is.
func TestAnOrphanIsKept(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for n := range 2 {
		p.git("clone", "-q", "--bare", ".", p.beside("other.git"))
		if _, report := p.check(true); n == 1 && !strings.Contains(report.Findings[0].Failed, "file exists") {
			t.Errorf("a second one of that name: %+v", report.Findings)
		}
	}
	kept := filepath.Join(p.root, repository.OrphansFolder, filepath.Base(p.beside("")), "other.git")
	if got := gittest.Git(t, kept, "rev-parse", "refs/heads/main"); got != p.head {
		t.Errorf("the copy has %s", got)
	}
}

// TestObjectsComeFromACopy: what docs/moving.md says for objects that are gone.
func TestObjectsComeFromACopy(t *testing.T) {
	t.Parallel()
	p, kept := newPlace(t), filepath.Join(t.TempDir(), "copy.git")
	p.git("clone", "-q", "--mirror", ".", kept)
	must(t, os.RemoveAll(filepath.Join(p.repo.Path, "objects")))
	must(t, os.Mkdir(filepath.Join(p.repo.Path, "objects"), 0o755))
	if found, _ := p.check(true); len(found) == 0 {
		t.Fatal("nothing is found")
	}
	pipe := exec.Command("sh", "-c", `git -C "$0" pack-objects -q --all --stdout </dev/null | git -C "$1" index-pack --stdin`, kept, p.repo.Path)
	if out, err := pipe.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p.check(true)
	if found, report := p.check(false); !report.Clean() {
		t.Errorf("still found: %q", found)
	}
}

// TestLook: what is wrong with one message of the log.
func TestLook(t *testing.T) {
	t.Parallel()
	ev := event(t, 1621)
	subject, raw, id := proto.EventSubjectOf(ev).String(), ev.String(), strings.Repeat("b", 64)
	for name, c := range map[string]struct{ subject, data, removed, wrong string }{
		"genuine":              {subject, raw, "", ""},
		"another content":      {subject, strings.Replace(raw, `"content":""`, `"content":"x"`, 1), "", "the id is not that of the event"},
		"another subject":      {"grasp.event.1.x.y", raw, "", "belongs at grasp.event.1621."},
		"no event":             {subject, "hello", "", "not an event"},
		"a removal":            {subject, "", id, ""},
		"a removal with data":  {subject, "{}", id, "is not empty"},
		"a removal of nothing": {subject, "", "x", "it removes what is no event"},
	} {
		m := bus.Message{Subject: c.subject, Data: []byte(c.data), Header: nats.Header{proto.HeaderRemoved: {c.removed}}}
		if err := look(m); c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: %v, want %q", name, err, c.wrong)
		}
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	can := Finding{Part: PartDisk, What: "y", Problem: "p", Mend: "m"}
	mended, failed := can, can
	mended.What, mended.Mended = "x", true
	failed.What, failed.Failed = "z", "no room"
	for _, c := range []struct {
		findings []Finding
		want     string
	}{
		{nil, "1 event in the log, 0 indexes, 2 repositories were looked at\nnote: n\nclean\n"},
		{[]Finding{mended}, "disk: x: p (mended: m)\n1 finding: 1 mended\n"},
		{[]Finding{can, failed, mended, {Part: PartLog, What: "message 1", Problem: "it is no event"}},
			"\nlog: message 1: it is no event\ndisk: x: p (mended: m)\ndisk: y: p (--repair: m)\ndisk: z: p (could not be mended: no room)\n" +
				"4 findings: 1 mended, 1 can be mended by --repair, 2 only by hand\n"},
	} {
		r := &Report{Events: 1, Repositories: 2, Notes: []string{"n"}, Findings: c.findings}
		r.sort()
		var out bytes.Buffer
		if r.Write(&out, false); !strings.Contains(out.String(), c.want) {
			t.Errorf("no %q in\n%s", c.want, &out)
		}
	}
}
