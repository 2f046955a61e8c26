package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestAnOwnerGivesUp: a repository that its owner deletes is gone for everybody at once, is back
// when it is announced again, and an operator sees it, keeps it, and removes it with all that was
// accepted for it alone. Services run apart, each with its own login, and the operator has one too.
func TestAnOwnerGivesUp(t *testing.T) {
	t.Parallel()
	nats, volume := world.GuardedNATS(t), world.Folder(t)
	replicas := map[string]*world.Replica{}
	for _, name := range []string{"ingest", "purgatory", "discovery", "gateway"} {
		replicas[name] = world.StartReplica(t, name, nats.URL, volume, nats.As(name, nil))
	}
	door := replicas["gateway"].URL()
	relay := world.RelayAt(door)
	guest, gone := fixture.NewPerson(), world.Host(t, door, "gone", world.Hosting{})
	owner, work, announcement, url := gone.Owner, gone.Work, gone.Announcement, gone.URL()
	name := owner.Npub + "/gone"
	issue := guest.Sign(1621, "an issue", owner.Repo("gone"))
	if ok, message := world.Submit(t, relay, issue); !ok {
		t.Fatalf("the issue: %s", message)
	}
	repo := func(args ...string) (string, error) {
		t.Helper()
		return world.RunToEnd(t, volume, nats.As("operator", map[string]string{"NGIT_NATS_URL": nats.URL}), append([]string{"repo"}, args...)...)
	}
	tell := func(want string, args ...string) {
		t.Helper()
		out, err := repo(args...)
		t.Logf("$ tendril repo %s\n%s", strings.Join(args, " "), out)
		if err != nil || !strings.Contains(out, want) {
			t.Fatalf("want %q (%v)", want, err)
		}
	}
	fixture.Await(t, "the repository is listed as hosted", func() bool {
		out, err := repo("list", "--state=hosted")
		return err == nil && strings.Contains(out, name+"  hosted")
	})
	tell("hosted", "show", name)
	if out, err := repo("remove", name); err == nil || !strings.Contains(out, "only its owner can give it up") {
		t.Fatalf("a hosted repository is removed: %s", out)
	}

	giveUp := func(at nostr.Timestamp) {
		t.Helper()
		if ok, message := world.Submit(t, relay, owner.At(at).Sign(5, "", nostr.Tag{"e", announcement.ID})); !ok {
			t.Fatalf("the deletion request: %s", message)
		}
		if got := world.Fetch(t, relay, nostr.Filter{Kinds: []int{30617}}); len(got) != 0 {
			t.Fatalf("the announcement is still served: %v", got)
		}
		fixture.Await(t, "the repository is listed", func() bool {
			out, err := repo("list")
			return err == nil && strings.Contains(out, name) && strings.Contains(out, "deleted by its owner")
		})
		if out, err := world.TryGit(t, "", "ls-remote", url); err == nil {
			t.Fatalf("it is still served:\n%s", out)
		}
	}
	giveUp(announcement.CreatedAt + 1)
	tell(", in 16", "list") // hours, of a week's
	tell("deleted by its owner", "show", "30617:"+owner.PubKey+":gone")
	tell("is kept until", "restore", name)
	tell("never: cancelled by an operator", "show", name)

	announcement = owner.At(announcement.CreatedAt+2).Sign(30617, "", announcement.Tags...)
	if ok, message := world.Submit(t, relay, announcement); !ok {
		t.Fatalf("the new announcement: %s", message)
	}
	world.Serves(t, relay, announcement)
	copied := filepath.Join(t.TempDir(), "copy")
	world.GitOnceMoved(t, work.Dir, "clone", "-q", url, copied)
	if got, want := world.Git(t, copied, "rev-parse", "HEAD"), world.Git(t, work.Dir, "rev-parse", "HEAD"); got != want {
		t.Fatalf("it came back at %s, want %s", got, want)
	}
	fixture.Await(t, "it is not listed any more", func() bool {
		out, err := repo("list", "--state=ended")
		return err == nil && out == "no repositories\n"
	})

	giveUp(announcement.CreatedAt + 1)
	tell("is removed", "remove", name)
	tell("no repositories", "list", "--state=ended")
	if out, err := repo("show", name); err == nil || !strings.Contains(out, "nothing of "+name+" is here") {
		t.Fatalf("it is shown: %s", out)
	}
	fixture.Await(t, "its events are gone", func() bool {
		return len(world.Fetch(t, relay, nostr.Filter{Kinds: []int{30618, 1621}})) == 0
	})
	if _, err := os.Stat(filepath.Join(volume, owner.Npub)); !os.IsNotExist(err) {
		t.Errorf("it is still on the disk: %v", err)
	}
	for _, name := range []string{"gateway", "discovery", "purgatory", "ingest"} {
		if err := replicas[name].Stop(); err != nil {
			t.Errorf("%s ends with %v", name, err)
		}
	}
}
