package e2e

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// published is a repository at the foreign GRASP server, and everything that belongs to it.
type published struct {
	identifier, escaped string
	owner               *fixture.Person
	work                *world.WorkTree
	events              []*nostr.Event
	refs                map[string]string // that a clone has, refs/nostr/ included
}

// publish announces a repository at a GRASP server, pushes it, and adds an issue with a comment and
// a pull request whose commit is only there.
func publish(t *testing.T, at *world.Tendril, domain, identifier, escaped string) *published {
	t.Helper()
	r := &published{identifier: identifier, escaped: escaped, owner: fixture.NewPerson(), work: world.NewWorkTree(t)}
	guest := fixture.NewPerson()
	world.Git(t, r.work.Dir, "tag", "-a", "v1", "-m", "version 1")
	world.Git(t, r.work.Dir, "branch", "old")
	announcement := r.owner.On(domain).Announce(identifier)
	state := r.owner.State(identifier, r.work.Refs())
	wantHeld(t, at, announcement, state)
	remote := at.URL + r.path()
	world.Git(t, r.work.Dir, "push", "-q", remote, "main", "old", "v1")
	r.refs = r.work.Refs()

	world.Git(t, r.work.Dir, "checkout", "-q", "-b", "fix")
	tip := r.work.Commit("a fix")
	pull := guest.Pull("please", tip, r.owner.Repo(identifier), nostr.Tag{"clone", "http://" + domain + r.path()})
	wantHeld(t, at, pull)
	world.Git(t, r.work.Dir, "push", "-q", remote, "fix:refs/nostr/"+pull.ID)
	r.refs["refs/nostr/"+pull.ID] = tip
	issue := guest.Sign(1621, "it does not work", r.owner.Repo(identifier))
	comment := r.owner.Comment("it does", issue, issue)
	for _, ev := range []*nostr.Event{issue, comment} {
		if ok, message := submit(t, at, ev); !ok {
			t.Fatalf("kind %d is refused: %s", ev.Kind, message)
		}
	}
	r.events = []*nostr.Event{announcement, state, pull, issue, comment}
	return r
}

func (r *published) path() string { return "/" + r.owner.Npub + "/" + r.escaped + ".git" }

// isWholeAt checks that everything of the repository can be read and cloned at a server.
func (r *published) isWholeAt(t *testing.T, p *world.Tendril) {
	t.Helper()
	world.Serves(t, p.Relay(), r.events...)
	dir := t.TempDir()
	world.Git(t, dir, "clone", "-q", p.URL+r.path(), "copy")
	copied := filepath.Join(dir, "copy")
	remote := world.Git(t, copied, "ls-remote", "origin")
	for name, id := range r.refs {
		if !strings.Contains(remote, id+"\t"+name) {
			t.Errorf("%s is not served as %s:\n%s", name, id, remote)
		}
		world.Git(t, copied, "fetch", "-q", "origin", id)
	}
	if head := world.Git(t, copied, "rev-parse", "HEAD"); head != r.refs["refs/heads/main"] {
		t.Errorf("HEAD is %s", head)
	}
	world.Git(t, copied, "fsck", "--full")
}

// TestArchive keeps what another GRASP server hosts (GRASP-05): three repositories are archived
// whole, the other server goes away, and everything can still be cloned and read here, and not
// written; also after the operator has stopped to archive.
func TestArchive(t *testing.T) {
	t.Parallel()
	balancer := world.NewBalancer(t)
	domain := strings.TrimPrefix(balancer.URL, "http://")
	foreign := world.Start(t, map[string]string{"NGIT_DOMAIN": domain})
	balancer.Add(foreign.URL)
	repos := []*published{
		publish(t, foreign, domain, "first", "first"), publish(t, foreign, domain, "my repo/ü", "my%20repo%2F%C3%BC"),
		publish(t, foreign, domain, "third", "third"),
	}
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": "ws://" + domain, "NGIT_ARCHIVE_GRASP_SERVICES": domain})
	for _, r := range repos {
		world.Serves(t, p.Relay(), r.events...)
	}
	foreign.Kill()
	for _, r := range repos {
		r.isWholeAt(t, p)
	}
	if d := information(t, p); !slices.Contains(d.Grasps, "GRASP-05") || !strings.Contains(d.Curation, domain) {
		t.Errorf("the information document says %+v", d)
	}

	r := repos[0]
	readOnly := func(when string) {
		t.Helper()
		out, err := world.TryGit(t, r.work.Dir, "push", p.URL+r.path(), "fix:refs/heads/main")
		if err == nil || !strings.Contains(out, "read-only archive") {
			t.Errorf("a push when %s: %v\n%s", when, err, out)
		}
		t.Logf("git push %s\n%s", r.path(), out)
	}
	readOnly("it is archived")

	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	p.Change(map[string]string{"NGIT_ARCHIVE_GRASP_SERVICES": "", "NGIT_SYNC_BOOTSTRAP_RELAY_URL": ""})
	p.Restart()
	for _, r := range repos {
		r.isWholeAt(t, p)
	}
	readOnly("it is archived no more")
	if d := information(t, p); slices.Contains(d.Grasps, "GRASP-05") || d.Curation != "" {
		t.Errorf("the information document still says %+v", d)
	}
}

// document is what the information document (NIP-11) says of GRASP.
type document struct {
	Grasps   []string `json:"supported_grasps"`
	Curation string   `json:"curation"`
	PubKey   string   `json:"pubkey"`
}

func information(t *testing.T, p *world.Tendril) (d document) {
	t.Helper()
	_, body := world.Get(t, p.URL, "Accept", "application/nostr+json")
	if err := json.Unmarshal([]byte(body), &d); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return d
}
