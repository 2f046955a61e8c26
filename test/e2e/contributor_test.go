package e2e

import (
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestContributor offers pull requests from a place of their own (GRASP-06), for a repository that
// is hosted here and for one that is not: event first and push first. The owner's repository names
// the commit of the first.
func TestContributor(t *testing.T) {
	t.Parallel()
	p := world.Start(t, map[string]string{"NGIT_GRASP06_ENABLE": "true"})
	mine, guest := p.Host("mine", world.Hosting{}), fixture.NewPerson()
	owner, work := mine.Owner, mine.Work
	if d := information(t, p); !slices.Contains(d.Grasps, "GRASP-06") {
		t.Errorf("the information document says %+v", d)
	}

	at := func(identifier string) string { return p.URL + nostr.PRsURLPath(guest.Npub, identifier) }
	offer := func(identifier, tip string) *nostr.Event {
		return guest.Pull("please", tip, owner.Repo(identifier), nostr.Tag{"clone", "http://" + fixture.Domain + nostr.PRsURLPath(guest.Npub, identifier)})
	}
	named := func(remote string, ev *nostr.Event, tip string) {
		t.Helper()
		await(t, remote+" names "+tip, func() bool {
			return strings.Contains(work.Git("ls-remote", remote), tip+"\trefs/nostr/"+ev.ID)
		})
	}

	// Event first.
	tip := work.Commit("a fix")
	first := offer("mine", tip)
	p.Holds(first)
	work.Fails("only refs/nostr/<event-id> can", "push", at("mine"), "HEAD:refs/heads/fix")
	work.Git("push", at("mine"), "HEAD:refs/nostr/"+first.ID)
	// No waiting here: the push's answer is the promise that it is served. Mirrors follow at once.
	if !p.Has(first) {
		t.Error("after the push the event is not served")
	}
	named(mine.At(p.Door), first, tip)
	named(at("mine"), first, tip)

	// Push first, for a repository without an announcement here.
	tip = work.Commit("another fix")
	second := offer("theirs", tip)
	if out := work.Git("ls-remote", at("theirs")); out != "" {
		t.Errorf("before any push there is %s", out)
	}
	work.Git("push", at("theirs"), "HEAD:refs/nostr/"+second.ID)
	p.Holds(second)
	p.Serves(second)
	named(at("theirs"), second, tip)
}
