package history

import (
	"testing"

	"tendril.dev/lib/nostr"
)

// TestAStateWithoutObjectsTakesThePlace: an author's older states are dropped when a newer one
// counts. So what they name need not be here, and lets no announcement go for certain.
func TestAStateWithoutObjectsTakesThePlace(t *testing.T) {
	m := &model{u: &universe{served: map[string]bool{"commit": true}}}
	state := func(id string, at nostr.Timestamp, tags ...nostr.Tag) {
		m.events = append(m.events, &published{accepted: true,
			Event: &nostr.Event{ID: id, Kind: 30618, PubKey: "alice", CreatedAt: at, Tags: append(nostr.Tags{{"d", "x"}}, tags...)}})
	}
	has := func() bool {
		_, _, data := m.statesFor(map[string]bool{"alice": true}, "stranger", "x")
		return data
	}
	state("older", 1, nostr.Tag{"refs/heads/main", "commit"})
	if !has() {
		t.Error("a state that names what is here is no data")
	}
	state("empty", 2)
	if has() {
		t.Error("the newest state names nothing, and what an older one names is data")
	}
	state("newest", 3, nostr.Tag{"refs/heads/main", "commit"})
	if !has() {
		t.Error("the newest state names what is here, and that is no data")
	}
}

// TestWhatAPushLeavesThatIsCutOff: any of the references of states, of which none was made whole.
func TestWhatAPushLeavesThatIsCutOff(t *testing.T) {
	m := &model{}
	for id, refs := range map[string]nostr.Tags{"old": {{"refs/heads/main", "1"}, {"refs/heads/dev", "1"}}, "new": {{"refs/heads/main", "2"}, {"refs/tags/v", "2"}}} {
		m.events = append(m.events, &published{Event: &nostr.Event{ID: id, Kind: 30618, Tags: append(nostr.Tags{{"d", "x"}}, refs...)}})
	}
	mixed := map[string]string{"refs/heads/main": "2", "refs/heads/dev": "1"}
	if m.cutOff("alice", "x", mixed) {
		t.Error("no one has pushed")
	}
	m.pushed = []push{{owner: "alice", identifier: "x", event: m.events[0]}}
	if !m.cutOff("alice", "x", mixed) || m.cutOff("bob", "x", mixed) || m.cutOff("alice", "x", map[string]string{"refs/tags/v": "1"}) {
		t.Error("what a push left is not known, or what no state names")
	}
}

// TestAStateWithoutObjectsOfAnother: a confirmed owner's repository gets the data of any maintainer's
// state. One of an owner who only points to a lead gets that of the state that counts.
func TestAStateWithoutObjectsOfAnother(t *testing.T) {
	m := &model{u: &universe{served: map[string]bool{"commit": true}}}
	for at, ev := range []*nostr.Event{
		{ID: "data", PubKey: "alice", Tags: nostr.Tags{{"d", "x"}, {"refs/heads/main", "commit"}}},
		{ID: "empty", PubKey: "carol", Tags: nostr.Tags{{"d", "x"}}},
	} {
		ev.Kind, ev.CreatedAt = 30618, nostr.Timestamp(at+1)
		m.events = append(m.events, &published{accepted: true, Event: ev})
	}
	for owner, want := range map[string]bool{"carol": true, "stranger": false} {
		if _, _, data := m.statesFor(map[string]bool{"alice": true, "carol": true}, owner, "x"); data != want {
			t.Errorf("there is data for %s's repository: %t, want %t", owner, data, want)
		}
	}
}
