package purgatory_test

import (
	"fmt"
	"testing"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// TestReferencesFollowWhoSpeaks: the references of alice's repository follow bob's newer state while
// bob is a confirmed maintainer, and alice's older one while bob is none, whatever makes or ends
// that, at once and without a new state or push, though bob has no repository here. Where nobody has
// authority they stay.
func TestReferencesFollowWhoSpeaks(t *testing.T) {
	w := newWorld(t)
	at := nostr.Timestamp(3000)
	// says publishes an announcement: alice's lists us, the others' do not.
	says := func(author string, tags ...nostr.Tag) {
		at++
		ev := abroad("another's", author, "x", at)
		if author == alice {
			ev = announcement("alice's", author, "x")
			ev.CreatedAt = at
		}
		ev.Tags = append(ev.Tags, tags...)
		w.in.accept(finish(ev))
	}
	role := func(letter, key string, boundaries ...string) nostr.Tag {
		return append(nostr.Tag{letter, key}, boundaries...)
	}
	lists := func(key string) nostr.Tag { return nostr.Tag{"maintainers", key} }
	deletes := func(author string, tag ...string) {
		at++
		w.in.accept(event("deletion", nostr.KindDeletion, author, at, tag))
	}
	newer := ""
	states := func() *nostr.Event {
		at++
		return state("bob's state", bob, "x", at, newer)
	}
	follows := func(why, commit string) {
		t.Helper()
		eventually(t, why, func() bool { return w.ref(alice, "x", mainBranch) == commit })
	}
	says(alice)
	older := w.work.Commit("a", "1")
	w.pushState(alice, "x", 1001, older)
	newer = w.work.Commit("a", "2")
	w.pushState(alice, "x", 1002, newer)
	w.work.Git("reset", "--hard", older)
	last := state("state 1003", alice, "x", 1003, older)
	w.in.waits("x", last)
	w.pushes(alice, "x", "+main")
	says(bob)
	bobs := states()
	w.in.accept(bobs) // for his own repository, which is elsewhere
	says(alice, lists(bob))
	subject := bans.Subject{PubKey: bob}
	for _, row := range []struct {
		why, until string
		ends, back func()
	}{
		{"who is invited has not accepted", "accepts", func() {}, func() { says(bob, lists(alice)) }},
		{"the owner lists the maintainer no more", "and does again", func() { says(alice) }, func() { says(alice, lists(bob)) }},
		{"the owner ends the role", "and begins it again", func() { says(alice, role("m", bob, "1", "2")) }, func() { says(alice, role("m", bob, "1", "2", "3")) }},
		{"the maintainer ends the own role", "and begins it again", func() { says(bob, role("m", bob, "1", "2"), role("m", alice)) },
			func() { says(bob, role("m", bob, "1", "2", "3"), role("m", alice)) }},
		{"the maintainer becomes a moderator", "and a maintainer", func() { says(bob, role("o", bob), role("m", alice)) }, func() { says(bob, role("m", bob), role("m", alice)) }},
		{"the maintainer names nobody", "and the owner again", func() { says(bob) }, func() { says(bob, lists(alice)) }},
		{"a lead who does not list the maintainer", "the owner leads again", func() {
			says(carol, role("M", carol), role("m", alice))
			says(alice, role("M", carol), role("m", bob))
			says(bob, lists(bob))
		}, func() { says(alice, role("M", alice), role("m", bob)); says(bob, lists(alice)) }},
		{"the maintainer deletes the announcement", "and announces anew", func() { deletes(bob, "a", repo(bob, "x").String()) }, func() { says(bob, lists(alice)) }},
		{"the maintainer's announcement expires", "and is renewed", func() { says(bob, lists(alice), nostr.Tag{"expiration", fmt.Sprint(nostr.Now() + 1)}) },
			func() { says(bob, lists(alice)) }},
		{"the maintainer deletes the state by its id", "and publishes another", func() { deletes(bob, "e", bobs.ID) }, func() { w.in.waits("x", states()) }},
		{"the maintainer deletes the state by its address", "and publishes another",
			func() { deletes(bob, "a", nostr.Address{Kind: nostr.KindState, PubKey: bob, Identifier: "x"}.String()) }, func() { w.in.waits("x", states()) }},
		{"the maintainer is banned", "and no more", func() { must(t, bans.Put(t.Context(), w.Bus.JS, subject, proto.Ban{})) },
			func() { must(t, bans.Lift(t.Context(), w.Bus.JS, subject, "an operator")) }},
	} {
		row.ends()
		follows(row.why, older)
		row.back()
		follows(row.why+": "+row.until, newer)
	}
	says(alice, role("M", alice), role("M", bob))
	says(bob, role("m", alice))
	w.refuses("names two leads", alice, "x", "+"+older+":"+mainBranch)
	w.isAt(alice, "x", newer)
	says(alice)
	follows("the owner alone", older)
	w.in.accept(deletion(alice, "e", last.ID))
	follows("the only state is deleted", "")
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
