package purgatory_test

import (
	"math"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
)

// TestReferencesFollowWhoSpeaks: acceptance, leaving, removal and deletion move the references at
// once, without a new state or push, also where the maintainer has no repository here.
func TestReferencesFollowWhoSpeaks(t *testing.T) {
	w := newWorld(t)
	at := nostr.Timestamp(3000)
	// says publishes an announcement: alice's lists us, bob's does not.
	says := func(author string, tags ...nostr.Tag) {
		at++
		ev := abroad("bob's", author, "x", at)
		if author == alice {
			ev = announcement("alice's", author, "x")
			ev.CreatedAt = at
		}
		ev.Tags = append(ev.Tags, tags...)
		w.in.accept(finish(ev))
	}
	lists := func(key string) nostr.Tag { return nostr.Tag{"maintainers", key} }
	moves := func(why, commit string) {
		t.Helper()
		eventually(t, why, func() bool { return w.ref(alice, "x", mainBranch) == commit })
	}
	says(alice, lists(bob))
	c1 := w.work.Commit("a", "1")
	w.pushState(alice, "x", 1001, c1)
	c2 := w.work.Commit("a", "2")
	w.pushState(alice, "x", 1002, c2)
	w.work.Git("reset", "--hard", c1)
	last := state("state 1003", alice, "x", 1003, c1)
	w.in.waits("x", last)
	w.pushes(alice, "x", "+main")
	says(bob)
	bobs := state("bob's state", bob, "x", 2000, c2)
	w.in.accept(bobs) // for his own repository, which is elsewhere
	says(bob, lists(alice))
	moves("acceptance lets an older state count", c2)
	says(bob, nostr.Tag{"m", bob, "1", "2"}, nostr.Tag{"m", alice})
	moves("a maintainer leaves", c1)
	says(bob, lists(alice))
	moves("and comes back", c2)
	says(alice)
	moves("the owner removes a maintainer", c1)
	says(alice, lists(bob))
	moves("and invites again", c2)
	says(alice, nostr.Tag{"M", alice}, nostr.Tag{"M", bob})
	says(bob, nostr.Tag{"m", alice})
	w.refuses("names two leads", alice, "x", "+"+c1+":"+mainBranch)
	w.isAt(alice, "x", c2)
	says(alice, lists(bob))
	w.in.accept(deletion(bob, "a", nostr.Address{Kind: nostr.KindState, PubKey: bob, Identifier: "x"}.String())) // older than the state
	w.in.accept(deletion(bob, "e", bobs.ID))
	moves("the state is deleted", c1)
	w.in.accept(deletion(alice, "e", last.ID))
	moves("the only state is deleted", "")
}

var strangers = crowd(200)

// TestAPushReadsNoStranger: a push reads the announcements and states of the people in the chain of
// its repository, and next to nothing of the strangers who announce the same identifier and list
// these people.
func TestAPushReadsNoStranger(t *testing.T) {
	w := newWorld(t)
	for i, stranger := range strangers {
		ev := abroad("stranger's", stranger, "x", 900)
		ev.Tags = append(ev.Tags, nostr.Tag{"m", alice}, nostr.Tag{"m", bob}, nostr.Tag{"M", bob})
		if ev = finish(ev); i%2 == 0 {
			w.in.accept(ev)
		} else {
			w.in.waits("x", ev)
		}
		w.in.accept(state("stranger's", stranger, "x", 2000, strings.Repeat("e", 40)))
	}
	owned := announcement("alice's", alice, "x")
	owned.Tags = append(owned.Tags, nostr.Tag{"maintainers", bob})
	accepted := abroad("bob's", bob, "x", 1000)
	accepted.Tags = append(accepted.Tags, nostr.Tag{"maintainers", alice})
	w.in.accept(finish(owned))
	w.in.accept(finish(accepted))
	first := w.work.Commit("a", "1")
	w.in.accept(state("bob's state", bob, "x", 1500, first))
	w.pushes(alice, "x", "main")
	w.work.Commit("a", "2")
	fewest := int32(math.MaxInt32)
	for range 20 { // beside some of them what follows from the first push is looked at
		read := w.asked.read.Load()
		w.refuses("differs in refs/heads/main", alice, "x", "main")
		fewest = min(fewest, w.asked.read.Load()-read)
	}
	if fewest > 4*(2+1+16) {
		t.Errorf("a push reads %d events", fewest)
	}
}

// TestWhitelist: an announcement that lists us and is not on the whitelist is here only if its
// owner is a confirmed maintainer of a repository that is hosted here, however the announcement was
// accepted.
func TestWhitelist(t *testing.T) {
	w := newWorld(t, "--repository-whitelist="+npub(alice))
	lists := func(ev *nostr.Event, keys ...string) *nostr.Event {
		ev.Tags = append(ev.Tags, append(nostr.Tag{"maintainers"}, keys...))
		return finish(ev)
	}
	w.in.accept(lists(announcement("alice's", alice, "x"), bob, carol))
	w.in.accept(lists(announcement("bob's", bob, "x"), alice))
	w.in.accept(announcement("carol's, who is invited only", carol, "x"))
	c := w.work.Commit("a", "1")
	w.pushState(alice, "x", 2000, c)
	eventually(t, "the maintainer's repository follows", func() bool { return w.ref(bob, "x", mainBranch) == c })
	w.refuses("not found", carol, "x", "main")
	if w.repo(carol, "x").Exists() {
		t.Error("a repository was made that is not on the whitelist")
	}
	w.in.accept(lists(func() *nostr.Event {
		ev := announcement("carol's, who accepts", carol, "x")
		ev.CreatedAt += 10
		return ev
	}(), alice))
	eventually(t, "who accepts is hosted", func() bool { return w.ref(carol, "x", mainBranch) == c })
}
