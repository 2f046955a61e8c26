package purgatory_test

import (
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository/gittest"
)

// elsewhere is an announcement that does not list us.
func elsewhere(name, owner, identifier string, at nostr.Timestamp, clone ...string) *nostr.Event {
	return finish(&nostr.Event{Kind: nostr.KindAnnouncement, PubKey: owner, CreatedAt: at, Content: name, Tags: nostr.Tags{
		{"d", identifier}, append(nostr.Tag{"clone"}, clone...), {"relays", "wss://other.example.org"}}})
}

// TestArchive: an archived repository is there at once, its data comes by the hunt, and it can be
// cloned and not pushed to. So it stays when it is archived no more, until its owner lists us.
func TestArchive(t *testing.T) {
	t.Parallel()
	work, root := gittest.NewWork(t), t.TempDir()
	commit := work.Commit("a", "1")
	work.Publish(root, "x.git")
	server := gittest.Backend(t, root)
	w := newWorld(t, "--archive-whitelist=x")
	there := elsewhere("announcement", alice, "x", 1000, server.URL+"/x.git")
	w.in.holds("x", there, proto.SourceLive, time.Hour)
	eventually(t, "the repository is there", func() bool { return w.repo(alice, "x").Exists() })
	first := state("state", alice, "x", 1001, commit)
	w.in.holds("x", first, proto.SourceLive, time.Hour)
	w.released(there)
	w.released(first)

	next := work.Commit("b", "2")
	newer := state("newer state", alice, "x", 1002, next)
	w.in.holds("x", newer, proto.SourceUser, time.Hour)
	w.isReadOnly("archived", work, commit)

	w.stop()
	other := start(t, "two", w.git, w.Bus.ClientURL())
	eventually(t, "all shards are held", func() bool { return other.metric("purgatory_shards_held") == proto.Shards })
	w.isReadOnly("archived before", work, commit)
	w.in.accept(elsewhere("it moves on", alice, "x", 1002))
	w.isReadOnly("archived before, and somewhere else since", work, commit)

	w.in.accept(finish(&nostr.Event{Kind: nostr.KindAnnouncement, PubKey: alice, CreatedAt: 1003, Tags: announcement(t, "", alice, "x").Tags}))
	eventually(t, "it is no archive any more", func() bool { return !w.repo(alice, "x").IsArchive() })
	if out, err := w.push(work, alice, "x", "main"); err != nil {
		t.Fatalf("a push to what lists us: %v\n%s", err, out)
	}
	w.released(newer)
	if w.told.count("x ended") > 0 {
		t.Error("an archive has ended though nobody has deleted its announcement")
	}
	w.in.accept(elsewhere("it goes", alice, "x", 1004))
	eventually(t, "it is gone", func() bool {
		_, err := gittest.Try(t, root, "ls-remote", w.address(alice, "x"))
		return err != nil
	})
	w.told.await("x ended")
}

// isReadOnly checks that alice's repository x can be cloned and that pushes to it are refused.
func (w *world) isReadOnly(when string, work *gittest.Work, tip string) {
	w.Helper()
	if out, err := gittest.Try(w, work.Dir, "ls-remote", w.address(alice, "x"), "main"); err != nil || !strings.HasPrefix(out, tip) {
		w.Errorf("%s: %v\n%s", when, err, out)
	}
	for _, to := range []string{"refs/heads/main", "refs/nostr/" + strings.Repeat("ab", 32)} {
		if out, err := w.push(work, alice, "x", "HEAD:"+to); err == nil || !strings.Contains(out, "read-only archive") {
			w.Errorf("%s, a push to %s: %v\n%s", when, to, err, out)
		}
	}
}
