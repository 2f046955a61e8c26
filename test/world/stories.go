package world

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// Place is a Tendril and what it meets, wherever they run: in one process, in many, or on a
// cluster.
type Place struct {
	testing.TB
	Door
	Other         Door // another front door, or the same
	Git           *GitServer
	First, Second *Relay // the Tendril knows the first; nil: Ban does without relays
	// Tool runs the program as the operator does; nil: the story leaves the operator out.
	Tool     func(args ...string) (string, error)
	Operator *fixture.Person // who has the Tendril's own key; nil: left out too
	Index    *Relay          // where the Tendril tells people of itself; nil: nowhere
	Volume   string          // of git data; empty: elsewhere
	Bus      *Listener       // nil: nothing is listened to
}

// Stories are what every Tendril does. A place tells them one after the other. Each has identifiers
// of its own, because refusals mention what others have under the same identifier.
var Stories = []struct {
	Name string
	Tell func(p *Place)
}{
	{"push", push}, {"refused pushes", refusedPushes}, {"a maintainer pushes", maintainerPushes},
	{"an invitation", invitation}, {"roles", roles}, {"held, then hunted", hunt},
	{"a pull request to a maintainer", pullRequest}, {"an owner gives up", giveUp}, {"its own identity", identity}, {"ban", Ban},
}

// In is the place for a part of a test.
func (p Place) In(t testing.TB) *Place {
	p.TB, p.Door.tb, p.Other.tb = t, t, t
	return &p
}

// by selects what people wrote.
func by(authors ...*fixture.Person) (f nostr.Filter) {
	for _, who := range authors {
		f.Authors = append(f.Authors, who.PubKey)
	}
	return f
}

// identity: the service stores a profile and a relay list, signed by its own key, and publishes both
// where people look for those of others.
func identity(p *Place) {
	if p.Index == nil {
		return
	}
	own, index := by(p.Operator), At(p, "http"+strings.TrimPrefix(p.Index.URL, "ws"))
	own.Kinds = []int{nostr.KindProfile, nostr.KindRelayList}
	var published []*nostr.Event
	await(p, "the profile and the relay list are published", func() bool {
		published = index.Fetch(own)
		return len(published) == 2
	})
	p.Other.Serves(published...)
	if got := p.Fetch(own); len(got) != 2 {
		p.Errorf("%d events are served of the service's own", len(got))
	}
	for _, ev := range published {
		if text := ev.String(); !nostr.Signed(ev) || !strings.Contains(text, p.Domain) {
			p.Errorf("published is %s", text)
		}
	}
}

// push: what a user announces waits until all that the state names is pushed with plain git, and is
// served the moment the push has ended. A part of it is refused.
func push(p *Place) {
	ann, work := p.Person(), NewWorkTree(p)
	work.Git("tag", "v0.1")
	announcement := ann.Announce("mine")
	p.Holds(announcement, ann.State("mine", work.Refs()), announcement) // one is sent again
	if got := p.Fetch(by(ann)); len(got) != 0 {
		p.Fatalf("held events are served: %v", got)
	}
	remote := p.Repo(ann, "mine")

	work.Fails("names refs/tags/v0.1 too; push everything that it names in one push: git push <url> 'refs/heads/*' 'refs/tags/*'", "push", remote, "main")
	work.Git("push", "-q", remote, "refs/heads/*", "refs/tags/*") // as the terminal says
	// No waiting here: the push's answer is the promise that both are served.
	if got := p.Fetch(by(ann)); len(got) != 2 {
		p.Fatalf("after the push %d events are served, want announcement and state", len(got))
	}
	if ok, message := p.Submit(announcement); !ok || !strings.HasPrefix(message, "duplicate:") {
		p.Errorf("sent once more it is answered %v %q", ok, message)
	}

	// The next version: a state first, then the push that it allows; and one that nothing allows.
	tip := work.Commit("more")
	work.Fails("authorisation failed", "push", remote, "main")
	next := ann.At(nostr.Now()+1).State("mine", map[string]string{"refs/heads/main": tip})
	p.Holds(next)
	work.Git("push", "-q", remote, "main", ":v0.1")
	if got := p.Fetch(nostr.Filter{Kinds: []int{30618}, Authors: []string{ann.PubKey}}); len(got) != 1 || got[0].ID != next.ID {
		p.Fatalf("served states %v, want the new one", got)
	}
	if copied := CloneIs(p, p.Other.Repo(ann, "mine"), tip); Git(p, copied, "tag") != "" {
		p.Error("the clone is not what was pushed")
	}
}

