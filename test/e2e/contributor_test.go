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
	mine, guest := world.Host(t, p.URL, "mine", world.Hosting{}), fixture.NewPerson()
	owner, work, hosted := mine.Owner, mine.Work, mine.URL()
	if d := information(t, p); !slices.Contains(d.Grasps, "GRASP-06") {
		t.Errorf("the information document says %+v", d)
	}

	offer := func(identifier, tip string) *nostr.Event {
		return guest.Pull("please", tip, owner.Repo(identifier), nostr.Tag{"clone", "http://" + fixture.Domain + "/prs/" + guest.Npub + "/" + identifier + ".git"})
	}
	push := func(identifier string, refs ...string) (string, error) {
		t.Helper()
		out, err := world.TryGit(t, work.Dir, append([]string{"push", p.URL + "/prs/" + guest.Npub + "/" + identifier + ".git"}, refs...)...)
		t.Logf("git push /prs/%s/%s.Git %s\n%s", guest.Npub, identifier, strings.Join(refs, " "), out)
		return out, err
	}
	named := func(remote string, ev *nostr.Event, tip string) {
		t.Helper()
		fixture.Await(t, remote+" names "+tip, func() bool {
			return strings.Contains(world.Git(t, work.Dir, "ls-remote", remote), tip+"\trefs/nostr/"+ev.ID)
		})
	}

	// Event first.
	tip := work.Commit("a fix")
	first := offer("mine", tip)
	wantHeld(t, p, first)
	if out, err := push("mine", "HEAD:refs/heads/fix"); err == nil || !strings.Contains(out, "only refs/nostr/<event-id> can") {
		t.Errorf("a branch: %v\n%s", err, out)
	}
	if out, err := push("mine", "HEAD:refs/nostr/"+first.ID); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// No waiting here: the push's answer is the promise that it is served. Mirrors follow at once.
	if got := world.Fetch(t, p.Relay(), nostr.Filter{IDs: []string{first.ID}}); len(got) != 1 {
		t.Error("after the push the event is not served")
	}
	named(hosted, first, tip)
	named(p.URL+"/prs/"+guest.Npub+"/mine.git", first, tip)

	// Push first, for a repository without an announcement here.
	tip = work.Commit("another fix")
	second := offer("theirs", tip)
	if out := world.Git(t, work.Dir, "ls-remote", p.URL+"/prs/"+guest.Npub+"/theirs.git"); out != "" {
		t.Errorf("before any push there is %s", out)
	}
	if out, err := push("theirs", "HEAD:refs/nostr/"+second.ID); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	wantHeld(t, p, second)
	world.Serves(t, p.Relay(), second)
	named(p.URL+"/prs/"+guest.Npub+"/theirs.git", second, tip)
}
