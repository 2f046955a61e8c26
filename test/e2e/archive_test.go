package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// published is a repository at the foreign GRASP server, and everything that belongs to it.
type published struct {
	identifier string
	owner      *fixture.Person
	work       *world.WorkTree
	events     []*nostr.Event
	refs       map[string]string // that a clone has, refs/nostr/ included
}

// publish announces a repository at a GRASP server, pushes it, and adds an issue with a comment and
// a pull request whose commit is only there.
func publish(t *testing.T, at *world.Tendril, identifier string) *published {
	t.Helper()
	r := &published{identifier: identifier, owner: at.Person(), work: world.NewWorkTree(t)}
	guest := fixture.NewPerson()
	r.work.Git("tag", "-a", "v1", "-m", "version 1")
	r.work.Git("branch", "old")
	announcement := r.owner.Announce(identifier)
	state := r.owner.State(identifier, r.work.Refs())
	at.Holds(announcement, state)
	remote := at.Repo(r.owner, identifier)
	r.work.Git("push", "-q", remote, "main", "old", "v1")
	r.refs = r.work.Refs()

	r.work.Git("checkout", "-q", "-b", "fix")
	tip := r.work.Commit("a fix")
	pull := guest.Pull("please", tip, r.owner.Repo(identifier), nostr.Tag{"clone", "http://" + at.Domain + nostr.RepositoryURLPath(r.owner.Npub, identifier)})
	at.Holds(pull)
	r.work.Git("push", "-q", remote, "fix:refs/nostr/"+pull.ID)
	r.refs["refs/nostr/"+pull.ID] = tip
	issue := guest.Sign(1621, "it does not work", r.owner.Repo(identifier))
	comment := r.owner.Comment("it does", issue, issue)
	at.Accepts(issue, comment)
	r.events = []*nostr.Event{announcement, state, pull, issue, comment}
	return r
}

// isWholeAt checks that everything of the repository can be read and cloned at a server.
func (r *published) isWholeAt(t *testing.T, p *world.Tendril) {
	t.Helper()
	p.Serves(r.events...)
	copied := world.CloneIs(t, p.Repo(r.owner, r.identifier), r.refs["refs/heads/main"])
	remote := world.Git(t, copied, "ls-remote", "origin")
	for name, id := range r.refs {
		if !strings.Contains(remote, id+"\t"+name) {
			t.Errorf("%s is not served as %s:\n%s", name, id, remote)
		}
		world.Git(t, copied, "fetch", "-q", "origin", id)
	}
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
	repos := []*published{publish(t, foreign, "first"), publish(t, foreign, "my repo/ü"), publish(t, foreign, "third")}
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": "ws://" + domain, "NGIT_ARCHIVE_GRASP_SERVICES": domain})
	for _, r := range repos {
		p.Serves(r.events...)
	}
	foreign.Kill()
	for _, r := range repos {
		r.isWholeAt(t, p)
	}
	if d := information(t, p); !slices.Contains(d.Grasps, "GRASP-05") || !strings.Contains(d.Curation, domain) {
		t.Errorf("the information document says %+v", d)
	}

	r := repos[0]
	readOnly := func() {
		t.Helper()
		r.work.Fails("read-only archive", "push", p.Repo(r.owner, r.identifier), "fix:refs/heads/main")
	}
	readOnly()

	must(t, p.Stop())
	p.Change(map[string]string{"NGIT_ARCHIVE_GRASP_SERVICES": "", "NGIT_SYNC_BOOTSTRAP_RELAY_URL": ""})
	p.Restart()
	for _, r := range repos {
		r.isWholeAt(t, p)
	}
	readOnly()
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
