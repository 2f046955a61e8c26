package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/world"
)

// scene is a repository that was announced elsewhere: the announcement and its state lie on one
// relay, the conversation on another, the data on a git server.
type scene struct {
	owner, guest          *world.Person
	work, fork            *world.WorkTree
	git                   *world.GitServer
	first, second         *world.Relay
	announcement, state   *nostr.Event
	issue, patch, pull    *nostr.Event
	comment, onComment    *nostr.Event
	unrelated             *nostr.Event
	head, tagged, pullTip string
}

const project = "tendril-demo"

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{owner: world.NewPerson(t), guest: world.NewPerson(t), work: world.NewWorkTree(t), git: world.NewGitServer(t)}
	s.tagged = s.work.Commit("second")
	world.Git(t, s.work.Dir, "tag", "-a", "v1", "-m", "version 1")
	world.Git(t, s.work.Dir, "branch", "old")
	world.Git(t, s.work.Dir, "checkout", "-q", "-b", "trunk")
	s.head = s.work.Commit("third")
	url := s.git.Host("origin", s.work)
	s.fork = &world.WorkTree{Dir: filepath.Join(t.TempDir(), "fork")}
	world.Git(t, s.work.Dir, "clone", "-q", s.work.Dir, s.fork.Dir)

	address := s.owner.Address(project)
	s.second = world.NewRelay(t)
	s.announcement = s.owner.Announce(project, project, []string{url}, []string{s.second.URL})
	s.state = s.owner.State(project, s.work.Refs(), "refs/heads/trunk")
	s.first = world.NewRelay(t, s.announcement, s.state)

	s.issue = s.guest.Sign(1621, "it does not work", nostr.Tag{"a", address}, nostr.Tag{"p", s.owner.PubKey}, nostr.Tag{"subject", "broken"})
	s.patch = s.guest.Sign(1617, "From: …", nostr.Tag{"a", address}, nostr.Tag{"t", "root"})
	// The comment names the issue only, so that it can be found by layer 3 alone; the answer names
	// the comment and the issue as its root.
	s.comment = s.guest.Sign(1111, "nor here", nostr.Tag{"E", s.issue.ID}, nostr.Tag{"K", "1621"}, nostr.Tag{"e", s.issue.ID}, nostr.Tag{"k", "1621"})
	s.onComment = s.owner.Sign(1111, "fixed", nostr.Tag{"E", s.issue.ID}, nostr.Tag{"K", "1621"}, nostr.Tag{"e", s.comment.ID}, nostr.Tag{"k", "1111"})
	s.unrelated = s.guest.Sign(1, "good morning")
	// The pull request's commit is in the guest's fork, on the same git server under another name.
	s.pullTip = s.commitInFork(t)
	forkURL := s.git.Host("fork", s.fork)
	s.pull = s.guest.Sign(1618, "please", nostr.Tag{"a", address}, nostr.Tag{"c", s.pullTip}, nostr.Tag{"clone", forkURL})
	s.second.Publish(s.issue, s.patch, s.comment, s.onComment, s.unrelated, s.pull)
	return s
}

func (s *scene) commitInFork(t *testing.T) string {
	t.Helper()
	world.Git(t, s.fork.Dir, "checkout", "-q", "-b", "fix")
	world.Git(t, s.fork.Dir, "commit", "-q", "--allow-empty", "-m", "a fix")
	return world.Git(t, s.fork.Dir, "rev-parse", "HEAD")
}

