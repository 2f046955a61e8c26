package check

import (
	"bytes"
	"errors"
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

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

var (
	must  = fixture.Must
	owner = fixture.PersonOf(strings.Repeat("03", 32)).At(1000)
	about = owner.Repo("mine") // names the repository
	issue = owner.Sign(1621, "", about)
)

// place is a system without services: a log, an index of it, and a git folder.
type place struct {
	*testing.T
	bus   *bus.Bus
	index string
	root  string
	repo  *repository.Repo
	pull  *nostr.Event
	head  string // what main is
	tip   string // of the pull request
}

// newPlace is one with a repository of a branch and a pull request, all as it should be.
func newPlace(t *testing.T) *place {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing()})
	must(t, err)
	t.Cleanup(b.Close)
	p := &place{T: t, bus: b, index: filepath.Join(t.TempDir(), "index-up"), root: t.TempDir()}
	p.repo, err = p.store(false).Repo(nostr.RepoRef{PubKey: owner.PubKey, Identifier: "mine"})
	must(t, err)
	gittest.Do(t, p.repo, func(repo *repository.Locked) error { return repo.Ensure(t.Context()) })
	tree := p.git("hash-object", "-t", "tree", "-w", "--stdin")
	p.head = p.git("commit-tree", "-m", "first", tree)
	p.tip = p.git("commit-tree", "-m", "a fix", "-p", p.head, tree)
	p.pull = owner.Pull("", p.tip, about)
	p.log(owner.Announce("mine"), owner.State("mine", map[string]string{"refs/heads/main": p.head}), p.pull)
	gittest.Do(t, p.repo, func(repo *repository.Locked) error {
		return errors.Join(repo.SetRefs(t.Context(), map[string]string{"refs/heads/main": p.head}, nil, "refs/heads/main"),
			repo.SetRef(t.Context(), "refs/nostr/"+p.pull.ID, p.tip))
	})
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
		Bus: p.bus, Rules: repository.Rules{Rules: config.Rules{Home: fixture.Domain}, Store: store}, Store: store,
		Indexes: []string{p.index}, Temp: p.TempDir(), Progress: func(string, int, int) {},
	}))
	for _, f := range report.Findings {
		if strings.HasPrefix(f.What, "30617:") {
			p.Errorf("a repository is not named as elsewhere: %s", f.What)
		}
		findings = append(findings, f.Part+": "+f.Problem)
	}
	return findings, report
}