// refusedPushes: git shows the reason of a refused push on the terminal.
func refusedPushes(p *Place) {
	ann, bob, work := p.Person(), p.Person(), NewWorkTree(p)
	p.Holds(ann.Announce("refused"))
	remote := p.Repo(ann, "refused")
	work.Fails("authorisation failed: no state event for this repository", "push", remote, "main")
	p.Refuses("restricted: author not authorized for this repository", bob.State("refused", work.Refs()))
	work.Fails("authorisation failed: no state event for this repository", "push", remote, "main")
	work.Fails("only refs/heads/, refs/tags/ and refs/nostr/<event-id> can", "push", remote, "main:refs/secret/x")
	work.Fails("64 hex digits", "push", remote, "main:refs/nostr/nonsense")
	work.Fails("not found", "ls-remote", p.Repo(bob, "refused"))
	if got := p.Fetch(by(ann, bob)); len(got) != 0 {
		p.Errorf("served %v", got)
	}
}

// maintainerPushes: someone whom the owner names as a maintainer decides as the owner does, in both
// repositories.
func maintainerPushes(p *Place) {
	ann, bob, work := p.Person(), p.Person(), NewWorkTree(p)
	events := []*nostr.Event{ann.Announce("ours", bob.PubKey), bob.Announce("ours", ann.PubKey), bob.State("ours", work.Refs())}
	p.Holds(events...)
	work.Git("push", "-q", p.Repo(ann, "ours"), "main")
	for _, who := range []*fixture.Person{ann, bob} {
		if out := work.Git("ls-remote", p.Repo(who, "ours")); !strings.Contains(out, work.Refs()["refs/heads/main"]+"\trefs/heads/main") {
			p.Errorf("%s's repository has\n%s", who.Npub, out)
		}
	}
	p.Serves(events...)
}

// invitation: who is invited has no rights in the owner's repository, neither without an
// announcement nor with a fork. Acceptance lets the state that is there count, and leaving moves
// the references back, without a push.
func invitation(p *Place) {
	ann, bob, work := p.Person(), p.Person(), NewWorkTree(p)
	first := work.Refs()
	p.Holds(ann.Announce("invited", bob.PubKey), ann.State("invited", first))
	annsRepo, bobsRepo := p.Repo(ann, "invited"), p.Repo(bob, "invited")
	work.Git("push", "-q", annsRepo, "main")
	evil := work.Commit("not reviewed")
	p.Refuses("restricted: author not authorized for this repository", bob.State("invited", work.Refs()))
	work.Fails("is invited but has not accepted yet", "push", annsRepo, "+main")
	p.Holds(bob.Announce("invited"), bob.At(nostr.Now()+1).State("invited", work.Refs()))
	work.Git("push", "-q", bobsRepo, "main")
	is := func(remote, commit string) bool {
		return strings.HasPrefix(work.Git("ls-remote", remote, "refs/heads/main"), commit)
	}
	if !is(annsRepo, first["refs/heads/main"]) || !is(bobsRepo, evil) {
		p.Error("a push to a fork did not move the fork alone")
	}
	work.Fails("is invited but has not accepted yet", "push", annsRepo, "+main")
	p.Accepts(bob.At(nostr.Now()+2).Announce("invited", ann.PubKey))
	await(p, "the acceptance counts", func() bool { return is(annsRepo, evil) })
	left := bob.At(nostr.Now()+3).Announce("invited", ann.PubKey)
	left.Tags = append(left.Tags, nostr.Tag{"m", bob.PubKey, "1", "2"}, nostr.Tag{"m", ann.PubKey})
	p.Accepts(bob.At(nostr.Now()+3).Sign(nostr.KindAnnouncement, "", left.Tags...))
	await(p, "the maintainer has left", func() bool { return is(annsRepo, first["refs/heads/main"]) })
}