// TestStory is the one thread through all rooms: one relay found, one event accepted, its git data
// hunted, released and cloned; and the conversation about it, past and present, from a second relay
// that was not known before.
func TestStory(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.git.Shut(true)
	s.first.Shut(true)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.first.URL})
	bus := world.Listen(t, p.NATS)
	s.first.Shut(false)

	// As long as the git server is away, announcement and state wait, and are not served.
	world.Await(t, "announcement and state are held", func() bool {
		return bus.Heard("grasp.held.", s.announcement.ID) && bus.Heard("grasp.held.", s.state.ID)
	})
	held := len(bus.Said())
	world.Await(t, "their git data is looked for in vain", func() bool { _, heard := bus.HeardAfter(held, "grasp.git.", "503"); return heard })
	if got := world.Fetch(t, p.Relay(), nostr.Filter{Kinds: []int{30617, 30618}}); len(got) != 0 {
		t.Fatalf("held events are served: %v", got)
	}
	s.git.Shut(false)

	world.Serves(t, p.Relay(), s.announcement)
	world.Serves(t, p.Relay(), s.state)
	for _, ev := range []*nostr.Event{s.issue, s.patch, s.comment, s.onComment, s.pull} {
		world.Serves(t, p.Relay(), ev)
	}
	if got := world.Fetch(t, p.Relay(), nostr.Filter{IDs: []string{s.unrelated.ID}}); len(got) != 0 {
		t.Error("what has nothing to do with the repository is served")
	}

	// What is published now comes live; a comment on it comes by layer 3, whose root was not there
	// when the connection was made.
	late := s.guest.Sign(1621, "another one", nostr.Tag{"a", s.owner.Address(project)})
	s.second.Publish(late)
	world.Serves(t, p.Relay(), late)
	answer := s.owner.Sign(1111, "answered", nostr.Tag{"E", late.ID}, nostr.Tag{"K", "1621"}, nostr.Tag{"e", late.ID}, nostr.Tag{"k", "1621"})
	s.second.Publish(answer)
	world.Serves(t, p.Relay(), answer)

	s.checkClone(t, p)
	s.checkLayers(t)
	s.checkTranscript(t, bus)
	if err := p.Stop(); err != nil {
		t.Errorf("the stop: %v", err)
	}
}

// checkClone clones as anyone would: commits, branches, the annotated tag, HEAD as the state says,
// and the pull request's commit under its event.
func (s *scene) checkClone(t *testing.T, p *world.Tendril) {
	t.Helper()
	dir := t.TempDir()
	url := p.URL + "/" + s.owner.Npub + "/" + project + ".git"
	world.Git(t, dir, "clone", "-q", url, "copy")
	copied := filepath.Join(dir, "copy")
	if got := world.Git(t, copied, "rev-parse", "HEAD"); got != s.head {
		t.Errorf("HEAD is %s, want %s", got, s.head)
	}
	if got := world.Git(t, copied, "branch", "--show-current"); got != "trunk" {
		t.Errorf("the branch is %q, want trunk", got)
	}
	if got := world.Git(t, copied, "rev-parse", "v1^{commit}"); got != s.tagged {
		t.Errorf("v1 is %s, want %s", got, s.tagged)
	}
	remote := world.Git(t, copied, "ls-remote", "origin")
	for name, id := range s.work.Refs() {
		if !strings.Contains(remote, id+"\t"+name) {
			t.Errorf("%s is not served as %s:\n%s", name, id, remote)
		}
	}
	if want := s.pullTip + "\trefs/nostr/" + s.pull.ID; !strings.Contains(remote, want) {
		t.Errorf("the pull request's commit is not served:\n%s", remote)
	}
	world.Git(t, copied, "fetch", "-q", "origin", s.pullTip)
}

// checkLayers looks at what the second relay was asked: all three layers, nothing without bounds,
// and live subscriptions that stay.
func (s *scene) checkLayers(t *testing.T) {
	t.Helper()
	for _, tag := range []string{"a", "A", "q", "e", "E"} {
		world.Await(t, "the second relay is asked by #"+tag, func() bool {
			return slices.ContainsFunc(s.second.Asked(), func(f nostr.Filter) bool { return f.Tags[tag] != nil })
		})
	}
	world.Await(t, "layer 1, three live filters of layer 2 and three of layer 3 are open at the second relay", func() bool { return s.second.Listening() >= 7 })
	for _, f := range s.second.Asked() {
		if len(f.Tags) == 0 && len(f.Kinds) == 0 {
			t.Errorf("asked for everything: %v", f)
		}
	}
}

