package abuse

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// neighbour is a normal user with a repository that is served here.
type neighbour struct {
	t       *testing.T
	at      *world.Tendril
	who     *fixture.Person
	work    *world.WorkTree
	address string // of the user's machine
	days    int
	longest time.Duration // the slowest thing that the user waited for
	slowest string        // what that was
}

const (
	home      = "project" // the neighbour's repository
	homeSweet = "192.0.2.1"
)

// settle makes a user who announces, pushes, and is served.
func settle(t *testing.T, p *world.Tendril, address string) *neighbour {
	t.Helper()
	n := &neighbour{t: t, at: p, who: fixture.NewPerson(), work: world.NewWorkTree(t), address: address}
	n.submit(n.who.Announce(home), world.Waits)
	n.day()
	return n
}

// moveIn makes a neighbour whose repository is served.
func moveIn(t *testing.T, p *world.Tendril) *neighbour {
	t.Helper()
	n := settle(t, p, homeSweet)
	n.longest = 0 // quiet days do not count
	return n
}

// url is where the neighbour's repository is.
func (n *neighbour) url() string { return n.at.Repo(n.who, home) }

// git runs git as the neighbour.
func (n *neighbour) git(dir string, args ...string) string {
	n.t.Helper()
	began := time.Now()
	defer n.waited("git "+args[0], began)
	return world.Git(n.t, dir, append([]string{"-c", "http.extraHeader=X-Forwarded-For: " + n.address}, args...)...)
}

// submit publishes an event, which must be answered with true and this message.
func (n *neighbour) submit(ev *nostr.Event, want string) {
	n.t.Helper()
	began := time.Now()
	defer n.waited(fmt.Sprintf("an event of kind %d", ev.Kind), began)
	s := world.DialFrom(n.t, n.at.Relay(), n.address)
	defer s.Close()
	ok, message := s.Submit(ev)
	if !ok || message != want {
		n.t.Fatalf("the neighbour's event of kind %d is answered %v %q, want true %q", ev.Kind, ok, message, want)
	}
}

func (n *neighbour) waited(what string, since time.Time) {
	if took := time.Since(since); took > n.longest {
		n.longest, n.slowest = took, what
	}
}

// day is what a user does on a normal day: a commit is announced and pushed, an issue is written,
// the references are looked at, and a user clones. All of it must work at once.
func (n *neighbour) day() {
	n.t.Helper()
	n.days++
	tip := n.work.Commit(fmt.Sprintf("day %d", n.days))
	n.submit(n.who.At(nostr.Now()+nostr.Timestamp(n.days)).State(home, map[string]string{"refs/heads/main": tip}), world.Waits)
	n.git(n.work.Dir, "push", "-q", n.url(), "main")
	n.submit(n.who.Sign(1621, fmt.Sprintf("thoughts of day %d", n.days), n.who.Repo(home)), "")
	if refs := n.git(n.work.Dir, "ls-remote", n.url(), "refs/heads/main"); !strings.HasPrefix(refs, tip) {
		n.t.Fatalf("after the push the branch is %q, want %s", refs, tip)
	}
	copied := filepath.Join(n.t.TempDir(), "copy")
	n.git(n.work.Dir, "clone", "-q", n.url(), copied)
	if got := world.Git(n.t, copied, "rev-parse", "HEAD"); got != tip {
		n.t.Fatalf("the clone has %s, want %s", got, tip)
	}
}

// unhurt lives so many days and says how long the longest wait was.
func (n *neighbour) unhurt(days int) {
	n.t.Helper()
	for range days {
		n.day()
	}
	n.t.Logf("the neighbour's longest wait in %d days: %v for %s", days, n.longest.Round(time.Millisecond), n.slowest)
}

// newcomer is a user who comes now.
func newcomer(t *testing.T, p *world.Tendril, address string) {
	t.Helper()
	n := settle(t, p, address)
	t.Logf("a newcomer's longest wait: %v for %s", n.longest.Round(time.Millisecond), n.slowest)
}
