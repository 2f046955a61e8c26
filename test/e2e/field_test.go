package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/world"
)

// What the field's clients send and expect, where it differs from what one would write oneself.

// TestBareHead: a state may name HEAD's branch without "ref: ".
func TestBareHead(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	ann, work := world.NewPerson(t), world.NewWorkTree(t)
	world.Git(t, work.Dir, "branch", "-m", "trunk")
	state := ann.Sign(30618, "", nostr.Tag{"d", "mine"}, nostr.Tag{"refs/heads/trunk", work.Refs()["refs/heads/trunk"]}, nostr.Tag{"HEAD", "refs/heads/trunk"})
	wantHeld(t, p, ann.Announce("mine", "mine", nil, nil), state)
	remote := p.URL + "/" + ann.Npub + "/mine.git"
	world.Git(t, work.Dir, "push", "-q", remote, "trunk")
	if out := world.Git(t, work.Dir, "ls-remote", "--symref", remote, "HEAD"); !strings.Contains(out, "ref: refs/heads/trunk\tHEAD") {
		t.Errorf("HEAD is\n%s", out)
	}
}

// TestMadeUpObjectIDs: a state whose values are no object ids is taken and waits in vain: no server
// is asked for them.
func TestMadeUpObjectIDs(t *testing.T) {
	t.Parallel()
	git := world.NewGitServer(t)
	// The announcement is held until its state has come.
	p := world.Start(t, map[string]string{"NGIT_HUNT_USER_DELAY": "0s", "NGIT_PURGATORY_HOLD": "10s", "NGIT_PURGATORY_SILENT": "1s"})
	ann := world.NewPerson(t)
	state := ann.State("mine", map[string]string{"refs/heads/main": "abc123", "refs/heads/other": "commit-of-today"}, "refs/heads/main")
	wantHeld(t, p, ann.Announce("mine", "mine", []string{git.URL + "/mine.git"}, nil), state)
	world.Await(t, "purgatory is empty again", func() bool { return world.HeldEvents(t, p) == 0 })
	if n := git.Requests(); n != 0 {
		t.Errorf("a git server was asked %d times for what no repository can have", n)
	}
}

// TestHeadWaitsForItsBranch: until the branch is there that the state names, HEAD is what git init
// makes it.
func TestHeadWaitsForItsBranch(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	ann, work := world.NewPerson(t), world.NewWorkTree(t)
	world.Git(t, work.Dir, "branch", "-m", "trunk")
	wantHeld(t, p, ann.Announce("mine", "mine", nil, nil), ann.State("mine", work.Refs(), "refs/heads/trunk"))
	remote := p.URL + "/" + ann.Npub + "/mine.git"
	dir := t.TempDir()
	world.Git(t, dir, "init", "-q", "local")
	ours := world.Git(t, filepath.Join(dir, "local"), "symbolic-ref", "HEAD")
	world.Git(t, dir, "-c", "protocol.version=2", "clone", "-q", remote, "empty")
	if got := world.Git(t, filepath.Join(dir, "empty"), "symbolic-ref", "HEAD"); got != ours {
		t.Errorf("HEAD of an empty clone is %s, want git's own default %s", got, ours)
	}
	world.Git(t, work.Dir, "push", "-q", remote, "trunk")
	world.Git(t, dir, "clone", "-q", remote, "full")
	if got := world.Git(t, filepath.Join(dir, "full"), "symbolic-ref", "HEAD"); got != "refs/heads/trunk" {
		t.Errorf("HEAD of a clone is %s", got)
	}
}

// TestWaysToListUs: scheme, trailing slash and percent-encoding of the clone and relay URLs make no
// difference.
func TestWaysToListUs(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	for _, c := range []struct{ name, clone, relay string }{
		{"https", "https://%s/%s/my%%20repo.git", "wss://%s"},
		{"trailing slashes", "http://%s/%s/my%%20repo.git/", "ws://%s/"},
		{"as WebSocket", "wss://%s/%s/my%%20repo.git", "https://%s"},
		{"encoded in full", "http://%s/%s/%%6dy%%20repo.git", "ws://%s"},
		{"not encoded", "http://%s/%s/my repo.git", "ws://%s"},
	} {
		ann := world.NewPerson(t)
		ev := ann.Sign(30617, "", nostr.Tag{"d", "my repo"}, nostr.Tag{"clone", fmt.Sprintf(c.clone, world.Domain, ann.Npub)},
			nostr.Tag{"relays", fmt.Sprintf(c.relay, world.Domain)})
		if ok, message := submit(t, p, ev); !ok || message != waits {
			t.Errorf("%s: answered %v %q", c.name, ok, message)
		}
	}
}