// hunt: one relay found, one event accepted, its git data hunted, released and cloned; and the
// conversation about it, past and present, from a second relay.
func hunt(p *Place) {
	p.Git.Shut(true)
	before := p.Git.Requests()
	s := SceneAt(p.Door, p.Git, p.First, p.Second)
	// As long as the git server is away, announcement and state wait, and are not served.
	await(p, "the git data is looked for in vain", func() bool { return p.Git.Requests() > before })
	if got := p.Fetch(by(s.Owner)); len(got) != 0 {
		p.Fatalf("held events are served: %v", got)
	}
	p.Git.Shut(false)

	// What is published now comes live; a comment on it comes by layer 3, whose root was not there
	// when the connection was made.
	p.Serves(s.Events()...)
	late := s.NewIssue("another one")
	s.Second.Publish(late)
	p.Serves(late)
	answer := s.Owner.Comment("answered", late, late)
	s.Second.Publish(answer)
	p.Other.Serves(append(s.Events(), late, answer)...)
	if p.Has(s.Unrelated) {
		p.Error("what has nothing to do with the repository is served")
	}
	s.CheckClone(p, p.Door)
	s.checkLayers(p)
	if p.Bus != nil {
		s.checkTranscript(p)
	}
}

// checkLayers looks at what the second relay was asked: all three layers, nothing without bounds,
// and live subscriptions that stay.
func (s *Scene) checkLayers(t testing.TB) {
	t.Helper()
	for _, tag := range []string{"a", "A", "q", "e", "E"} {
		await(t, "the second relay is asked by #"+tag, func() bool {
			return slices.ContainsFunc(s.Second.Asked(), func(f nostr.Filter) bool { return f.Tags[tag] != nil })
		})
	}
	await(t, "layer 1, three live filters of layer 2 and three of layer 3 are open at the second relay", func() bool { return s.Second.Listening() >= 7 })
	for _, f := range s.Second.Asked() {
		if len(f.Tags) == 0 && len(f.Kinds) == 0 {
			t.Errorf("asked for everything: %v", f)
		}
	}
}

// checkTranscript: a listener on the bus has seen all of it happen, in order.
func (s *Scene) checkTranscript(p *Place) {
	p.Helper()
	steps := strings.NewReplacer("ANNOUNCEMENT", s.Announcement.ID, "ISSUE", s.Issue.ID, "OWNER", s.Owner.PubKey, "GUEST", s.Guest.PubKey, "PROJECT", Project).Replace(`
		the announcement is found              | grasp.candidate.sync.       | ANNOUNCEMENT
		the announcement is held               | grasp.held.                 | ANNOUNCEMENT
		the git server fails                   | grasp.git.PROJECT.failed    | 503
		the git server delivers                | grasp.git.PROJECT.fetched   | origin.git
		its release is asked for               | grasp.candidate.release     | ANNOUNCEMENT
		it is in the log                       | grasp.event.30617.OWNER     | ANNOUNCEMENT
		the repository is wanted from a relay  | grasp.wanted.127            | "level":"full"
		the issue is found there               | grasp.candidate.sync.       | ISSUE
		it is in the log                       | grasp.event.1621.GUEST      | ISSUE`)
	at := 0
	for _, step := range fixture.Rows(steps) {
		await(p, fmt.Sprintf("it is said, after %d messages, that %s", at, step[0]), func() bool {
			found, heard := p.Bus.HeardAfter(at, step[1], step[2])
			if heard {
				at = found + 1
			}
			return heard
		})
	}
	for _, subject := range []string{"grasp.relay.", "grasp.verdict.", "grasp.git." + Project + ".released"} {
		await(p, "something is said on "+subject, func() bool { return p.Bus.Heard(subject, "") })
	}
}

