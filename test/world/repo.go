package world

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// Repo is a person's repository, on this machine and at a Tendril.
type Repo struct {
	Door
	Owner               *fixture.Person
	Name                string
	Work                *WorkTree
	Announcement, State *nostr.Event
	Pushed              string // the newest commit that the Tendril has
	commits             int
}

// Hosting says more about a repository that is hosted.
type Hosting struct {
	Owner  *fixture.Person // nil: a new one
	Relays []string        // that the announcement lists
	Noise  int             // bytes that nothing can compress
}

// Host announces a repository and pushes it.
func (d Door) Host(name string, how Hosting) *Repo {
	d.tb.Helper()
	r := &Repo{Door: d, Owner: how.Owner, Name: name, Work: NewWorkTree(d.tb)}
	if r.Owner == nil {
		r.Owner = d.Person()
	}
	if how.Noise > 0 {
		r.Work.AddNoise(how.Noise)
		r.Work.Commit("with data")
	}
	r.Announcement = r.Owner.Announce(name, how.Relays...)
	d.Holds(r.Announcement, r.NewState())
	GitOnceMoved(d.tb, r.Work.Dir, "push", "-q", r.At(d), "main")
	r.Pushed = r.Work.Refs()["refs/heads/main"]
	return r
}

// At is where git finds the repository by a front door.
func (r *Repo) At(door Door) string { return door.Repo(r.Owner, r.Name) }

// NewState signs what the branches are now, newer than the state before, though no second may have
// passed.
func (r *Repo) NewState() *nostr.Event {
	at := nostr.Now()
	if r.State != nil {
		at = max(at, r.State.CreatedAt+1)
	}
	r.State = r.Owner.At(at).State(r.Name, r.Work.Refs())
	return r.State
}

// Push commits and pushes. Submit publishes the state; an attempt counts from 0, and after the
// first commits nothing.
func (r *Repo) Push(t testing.TB, door Door, attempt int, submit func(*nostr.Event) error) error {
	if attempt == 0 {
		r.commits++
		r.Work.Commit(fmt.Sprint("commit ", r.commits))
		r.NewState()
	}
	if err := submit(r.State); err != nil {
		return fmt.Errorf("state event: %w", err)
	}
	if err := git(t, r.Work.Dir, "push", "-q", r.At(door), "main"); err != nil {
		return err
	}
	r.Pushed = r.Work.Refs()["refs/heads/main"]
	return nil
}

// git runs git, whose error says what it printed.
func git(t testing.TB, dir string, args ...string) error {
	out, err := TryGit(t, dir, args...)
	if err != nil {
		return fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(out))
	}
	return nil
}

// CloneIs clones and checks HEAD and all objects. It returns the folder.
func CloneIs(t testing.TB, url, head string) string {
	t.Helper()
	copied := filepath.Join(t.TempDir(), "copy")
	GitOnceMoved(t, t.TempDir(), "clone", "-q", url, copied)
	if got := Git(t, copied, "rev-parse", "HEAD"); got != head {
		t.Errorf("HEAD of the clone of %s is %s, want %s", url, got, head)
	}
	Git(t, copied, "fsck", "--full")
	return copied
}

// GitOnceMoved runs git, again for as long as it is told that the repository is between two
// workers, which it may be while they share the keys again, and nothing else.
func GitOnceMoved(t testing.TB, dir string, args ...string) {
	t.Helper()
	await(t, "git "+args[0]+" finds a worker", func() bool {
		out, err := TryGit(t, dir, args...)
		if err != nil && !strings.Contains(out, "moving to another worker") && !strings.Contains(out, "error: 503") {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return err == nil
	})
}