// TestMaintainersOfHostedRepositories are welcome though they are not on the whitelist.
func TestMaintainersOfHostedRepositories(t *testing.T) {
	t.Parallel()
	ann, bob, eve := world.NewPerson(t), world.NewPerson(t), world.NewPerson(t)
	p := world.Start(t, map[string]string{"NGIT_REPOSITORY_WHITELIST": ann.Npub})
	work := world.NewWorkTree(t)
	wantHeld(t, p, ann.Announce("ours", "ours", nil, nil, nostr.Tag{"maintainers", bob.PubKey}), ann.State("ours", work.Refs(), "refs/heads/main"))
	world.Git(t, work.Dir, "push", "-q", p.URL+"/"+ann.Npub+"/ours.git", "main")
	if ok, message := submit(t, p, eve.Announce("ours", "ours", nil, nil)); ok || !strings.HasPrefix(message, "blocked:") {
		t.Errorf("a stranger's announcement is answered %v %q", ok, message)
	}
	if ok, message := submit(t, p, bob.Announce("ours", "ours", nil, nil, nostr.Tag{"maintainers", ann.PubKey})); !ok {
		t.Errorf("a maintainer's announcement is answered %q", message)
	}
	world.Await(t, "the maintainer's repository can be cloned", func() bool {
		out, err := world.TryGit(t, work.Dir, "ls-remote", p.URL+"/"+bob.Npub+"/ours.git", "refs/heads/main")
		return err == nil && strings.HasPrefix(out, work.Refs()["refs/heads/main"])
	})
}

// TestPageOfAHeldRepository says that its data is awaited, and nothing of what is held.
func TestPageOfAHeldRepository(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	ann := world.NewPerson(t)
	wantHeld(t, p, ann.Announce("mine", "mine", nil, nil, nostr.Tag{"description", "not to be shown yet"}))
	resp, page := get(t, p.URL+"/"+ann.Npub+"/mine.git", "Accept", "text/html")
	if resp.StatusCode != http.StatusOK || !strings.Contains(page, "mine") || strings.Contains(page, "not to be shown yet") {
		t.Errorf("%s\n%s", resp.Status, page)
	}
	if resp, _ := get(t, p.URL+"/"+ann.Npub+"/other.git", "Accept", "text/html"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a repository that was not announced: %s", resp.Status)
	}
	for _, url := range []string{p.URL, p.URL + "/" + ann.Npub + "/mine.git", p.URL + "/" + ann.Npub + "/other.git/info/refs?service=git-upload-pack", p.URL + "/nowhere"} {
		resp, _ := get(t, url)
		if got := resp.Header.Get("Access-Control-Allow-Methods"); got != "GET, POST, OPTIONS" {
			t.Errorf("%s: methods %q", url, got)
		}
		for _, header := range []string{"Content-Type", "Accept", "Accept-Encoding", "Authorization", "Content-Encoding", "Git-Protocol", "Range", "X-Requested-With"} {
			if !strings.Contains(resp.Header.Get("Access-Control-Allow-Headers"), header) {
				t.Errorf("%s: header %s is not allowed", url, header)
			}
		}
	}
}

// TestInformationDocument has what clients and directories of relays look for.
func TestInformationDocument(t *testing.T) {
	t.Parallel()
	ann := world.NewPerson(t)
	open, curated := world.Start(t, nil), world.Start(t, map[string]string{"NGIT_REPOSITORY_WHITELIST": ann.Npub})
	document := func(p *world.Tendril) map[string]any {
		_, text := get(t, p.URL, "Accept", "application/nostr+json")
		var doc map[string]any
		if err := json.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return doc
	}
	doc := document(open)
	if doc["name"] != world.Domain+" grasp relay" {
		t.Errorf("the name is %v", doc["name"])
	}
	if _, is := doc["curation"]; is {
		t.Errorf("without lists it is curated: %v", doc["curation"])
	}
	if text, _ := document(curated)["curation"].(string); text == "" {
		t.Error("with a whitelist it is not said what is kept")
	}
	icon, _ := doc["icon"].(string)
	if !strings.HasSuffix(icon, "/icon.png") {
		t.Fatalf("the icon is %q", icon)
	}
	if resp, data := get(t, open.URL+"/icon.png"); resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "image/png" || !strings.HasPrefix(data, "\x89PNG") {
		t.Errorf("the icon: %s %s", resp.Status, resp.Header.Get("Content-Type"))
	}
}

