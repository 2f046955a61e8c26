package e2e

import (
	"fmt"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/outside"
	"tendril.dev/test/world"
)

// TestForeignRelays: one repository lists relays of many kinds, and all are synced at once: khatru
// with and without NIP-77, another Tendril, one with strfry's limits, and one for every trick of a
// hostile relay. All that the good ones have is served, nothing that was forged is, and a user is
// answered meanwhile.
func TestForeignRelays(t *testing.T) {
	t.Parallel()
	const each = 120
	ann, guest, work, git := fixture.NewPerson(), fixture.NewPerson(), world.NewWorkTree(t), world.NewGitServer(t)
	written := 0
	issues := func(n int) (events []*nostr.Event) {
		for range n {
			written++
			events = append(events, guest.At(nostr.Now()-nostr.Timestamp(100_000-50*written)).Sign(1621, fmt.Sprint("issue ", written), ann.Repo("mine")))
		}
		return events
	}
	good := map[string][]*nostr.Event{}
	var relays []string
	list := func(url string, events []*nostr.Event) {
		good[url] = events
		relays = append(relays, url)
	}

	plain, reconciling := issues(each), issues(each)
	first := world.NewKhatru(t, false, plain...)
	list(first.URL, plain)
	list(world.NewKhatru(t, true, reconciling...).URL, reconciling)
	strict := issues(each) // more than fit into its pages
	like := world.NewRelayThat(t, outside.Behaviour{Page: 50, Subscriptions: 12}, strict...)
	list(like.URL, strict)
	other, theirs := anotherTendril(t, ann, work, issues(10))
	list(other.Relay(), theirs)
	var bad []*world.Relay
	for _, trick := range outside.Tricks {
		h := world.NewRelayThat(t, outside.Behaviour{Trick: trick}, issues(20)...)
		bad, relays = append(bad, h), append(relays, h.URL)
	}

	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": first.URL})
	// Newer than what the other Tendril has, though no second may have passed.
	ann = ann.At(nostr.Now() + 1)
	announcement := ann.Announce("mine", append(relays, git.Host("mine", work))...)
	first.Publish(announcement, ann.State("mine", work.Refs()))
	p.Serves(announcement)
	await(t, "every hostile relay was asked for something", func() bool {
		for _, h := range bad {
			if h.Traffic().Messages == 0 {
				return false
			}
		}
		return true
	})
	s := p.Dial()
	for n := range 20 {
		if ok, message := s.Submit(ann.Sign(1621, fmt.Sprint("meanwhile ", n), ann.Repo("mine"))); !ok {
			t.Fatalf("a user's event is answered %q", message)
		}
	}
	for url, events := range good {
		ids := make([]string, len(events))
		for i, ev := range events {
			ids[i] = ev.ID
		}
		await(t, "all events of "+url+" are served", func() bool {
			return p.Count(nostr.Filter{IDs: ids}) == len(ids)
		})
	}
	// What comes now comes live, from those that were not given up meanwhile.
	late := issues(2)
	first.Publish(late[0])
	like.Publish(late[1])
	for _, ev := range late {
		p.Serves(ev)
	}
	for _, ev := range p.Fetch(nostr.Filter{Authors: []string{guest.PubKey}}) {
		if ok, err := ev.CheckSignature(); !ok || !ev.CheckID() || strings.HasSuffix(ev.Content, "forged") {
			t.Errorf("served: %s, %v", ev, err)
		}
	}
	if like.Traffic().Requests == 0 {
		t.Error("the relay with strfry's limits was asked nothing")
	}
}

// anotherTendril has the same repository, and events that a user published there.
func anotherTendril(t *testing.T, ann *fixture.Person, work *world.WorkTree, events []*nostr.Event) (*world.Tendril, []*nostr.Event) {
	t.Helper()
	p := world.Start(t, nil)
	p.Holds(ann.Announce("mine"), ann.State("mine", work.Refs()))
	work.Git("push", "-q", p.Repo(ann, "mine"), "main")
	for _, ev := range events {
		p.Accepts(ev)
	}
	return p, events
}