// TestEachDamageIsFoundAndMended: a row is what is done to a place, by steps and by a script in the
// folder of its repository; how the findings begin; and whether a check after --repair is clean.
func TestEachDamageIsFoundAndMended(t *testing.T) {
	t.Parallel()
	for _, row := range fixture.Rows(`
		nothing                                       | | | | mended
		a branch moved                                | | git update-ref refs/heads/main TIP | STATE | mended
		HEAD elsewhere                                | | git symbolic-ref HEAD refs/heads/x | STATE | mended
		a pull request's commit is not named          | | git update-ref -d refs/nostr/PULL | REFS | mended
		another commit is                             | | git update-ref refs/nostr/PULL MAIN | REFS | mended
		a commit is named for an issue                | issue | git update-ref refs/nostr/ISSUE MAIN | REFS | mended
		a commit waits for its event                  | | git update-ref refs/nostr/ISSUE MAIN | | mended
		its objects are gone                          | | rm -r objects; mkdir objects | objects: 1 objects are gone; objects: git fsck |
		a pack is broken                              | | for f in objects/pack/*.pack; do chmod 644 $f; echo >> $f; done | objects: 1 objects are gone; objects: git fsck |
		an empty repository without an announcement   | other | | disk: no announcement names this repository, and it is empty | mended
		a repository without an announcement          | | git clone -q --bare . ../other.git | disk: no announcement names | mended
		something else on the disk                    | | mkdir ../../notes | disk: unknown file in the git folder |
		the repository is gone                        | | rm -r ../mine.git | disk: it is announced and not on the disk |
		its owner gave it up                          | deletion ended | | | mended
		its owner gave it up a moment ago             | deletion | | | mended
		an event was changed in the log               | forged index | | log: the id is not that of the event |
		an event has left the log                     | issue index removal | | | mended
		its owner has left                            | left | | | mended
		its owner has left for a lead who is missing  | lead | git update-ref refs/heads/main TIP | | mended
		the owner's state is gone                     | stateless | | references: there are branches or tags, and no state |
		the index lags                                | issue | | | mended
		a file of the index is broken                 | | for f in INDEX/*.sst; do echo > $f; done | index: its files are damaged | mended
		the index has another event of the sequence   | indexed mark later | | index: | mended
		the index ends with one that the log has not  | indexed mark | | | mended`) {
		t.Run(row[0], func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			subject, later := proto.EventSubjectOf(issue).String(), owner.Sign(1621, "later", about)
			steps := map[string]func(){
				"issue": func() { p.log(issue) }, "deletion": func() { p.log(owner.Sign(5, "", about)) }, "index": p.makeIndex,
				"forged": func() {
					p.publish(&nats.Msg{Subject: subject, Data: []byte(strings.Replace(issue.String(), `"content":""`, `"content":"other"`, 1))})
				},
				"left": func() {
					p.log(owner.At(nostr.Now()+1).Sign(30617, "", append(owner.Announce("mine").Tags, nostr.Tag{"m", owner.PubKey, "1", "2"})...))
				},
				"lead": func() {
					p.log(owner.At(nostr.Now()+1).Sign(30617, "", append(owner.Announce("mine").Tags, nostr.Tag{"M", strings.Repeat("a", 64)})...))
				},
				"stateless": func() {
					p.log(owner.At(nostr.Now()+1).Sign(5, "", nostr.Tag{"a", "30618:" + owner.PubKey + ":mine"}))
				},
				"removal": func() {
					p.publish(&nats.Msg{Subject: subject, Header: nats.Header{proto.HeaderRemoved: {issue.ID}}})
				},
				"mark": func() { p.publish(&nats.Msg{Subject: proto.SubjectEventsMark, Data: []byte("{}")}) },
				"ended": func() {
					gittest.Do(t, p.repo, func(repo *repository.Locked) error {
						return repo.SetEnded(&repository.Ended{Announcement: strings.Repeat("a", 64), Reason: "deleted", Since: time.Now()})
					})
				},
				"other": func() {
					other, err := p.store(false).Repo(nostr.RepoRef{PubKey: owner.PubKey, Identifier: "other"})
					must(t, err)
					gittest.Do(t, other, func(repo *repository.Locked) error { return repo.Ensure(t.Context()) })
				},
				"indexed": func() {
					db, err := eventdb.Open(p.index, eventdb.Options{})
					must(t, err)
					must(t, db.Apply([]eventdb.Record{{Seq: 4, Event: issue}}))
					if strings.Contains(row[1], "later") {
						must(t, db.Apply([]eventdb.Record{{Seq: 5, Event: later}}))
					}
					must(t, db.Close())
				},
				"later": func() { p.log(later) },
			}
			for step := range strings.FieldsSeq(row[1]) {
				steps[step]()
			}
			words := strings.NewReplacer("TIP", p.tip, "MAIN", p.head, "PULL", p.pull.ID, "ISSUE", issue.ID, "INDEX", p.index,
				"STATE", "references: they are not what the state", "REFS", "references: refs/nostr/")
			damage := exec.Command("sh", "-c", words.Replace(row[2]))
			damage.Dir = p.repo.Path
			if out, err := damage.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			want := slices.DeleteFunc(strings.Split(words.Replace(row[3]), "; "), func(finding string) bool { return finding == "" })
			before := contents(t, p.root, p.index)
			found, report := p.check(false)
			if !slices.EqualFunc(found, want, strings.HasPrefix) || report.Clean() != (len(want) == 0) {
				t.Fatalf("found %q, want %q", found, want)
			}
			if after := contents(t, p.root, p.index); !maps.Equal(before, after) {
				t.Errorf("the check has changed something: %v after %v", after, before)
			}
			p.check(true)
			if after, report := p.check(false); report.Clean() != (row[4] != "") {
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
	words := strings.NewReplacer("SUBJECT", proto.EventSubjectOf(issue).String(), "EVENT", issue.String(), "ID", issue.ID,
		"FORGED", strings.Replace(issue.String(), `"content":""`, `"content":"x"`, 1))
	for _, c := range fixture.Rows(`
		genuine              | SUBJECT           | EVENT  |    |
		another content      | SUBJECT           | FORGED |    | the id is not that of the event
		another subject      | grasp.event.1.x.y | EVENT  |    | belongs at grasp.event.1621.
		no event             | SUBJECT           | hello  |    | not an event
		a removal            | SUBJECT           |        | ID |
		a removal with data  | SUBJECT           | {}     | ID | is not empty
		a removal of nothing | SUBJECT           |        | x  | it removes what is no event`) {
		m := bus.Message{Subject: words.Replace(c[1]), Data: []byte(words.Replace(c[2])), Header: nats.Header{proto.HeaderRemoved: {words.Replace(c[3])}}}
		if err := look(m); c[4] == "" && err != nil || c[4] != "" && (err == nil || !strings.Contains(err.Error(), c[4])) {
			t.Errorf("%s: %v, want %q", c[0], err, c[4])
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
