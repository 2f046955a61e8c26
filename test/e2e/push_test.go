package e2e

import (
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

const waits = world.Waits

// submit sends an event as a user does and gives the OK: true and its message, or false and why
// not.
func submit(t *testing.T, p *world.Tendril, ev *nostr.Event) (ok bool, message string) {
	t.Helper()
	return world.Submit(t, p.Relay(), ev)
}

func wantHeld(t *testing.T, p *world.Tendril, events ...*nostr.Event) {
	t.Helper()
	world.Held(t, p.Relay(), events...)
}

// TestUserPushes: what a user announces waits until all that the state names is pushed with plain
// git, and is served the moment the push has ended. A part of it is refused.
func TestUserPushes(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	ann, work := fixture.NewPerson(), world.NewWorkTree(t)
	world.Git(t, work.Dir, "tag", "v0.1")
	announcement := ann.Announce("mine")
	state := ann.State("mine", work.Refs())
	wantHeld(t, p, announcement, state)
	wantHeld(t, p, announcement) // sent again
	if got := world.Fetch(t, p.Relay(), nostr.Filter{Authors: []string{ann.PubKey}}); len(got) != 0 {
		t.Fatalf("held events are served: %v", got)
	}
	remote := p.URL + "/" + ann.Npub + "/mine.git"

	out, err := world.TryGit(t, work.Dir, "push", remote, "main")
	if err == nil || !strings.Contains(out, "names refs/tags/v0.1 too; push everything that it names in one push: git push <remote> 'refs/heads/*' 'refs/tags/*'") {
		t.Errorf("half a push is shown on the terminal as %v:\n%s", err, out)
	}
	world.Git(t, work.Dir, "push", "-q", remote, "refs/heads/*", "refs/tags/*") // as the terminal says
	// No waiting here: the push's answer is the promise that both are served.
	if got := world.Fetch(t, p.Relay(), nostr.Filter{Authors: []string{ann.PubKey}}); len(got) != 2 {
		t.Fatalf("after the push %d events are served, want announcement and state", len(got))
	}
	if ok, message := submit(t, p, announcement); !ok || !strings.HasPrefix(message, "duplicate:") {
		t.Errorf("sent once more it is answered %v %q", ok, message)
	}

	// The next version: a state first, then the push that it allows; and one that nothing allows.
	work.Commit("more")
	out, err = world.TryGit(t, work.Dir, "push", remote, "main")
	if err == nil || !strings.Contains(out, "authorisation failed") {
		t.Errorf("a push without a state: %v\n%s", err, out)
	}
	next := ann.At(nostr.Now()+1).Sign(30618, "", nostr.Tag{"d", "mine"}, nostr.Tag{"HEAD", "ref: refs/heads/main"}, nostr.Tag{"refs/heads/main", work.Refs()["refs/heads/main"]})
	wantHeld(t, p, next)
	world.Git(t, work.Dir, "push", "-q", remote, "main", ":v0.1")
	got := world.Fetch(t, p.Relay(), nostr.Filter{Kinds: []int{30618}, Authors: []string{ann.PubKey}})
	if len(got) != 1 || got[0].ID != next.ID {
		t.Fatalf("served states %v, want the new one", got)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	world.Git(t, t.TempDir(), "clone", "-q", remote, copied)
	if world.Git(t, copied, "rev-parse", "HEAD") != work.Refs()["refs/heads/main"] || world.Git(t, copied, "tag") != "" {
		t.Error("the clone is not what was pushed")
	}
}

// TestRefusedPushes: git shows the reason of a refused push on the terminal.
func TestRefusedPushes(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	ann, bob, work := fixture.NewPerson(), fixture.NewPerson(), world.NewWorkTree(t)
	wantHeld(t, p, ann.Announce("mine"))
	remote := p.URL + "/" + ann.Npub + "/mine.git"
	refused := func(want string, args ...string) {
		t.Helper()
		out, err := world.TryGit(t, work.Dir, append([]string{"push", remote}, args...)...)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("push %v: %v, want %q on the terminal:\n%s", args, err, want, out)
		}
	}
	refused("authorisation failed: no state event for this repository", "main")
	if ok, message := submit(t, p, bob.State("mine", work.Refs())); ok || message != "invalid: author not authorized for this repository" {
		t.Errorf("a stranger's state is answered %v %q", ok, message)
	}
	refused("authorisation failed: no state event for this repository", "main")
	refused("only refs/heads/, refs/tags/ and refs/nostr/<event-id> can", "main:refs/secret/x")
	refused("64 hex digits", "main:refs/nostr/nonsense")
	if out, err := world.TryGit(t, work.Dir, "ls-remote", p.URL+"/"+bob.Npub+"/mine.git"); err == nil || !strings.Contains(out, "not found") {
		t.Errorf("a repository that was not announced: %v\n%s", err, out)
	}
	if got := world.Fetch(t, p.Relay(), nostr.Filter{Kinds: []int{30617, 30618}}); len(got) != 0 {
		t.Errorf("served %v", got)
	}
}

// TestMaintainerPushes: someone whom the owner names as a maintainer decides as the owner does, in
// both repositories.
func TestMaintainerPushes(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	ann, bob, work := fixture.NewPerson(), fixture.NewPerson(), world.NewWorkTree(t)
	wantHeld(t, p, ann.Announce("ours", bob.PubKey), bob.Announce("ours"))
	wantHeld(t, p, bob.State("ours", work.Refs()))
	world.Git(t, work.Dir, "push", "-q", p.URL+"/"+ann.Npub+"/ours.git", "main")
	for _, who := range []*fixture.Person{ann, bob} {
		out := world.Git(t, work.Dir, "ls-remote", p.URL+"/"+who.Npub+"/ours.git")
		if !strings.Contains(out, work.Refs()["refs/heads/main"]+"\trefs/heads/main") {
			t.Errorf("%s's repository has\n%s", who.Npub, out)
		}
	}
	if got := world.Fetch(t, p.Relay(), nostr.Filter{Kinds: []int{30617, 30618}}); len(got) != 3 {
		t.Errorf("%d events are served, want two announcements and a state", len(got))
	}
}

// TestOddIdentifiers: anything that a nostr event can carry as an identifier is hosted, safely;
// what cannot be is refused with a reason.
func TestOddIdentifiers(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	ann, work := fixture.NewPerson(), world.NewWorkTree(t)
	for _, identifier := range []string{"with space", "a/b", "..", "../../etc/passwd", "🌱 tendril", "-x", ".hidden", "a:b", "%2e%2e", "x.git", strings.Repeat("a", 200)} {
		escaped := url.PathEscape(identifier)
		if identifier == ".." {
			escaped = "%2E%2E"
		}
		announcement := ann.Announce(identifier)
		wantHeld(t, p, announcement, ann.State(identifier, work.Refs()))
		remote := p.URL + "/" + ann.Npub + "/" + escaped + ".git"
		world.Git(t, work.Dir, "push", "-q", remote, "main")
		copied := filepath.Join(t.TempDir(), "copy")
		world.Git(t, work.Dir, "clone", "-q", remote, copied)
		world.Serves(t, p.Relay(), announcement)
	}
	root := filepath.Join(p.Dir, "data", "git", ann.Npub)
	if names := world.Names(t, root); len(names) != 11 {
		t.Errorf("below %s lie %v", root, names)
	}
	for _, d := range world.Names(t, filepath.Join(p.Dir, "data")) {
		if d != "git" && d != "relay" {
			t.Errorf("%s was made outside of the folders", d)
		}
	}
	for identifier, why := range map[string]string{
		strings.Repeat("a", 300): "longer than", strings.Repeat("🌱", 20): "longer than", "new\nline": "control", "": "identifier",
	} {
		ok, message := submit(t, p, ann.Announce(identifier))
		if ok || !strings.HasPrefix(message, "invalid: ") || !strings.Contains(message, why) {
			t.Errorf("%.20q is answered %v %q, want invalid: …%s…", identifier, ok, message, why)
		}
	}
}