// synced waits until everything is confirmed that the second relay was asked for, so that the next
// connection is a quick one.
func (s *scene) synced(t *testing.T, bus *world.Listener) {
	t.Helper()
	world.Await(t, "the second relay is synced", func() bool {
		for _, said := range bus.Said() {
			var state struct {
				URL      string    `json:"url"`
				Complete time.Time `json:"complete_until"`
				Repos    int       `json:"repos"`
				Roots    int       `json:"roots"`
			}
			if strings.HasPrefix(said.Subject, "grasp.relay.") && json.Unmarshal([]byte(said.Data), &state) == nil &&
				gonostr.NormalizeURL(state.URL) == gonostr.NormalizeURL(s.second.URL) && !state.Complete.IsZero() && state.Repos == 1 && state.Roots == 3 {
				return true
			}
		}
		return false
	})
}

// checkQuick: since it was asked so many filters, the second relay was not asked for the whole past
// of the repository again.
func (s *scene) checkQuick(t *testing.T, before int) {
	t.Helper()
	for _, f := range s.second.Asked()[before:] {
		if f.Since == nil && !f.LimitZero && len(f.Tags["a"])+len(f.Tags["A"])+len(f.Tags["q"]) > 0 && len(f.Tags["e"])+len(f.Tags["E"]) == 0 && f.Tags["q"] == nil {
			t.Errorf("after a short absence the relay was asked for the whole past: %v", f)
		}
	}
}

// checkTranscript: a listener on the bus has seen all of it happen, in order.
func (s *scene) checkTranscript(t *testing.T, bus *world.Listener) {
	t.Helper()
	order := []struct{ what, subject, text string }{
		{"the announcement is found", "grasp.candidate.sync.historic", s.announcement.ID},
		{"the announcement is held", "grasp.held.", s.announcement.ID},
		{"the git server fails", "grasp.git." + project + ".failed", "503"},
		{"the git server delivers", "grasp.git." + project + ".fetched", "origin.git"},
		{"its release is asked for", "grasp.candidate.release", s.announcement.ID},
		{"it is in the log", "grasp.event.30617." + s.owner.PubKey, s.announcement.ID},
		{"the repository is wanted from a relay", "grasp.wanted.127", `"level":"full"`},
		{"the issue is found there", "grasp.candidate.sync.", s.issue.ID},
		{"it is in the log", "grasp.event.1621." + s.guest.PubKey, s.issue.ID},
	}
	at := 0
	for _, step := range order {
		world.Await(t, fmt.Sprintf("it is said, after %d messages, that %s", at, step.what), func() bool {
			found, heard := bus.HeardAfter(at, step.subject, step.text)
			if heard {
				at = found + 1
			}
			return heard
		})
	}
	for _, subject := range []string{"grasp.relay.", "grasp.verdict.", "grasp.git." + project + ".released"} {
		world.Await(t, "something is said on "+subject, func() bool { return bus.Heard(subject, "") })
	}
	t.Logf("the announcement's way:\n%s", bus.Transcript(s.announcement.ID, "."+project+".f"))
}

// TestRelayComesBack: events that were published while the connection was away come by the quick
// reconnect.
func TestRelayComesBack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.first.URL})
	bus := world.Listen(t, p.NATS)
	world.Serves(t, p.Relay(), s.onComment)
	s.synced(t, bus)
	s.second.Shut(true)
	s.second.HangUp()
	missed := s.guest.SignAt(nostr.Now()-5, 1621, "while you were away", nostr.Tag{"a", s.owner.Address(project)})
	s.second.Publish(missed)
	before := len(s.second.Asked())
	s.second.Shut(false)
	world.Serves(t, p.Relay(), missed)
	s.checkQuick(t, before)
	if err := p.Stop(); err != nil {
		t.Errorf("the stop: %v", err)
	}
}
