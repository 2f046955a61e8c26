package purgatory_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

// endsHunt waits until what was held before is not hunted, because nothing of it counts.
func (w *world) endsHunt(after string) {
	w.Helper()
	w.in.syncs(after, announcement("marker", carol, after)) // is heard of after everything before
	eventually(w, "what was held last is heard of", func() bool { return w.repo(carol, after).Exists() })
	eventually(w, "nothing is hunted", func() bool { return w.metric("purgatory_sync_queue_size") == 0 })
}

// TestABanEnds: what was held while it was banned is hunted and released when it is not any more.
func TestABanEnds(t *testing.T) {
	w := newWorld(t)
	commit, url := published(t)
	for n, subject := range []bans.Subject{{Identifier: "x0"}, {PubKey: alice}, {PubKey: alice, Identifier: "x2"}, {}} {
		identifier := fmt.Sprint("x", n)
		ann, st := announcement(identifier, alice, identifier, url), state(fmt.Sprint("a state of ", identifier), alice, identifier, 1001, commit)
		if subject == (bans.Subject{}) {
			subject.Event = st.ID
		}
		fixture.Must(t, bans.Put(t.Context(), w.Bus.JS, subject, proto.Ban{}))
		eventually(t, "the ban is known", func() bool { return w.Bans.Find(subject) != nil })
		w.in.syncs(identifier, ann, st)
		w.endsHunt(fmt.Sprint("y", n))
		fixture.Must(t, bans.Lift(t.Context(), w.Bus.JS, subject, "an operator"))
		w.released(st)
		w.released(ann)
	}
}

// TestABannedGitHost: nothing is fetched from a host that is banned, and it is when it is not banned
// any more.
func TestABannedGitHost(t *testing.T) {
	w := newWorld(t)
	work, root := gittest.NewWork(t), t.TempDir()
	commit := work.Commit("a", "1")
	work.Publish(root, "x.git")
	work.Publish(root, "z.git")
	var asked atomic.Int64
	backend := gittest.Backend(t, root).Config.Handler
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/x.git") {
			asked.Add(1)
		}
		backend.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	subject, err := bans.OfGitHost(server.URL)
	fixture.Must(t, err, bans.Put(t.Context(), w.Bus.JS, subject, proto.Ban{}))
	eventually(t, "the ban is known", func() bool { return w.Bans.Find(subject) != nil })
	ann, st := announcement("banned", alice, "x", server.URL+"/x.git"), state("a state", alice, "x", 1001, commit)
	w.in.syncs("x", ann, st)
	// By another name the host is not banned, and hunted after it.
	fine := announcement("another", carol, "z", strings.Replace(server.URL, "127.0.0.1", "localhost", 1)+"/z.git")
	w.in.syncs("z", fine, state("its state", carol, "z", 1001, commit))
	w.released(fine)
	if asked.Load() > 0 {
		t.Error("a banned host is asked")
	}
	fixture.Must(t, bans.Lift(t.Context(), w.Bus.JS, subject, "an operator"))
	w.released(st)
	w.released(ann)
}

// TestAuthorityComesBack: a state that was held, and not hunted because its author had no authority,
// is hunted when an accepted announcement confirms the author.
func TestAuthorityComesBack(t *testing.T) {
	w := newWorld(t)
	commit, url := published(t)
	lists := func(name, owner, other string, at nostr.Timestamp) *nostr.Event {
		ev := announcement(name, owner, "x", url)
		ev.CreatedAt, ev.Tags = at, append(ev.Tags, nostr.Tag{"maintainers", other})
		return finish(ev)
	}
	w.in.accept(announcement("alone", alice, "x", url))
	w.in.accept(lists("bob's", bob, alice, 1001))
	alone := announcement("left", bob, "x", url)
	alone.CreatedAt, alone.Tags = 1002, append(alone.Tags, nostr.Tag{"m", bob, "100", "defer"})
	w.in.accept(finish(alone))
	st := state("bob's state", bob, "x", 1003, commit)
	w.in.syncs("x", st)
	w.endsHunt("y")
	w.in.accept(lists("with bob", alice, bob, 1004))
	w.in.accept(lists("bob again", bob, alice, 1005))
	w.released(st)
}

// TestAStateIsDeletedWhileNoWorkerIsThere: the next worker knows that the references followed it, and
// removes them.
func TestAStateIsDeletedWhileNoWorkerIsThere(t *testing.T) {
	w := newWorld(t)
	commit := w.work.Commit("a", "1")
	w.announced(alice, "x")
	st := w.pushState(alice, "x", 1001, commit)
	followed := func() bool {
		noted, err := w.repo(alice, "x").Followed()
		return err == nil && noted.Event == st.ID
	}
	eventually(t, "the state is noted", followed)
	w.stop()
	w.in.accept(deletion(alice, "e", st.ID))
	w.restart()
	eventually(t, "the branch goes", func() bool { return w.ref(alice, "x", mainBranch) == "" })
}