// TestPullRequestForTwoRepositories: the commit is there in every repository that the pull request
// tags, of any identifier.
func TestPullRequestForTwoRepositories(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	ann, guest := world.NewPerson(t), world.NewPerson(t)
	works := map[string]*world.WorkTree{"one": world.NewWorkTree(t), "two": world.NewWorkTree(t)}
	for identifier, work := range works {
		wantHeld(t, p, ann.Announce(identifier, identifier, nil, nil), ann.State(identifier, work.Refs(), "refs/heads/main"))
		world.Git(t, work.Dir, "push", "-q", p.URL+"/"+ann.Npub+"/"+identifier+".git", "main")
	}
	tip := works["one"].Commit("a fix for both")
	pull := guest.Sign(1618, "please", nostr.Tag{"a", ann.Address("one")}, nostr.Tag{"a", ann.Address("two")}, nostr.Tag{"c", tip})
	wantHeld(t, p, pull)
	world.Git(t, works["one"].Dir, "push", "-q", p.URL+"/"+ann.Npub+"/one.git", "HEAD:refs/nostr/"+pull.ID)
	world.Serves(t, p.Relay(), pull)
	for identifier, work := range works {
		world.Await(t, "the commit is in "+identifier, func() bool {
			out, err := world.TryGit(t, work.Dir, "ls-remote", p.URL+"/"+ann.Npub+"/"+identifier+".git", "refs/nostr/"+pull.ID)
			return err == nil && strings.HasPrefix(out, tip)
		})
		world.Git(t, filepath.Join(p.Dir, "data", "git", ann.Npub, identifier+".git"), "fsck", "--full", "--strict")
	}
}

// TestPullRequestToAMaintainer: one that tags only the announcement of a maintainer, whose
// repository lies elsewhere, is found, fetched and served with the repository that is hosted here.
func TestPullRequestToAMaintainer(t *testing.T) {
	t.Parallel()
	git := world.NewGitServer(t)
	p := world.Start(t, map[string]string{"NGIT_HUNT_USER_DELAY": "0s"})
	ann, bob, guest := world.NewPerson(t), world.NewPerson(t), world.NewPerson(t)
	work := world.NewWorkTree(t)
	wantHeld(t, p, ann.Announce("ours", "ours", nil, nil, nostr.Tag{"maintainers", bob.PubKey}), ann.State("ours", work.Refs(), "refs/heads/main"))
	remote := p.URL + "/" + ann.Npub + "/ours.git"
	world.Git(t, work.Dir, "push", "-q", remote, "main")
	if ok, message := submit(t, p, bob.Sign(30617, "", nostr.Tag{"d", "ours"}, nostr.Tag{"clone", "https://git.example.com/bob/ours.git"},
		nostr.Tag{"relays", "wss://relay.example.com"})); !ok || message != "" {
		t.Fatalf("the maintainer's announcement is answered %v %q", ok, message)
	}
	tip := work.Commit("a fix")
	pull := guest.Sign(1618, "please", nostr.Tag{"a", bob.Address("ours")}, nostr.Tag{"c", tip}, nostr.Tag{"clone", git.Host("fork", work)})
	wantHeld(t, p, pull)
	world.Serves(t, p.Relay(), pull)
	if out := world.Git(t, work.Dir, "ls-remote", remote, "refs/nostr/"+pull.ID); !strings.HasPrefix(out, tip) {
		t.Errorf("its commit is not in the repository: %q", out)
	}
}

// TestPullRequestToAMaintainerBySync: pull requests that tag only a maintainer who has announced
// nothing here come in from a foreign relay. One that a user has brought too early is brought back
// by the owner's announcement.
func TestPullRequestToAMaintainerBySync(t *testing.T) {
	t.Parallel()
	git, work := world.NewGitServer(t), world.NewWorkTree(t)
	ann, bob, guest := world.NewPerson(t), world.NewPerson(t), world.NewPerson(t)
	refs := work.Refs()
	mine := git.Host("mine", work)
	tip := work.Commit("a fix")
	fork := git.Host("fork", work)
	ask := func(content string) *nostr.Event {
		return guest.Sign(1618, content, nostr.Tag{"a", bob.Address("ours")}, nostr.Tag{"c", tip}, nostr.Tag{"clone", fork})
	}
	early, later := ask("early"), ask("later")
	relay := world.NewReconcilingRelay(t, early)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": relay.URL})
	if ok, message := submit(t, p, early); ok {
		t.Fatalf("a pull request without a repository is answered %q", message)
	}
	relay.Publish(ann.Announce("ours", "ours", []string{mine}, []string{relay.URL}, nostr.Tag{"maintainers", bob.PubKey}),
		ann.State("ours", refs, "refs/heads/main"))
	world.Serves(t, p.Relay(), early)
	relay.Publish(later)
	world.Serves(t, p.Relay(), later)
	if out := world.Git(t, work.Dir, "ls-remote", p.URL+"/"+ann.Npub+"/ours.git", "refs/nostr/"+early.ID); !strings.HasPrefix(out, tip) {
		t.Errorf("its commit is not in the repository: %q", out)
	}
}