// pullRequest: pull requests that tag only a maintainer whose repository is elsewhere come in from
// a foreign relay. One that a user has brought too early is brought back by the owner's
// announcement.
func pullRequest(p *Place) {
	ann, bob, guest, work := p.Person(), p.Person(), p.Person(), NewWorkTree(p)
	refs, data := work.Refs(), p.Git.Host("theirs", work)
	tip := work.Commit("a fix")
	fork := nostr.Tag{"clone", p.Git.Host("theirs-fork", work)}
	early, later := guest.Pull("early", tip, bob.Repo("theirs"), fork), guest.Pull("later", tip, bob.Repo("theirs"), fork)
	p.First.Publish(early)
	p.Refuses("", early)
	accepts := bob.Sign(nostr.KindAnnouncement, "", nostr.Tag{"d", "theirs"}, nostr.Tag{"relays", p.First.URL}, nostr.Tag{"maintainers", ann.PubKey})
	p.First.Publish(ann.Announce("theirs", data, p.First.URL, bob.PubKey), accepts, ann.State("theirs", refs))
	p.Serves(early)
	p.First.Publish(later)
	p.Serves(later)
	if out := work.Git("ls-remote", p.Repo(ann, "theirs"), "refs/nostr/"+early.ID); !strings.HasPrefix(out, tip) {
		p.Errorf("its commit is not in the repository: %q", out)
	}
}

// giveUp: a repository that its owner deletes is gone for everybody at once, is back when it is
// announced again, and an operator sees it, keeps it, and removes it with all that was accepted for
// it alone.
func giveUp(p *Place) {
	guest, gone := p.Person(), p.Host("gone", Hosting{})
	owner, announcement, url := gone.Owner, gone.Announcement, gone.At(p.Door)
	name := owner.Npub + "/gone"
	p.Accepts(guest.Sign(1621, "an issue", owner.Repo("gone")))
	repo := func(args ...string) (string, error) { return p.Tool(append([]string{"repo"}, args...)...) }
	tell := func(want string, args ...string) {
		p.Helper()
		out, err := repo(args...)
		p.Logf("$ tendril repo %s\n%s", strings.Join(args, " "), out)
		if (err == nil) == strings.HasPrefix(want, "! ") || !strings.Contains(out, strings.TrimPrefix(want, "! ")) {
			p.Fatalf("want %q (%v)", want, err)
		}
	}
	lists := func(want string, args ...string) {
		p.Helper()
		await(p, "the list says "+want, func() bool {
			out, err := repo(append([]string{"list"}, args...)...)
			return err == nil && strings.Contains(strings.Join(strings.Fields(out), " "), want)
		})
	}
	deleted := func(at nostr.Timestamp) {
		p.Helper()
		p.Accepts(owner.At(at).Sign(5, "", nostr.Tag{"e", announcement.ID}))
		if p.Has(announcement) {
			p.Fatal("the announcement is still served")
		}
		if p.Tool != nil {
			lists("deleted by its owner")
		}
		await(p, "it is not served", func() bool { _, err := TryGit(p, "", "ls-remote", url); return err != nil })
	}
	if p.Tool != nil {
		lists(name+" hosted", "--state=hosted")
		tell("hosted", "show", name)
		tell("! only its owner can give it up", "remove", name)
	}
	deleted(announcement.CreatedAt + 1)
	if p.Tool != nil {
		tell(", in 21", "list") // hours, of 90 days
		tell("deleted by its owner", "show", "30617:"+owner.PubKey+":gone")
		tell("is kept until", "restore", name)
		tell("never: cancelled by an operator", "show", name)
	}
	announcement = owner.At(announcement.CreatedAt+2).Sign(30617, "", announcement.Tags...)
	p.Accepts(announcement)
	p.Serves(announcement)
	CloneIs(p, url, gone.Pushed)
	if p.Tool == nil {
		return
	}
	lists("no repositories", "--state=ended")
	deleted(announcement.CreatedAt + 1)
	tell("is removed", "remove", name)
	tell("no repositories", "list", "--state=ended")
	tell("! nothing of "+name+" is here", "show", name)
	await(p, "its events are gone", func() bool {
		return len(p.Fetch(nostr.Filter{Kinds: []int{30618, 1621}, Authors: by(owner, guest).Authors})) == 0
	})
	if _, err := os.Stat(filepath.Join(p.Volume, owner.Npub)); !os.IsNotExist(err) {
		p.Errorf("it is still on the disk: %v", err)
	}
}
