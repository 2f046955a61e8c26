package world

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// Scene is a repository that was announced elsewhere: the announcement lies on one relay, its state
// and the conversation on another one that it lists, the data on a git server.
type Scene struct {
	Owner, Guest          *fixture.Person
	Work, fork            *WorkTree
	Git                   *GitServer
	First, Second         *Relay
	Announcement, State   *nostr.Event
	Issue, Patch, Pull    *nostr.Event
	Comment, OnComment    *nostr.Event
	Unrelated             *nostr.Event
	head, tagged, pullTip string
}

// Project is the identifier of the scene's repository.
const Project = "tendril-demo"

// NewScene makes one with relays and a git server of its own.
func NewScene(t testing.TB) *Scene {
	t.Helper()
	return SceneAt(At(t, ""), NewGitServer(t), NewRelay(t), NewRelay(t))
}

// SceneAt makes one for the Tendril of a front door.
func SceneAt(d Door, git *GitServer, first, second *Relay) *Scene {
	t := d.tb
	t.Helper()
	s := &Scene{Owner: d.Person(), Guest: d.Person(), Work: NewWorkTree(t), Git: git, First: first, Second: second}
	s.tagged = s.Work.Commit("second")
	s.Work.Git("tag", "-a", "v1", "-m", "version 1")
	s.Work.Git("branch", "old")
	s.Work.Git("checkout", "-q", "-b", "trunk")
	s.head = s.Work.Commit("third")
	url := s.Git.Host("origin", s.Work)
	s.Announcement = s.Owner.Announce(Project, url, second.URL)
	refs := s.Work.Refs()
	refs["HEAD"] = "ref: refs/heads/trunk"
	s.State = s.Owner.State(Project, refs)
	s.First.Publish(s.Announcement)

	about := s.Owner.Repo(Project)
	s.Issue = s.Guest.Sign(1621, "it does not work", about, nostr.Tag{"p", s.Owner.PubKey}, nostr.Tag{"subject", "broken"})
	s.Patch = s.Guest.Sign(1617, "From: …", about, nostr.Tag{"t", "root"})
	// The comment names the issue only, so that it can be found by layer 3 alone; the answer names
	// the comment and the issue as its root.
	s.Comment = s.Guest.Comment("nor here", s.Issue, s.Issue)
	s.OnComment = s.Owner.Comment("fixed", s.Issue, s.Comment)
	s.Unrelated = s.Guest.Sign(1, "good morning")
	// The pull request's commit is in the guest's fork, on the same git server under another name.
	s.fork = &WorkTree{t: t, Dir: filepath.Join(t.TempDir(), "fork")}
	// A copy, not a clone: git clones a folder by a shell, which the image of the outside world lacks.
	must(t, os.CopyFS(s.fork.Dir, os.DirFS(s.Work.Dir)))
	s.fork.Git("checkout", "-q", "-b", "fix")
	s.fork.Git("commit", "-q", "--allow-empty", "-m", "a fix")
	s.pullTip = s.fork.Git("rev-parse", "HEAD")
	s.Pull = s.Guest.Pull("please", s.pullTip, about, nostr.Tag{"clone", s.Git.Host("fork", s.fork)})
	s.Second.Publish(s.State, s.Issue, s.Patch, s.Comment, s.OnComment, s.Unrelated, s.Pull)
	return s
}

// Events are all that should be served in the end.
func (s *Scene) Events() []*nostr.Event {
	return []*nostr.Event{s.Announcement, s.State, s.Issue, s.Patch, s.Comment, s.OnComment, s.Pull}
}

// NewIssue makes another issue, which no relay has yet.
func (s *Scene) NewIssue(content string) *nostr.Event {
	return s.Guest.Sign(1621, content, s.Owner.Repo(Project))
}

// CheckClone clones from a front door as anyone would: commits, branches, the annotated tag, HEAD
// as the state says, and the pull request's commit under its event.
func (s *Scene) CheckClone(t testing.TB, door Door) {
	t.Helper()
	copied := CloneIs(t, door.Repo(s.Owner, Project), s.head)
	if got := Git(t, copied, "branch", "--show-current"); got != "trunk" {
		t.Errorf("the branch is %q, want trunk", got)
	}
	if got := Git(t, copied, "rev-parse", "v1^{commit}"); got != s.tagged {
		t.Errorf("v1 is %s, want %s", got, s.tagged)
	}
	remote := Git(t, copied, "ls-remote", "origin")
	refs := s.Work.Refs()
	refs["refs/nostr/"+s.Pull.ID] = s.pullTip
	for name, id := range refs {
		if !strings.Contains(remote, id+"\t"+name) {
			t.Errorf("%s is not served as %s:\n%s", name, id, remote)
		}
	}
	Git(t, copied, "fetch", "-q", "origin", s.pullTip)
}
