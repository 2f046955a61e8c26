package repostate_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repostate"
	"tendril.dev/test/fixture"
)

var must = fixture.Must

const (
	owner  = "1111111111111111111111111111111111111111111111111111111111111111"
	friend = "2222222222222222222222222222222222222222222222222222222222222222"
	other  = "3333333333333333333333333333333333333333333333333333333333333333"
	c1     = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	c2     = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	domain = "grasp.example.com"
)

func event(kind int, pubkey string, at nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
	ev := &nostr.Event{Kind: kind, PubKey: pubkey, CreatedAt: at, Tags: tags}
	ev.ID = ev.GetID()
	return ev
}

func announcement(t *testing.T, pubkey string, at nostr.Timestamp, maintainers ...string) *nostr.Event {
	t.Helper()
	npub, err := nip19.EncodePublicKey(pubkey)
	must(t, err)
	return event(nostr.KindAnnouncement, pubkey, at, nostr.Tag{"d", "x"}, append(nostr.Tag{"maintainers"}, maintainers...),
		nostr.Tag{"clone", "https://" + domain + "/" + npub + "/x.git", "https://git.example.org/" + pubkey[:1] + ".git", "ssh://git@example.org/x"},
		nostr.Tag{"relays", "wss://" + domain})
}

func state(pubkey string, at nostr.Timestamp, refs ...string) *nostr.Event {
	tags := nostr.Tags{{"d", "x"}, {"HEAD", "ref: refs/heads/main"}}
	for i := 0; i < len(refs); i += 2 {
		tags = append(tags, nostr.Tag{refs[i], refs[i+1]})
	}
	return event(nostr.KindState, pubkey, at, tags...)
}

func held(events ...*nostr.Event) []proto.Held {
	var list []proto.Held
	for _, ev := range events {
		list = append(list, proto.Held{Event: ev, Identifier: "x", Phase: proto.PhaseWaiting})
	}
	return list
}

type list = []*nostr.Event

func view(accepted list, waiting []proto.Held) repostate.View {
	return repostate.New("x", config.Rules{Home: domain}, accepted, waiting)
}

// TestACrowdIsReadInTime: what everybody of a crowd says for everybody of it is not worked out for
// one look at one of them.
func TestACrowdIsReadInTime(t *testing.T) {
	t.Parallel()
	read := func(group int) time.Duration {
		const crowd = 1500
		key := func(n int) string { return fmt.Sprintf("%064x", n) }
		var events list
		for n := range crowd {
			next := n - n%group + (n+1)%group // a ring of so many maintainers who list each other
			before := n - n%group + (n+group-1)%group
			events = append(events, announcement(t, key(n), 1, key(next), key(before)), state(key(n), 2, "refs/heads/main", c1))
		}
		began := time.Now()
		v := view(nil, held(events...))
		if got := len(v.StatesFor(key(7))); got != group || !v.Hosts(key(7)) {
			t.Errorf("%d states for one of a group of %d", got, group)
		}
		return time.Since(began)
	}
	if small, large := read(10), read(250); large > 4*small {
		t.Errorf("a crowd of one group is read in %v, and one of small groups in %v", large, small)
	}
}

func TestHosted(t *testing.T) {
	t.Parallel()
	elsewhere := event(nostr.KindAnnouncement, other, 5, nostr.Tag{"d", "x"}, nostr.Tag{"clone", "https://git.example.org/3.git"})
	silent := held(announcement(t, other, 4))
	silent[0].Phase = proto.PhaseSilent
	v := view(list{announcement(t, owner, 1, friend)}, append(held(announcement(t, friend, 2)), silent...))
	if got := v.Hosted; !slices.Equal(got, []string{owner, friend}) {
		t.Errorf("hosted %v", got)
	}
	left := view(list{announcement(t, other, 1), elsewhere}, nil)
	if left.Hosts(other) {
		t.Error("a newer announcement that does not list us, and it is still hosted")
	}
	if got := urls(v.Sources()); !slices.Equal(got, []string{"https://git.example.org/1.git", "https://git.example.org/2.git", "https://git.example.org/3.git"}) {
		t.Errorf("clone URLs %v", got)
	}
}

// TestWants: the state's object in its author's repository, the pull request's in the one it is
// for. Others who announce the identifier have no say in where an owner's data is looked for first.
func TestWants(t *testing.T) {
	t.Parallel()
	pr := event(nostr.KindPR, other, 9, nostr.Tag{"a", "30617:" + owner + ":x"}, nostr.Tag{"c", c2}, nostr.Tag{"clone", "https://fork.example.org/x.git"})
	v := view(list{announcement(t, owner, 1, friend), announcement(t, other, 1, owner), state(owner, 3, "refs/heads/main", c2)},
		held(announcement(t, friend, 2, owner), state(friend, 4, "refs/heads/main", c1), pr))
	wants := v.Wants()
	if len(wants) != 2 || wants[0].Owner != owner || !slices.Equal(wants[0].Objects, []string{c2}) || wants[1].Owner != friend || !slices.Equal(wants[1].Objects, []string{c1}) {
		t.Fatalf("wants %+v", wants)
	}
	both := event(nostr.KindPR, other, 9, nostr.Tag{"a", "30617:" + friend + ":x"}, nostr.Tag{"a", "30617:" + owner + ":x"}, nostr.Tag{"c", c2})
	if got := view(list{announcement(t, owner, 1)}, held(announcement(t, friend, 2), both)).Wants(); len(got) != 1 || got[0].Owner != owner {
		t.Errorf("what is for an owner who is served too should first come there: %+v", got)
	}
	if got := urls(wants[0].Near); !slices.Equal(got, []string{"https://git.example.org/1.git", "https://git.example.org/2.git", "https://fork.example.org/x.git"}) {
		t.Errorf("near %v", got)
	}
}

// TestAStrangerPaysForNobodysState: who announces the identifier and points to its lead, with the
// lowest of all keys, is not chosen to fetch a maintainer's state.
func TestAStrangerPaysForNobodysState(t *testing.T) {
	t.Parallel()
	stranger := strings.Repeat("0", 63) + "1"
	pointing := announcement(t, stranger, 1)
	pointing.Tags = append(pointing.Tags, nostr.Tag{"M", owner})
	pointing.ID = pointing.GetID()
	elsewhere := event(nostr.KindAnnouncement, friend, 1, nostr.Tag{"d", "x"}, nostr.Tag{"clone", "https://git.example.org/2.git"},
		nostr.Tag{"relays", "wss://other.example.org"}, nostr.Tag{"maintainers", owner})
	lead := announcement(t, owner, 1)
	lead.Tags = append(lead.Tags, nostr.Tag{"M", owner}, nostr.Tag{"m", friend})
	lead.ID = lead.GetID()
	v := view(list{pointing, lead, elsewhere}, held(state(friend, 4, "refs/heads/main", c1)))
	if owners := v.OwnersFor(friend); !slices.Equal(owners, []string{stranger, owner}) {
		t.Fatalf("the state is for %v", owners)
	}
	if wants := v.Wants(); len(wants) != 1 || wants[0].Owner != owner || wants[0].Payer != owner {
		t.Errorf("wants %+v", wants)
	}
}

// TestAnImpossibleStateCountsNowhere: clients test with made-up values.
func TestAnImpossibleStateCountsNowhere(t *testing.T) {
	t.Parallel()
	madeUp := state(owner, 5, "refs/heads/main", c1, "refs/heads/next", "made up")
	older := state(owner, 4, "refs/heads/main", c2)
	v := view(list{announcement(t, owner, 1)}, held(madeUp, older))
	if got := v.Wants(); len(got) != 1 || !slices.Equal(got[0].Objects, []string{c2}) {
		t.Errorf("wants %v, want only what the older state names", got)
	}
	if got := v.StatesFor(owner); len(got) != 1 || got[0].Event.ID != older.ID {
		t.Errorf("%d states count, want the older one alone", len(got))
	}
}

// TestStatesFor: the states of confirmed maintainers count, the newest first.
func TestStatesFor(t *testing.T) {
	t.Parallel()
	old, mid, young := state(owner, 3, "refs/heads/main", c1), state(friend, 4, "refs/heads/main", c2), state(owner, 5, "refs/heads/main", c1)
	states := held(old, mid, young, state(other, 9, "refs/heads/main", c1))
	confirmed := view(list{announcement(t, owner, 1, friend), announcement(t, friend, 1, owner)}, states).StatesFor(owner)
	if len(confirmed) != 3 || confirmed[0].Event.ID != young.ID || confirmed[1].Event.ID != mid.ID {
		t.Errorf("%d states count", len(confirmed))
	}
	for name, announcements := range map[string]list{
		"without an announcement of the friend": {announcement(t, owner, 1, friend)},
		"with a fork of the friend":             {announcement(t, owner, 1, friend), announcement(t, friend, 1)},
	} {
		if invited := view(announcements, states).StatesFor(owner); len(invited) != 2 || invited[1].Event.ID != old.ID {
			t.Errorf("%s: %d states count", name, len(invited))
		}
	}
}

func TestAuthorise(t *testing.T) {
	t.Parallel()
	pr := event(nostr.KindPR, friend, 9, nostr.Tag{"a", "30617:" + owner + ":x"}, nostr.Tag{"c", c1})
	note := event(1, friend, 9)
	accepted := state(owner, 3, "refs/heads/main", c1)
	waiting := state(friend, 5, "refs/heads/main", c2, "refs/tags/v1", c1)
	before := state(friend, 2, "refs/heads/main", c2)
	stranger := state(other, 9, "refs/heads/evil", c2)
	views := map[string]repostate.View{
		"full":      view(list{announcement(t, owner, 1, friend), announcement(t, friend, 1, owner), accepted}, held(waiting, before, stranger)),
		"invited":   view(list{announcement(t, owner, 1, friend), announcement(t, friend, 1), accepted}, held(waiting)),
		"unknown":   view(list{announcement(t, owner, 1, friend), accepted}, nil),
		"two leads": view(list{event(nostr.KindAnnouncement, owner, 1, append(announcement(t, owner, 1).Tags, nostr.Tag{"M", owner}, nostr.Tag{"M", friend})...), accepted}, nil),
		"no lead":   view(list{event(nostr.KindAnnouncement, owner, 1, append(announcement(t, owner, 1).Tags, nostr.Tag{"M", friend})...), accepted}, nil),
		"bare":      view(nil, held(announcement(t, owner, 1))),
		"strangers": view(nil, held(announcement(t, owner, 1), stranger)),
	}
	ids := strings.NewReplacer("C1", c1, "C2", c2, "PR", pr.ID, "NOTE", note.ID, "OWNER", nostr.Npub(owner), "FRIEND", nostr.Npub(friend), "OTHER", nostr.Npub(other))
	// What there is; the changes; the refusal, "": it is taken for the state that waits.
	for _, row := range fixture.Rows(`
		full      | refs/heads/main=C2 refs/tags/v1=C1                  |
		full      | refs/heads/main=C2                                  | names refs/tags/v1 too
		full      | refs/heads/evil=C2                                  | differs in refs/heads/evil, refs/heads/main, refs/tags/v1; publish a new one (kind 30618) first
		bare      | refs/heads/main=C1                                  | no state event for this repository
		strangers | refs/heads/evil=C2                                  | by others: OTHER is not listed by a confirmed maintainer; OWNER must publish an announcement of this identifier that lists OTHER
		invited   | refs/heads/main=C2 refs/tags/v1=C1                  | by others: FRIEND is invited but has not accepted yet; FRIEND must publish an announcement of this identifier that lists OWNER
		unknown   | refs/heads/main=C2                                  | FRIEND is invited but has not accepted yet
		two leads | refs/heads/main=C1                                  | no one has authority: the announcement of OWNER names two leads
		no lead   | refs/heads/main=C1                                  | no one has authority: the announcement of the lead FRIEND is missing; FRIEND must publish
		full      | refs/notes/x=C1                                     | only refs/heads/
		bare      | refs/nostr/PR=C2                                    | names commit C1
		bare      | refs/nostr/NOTE=C1                                  | event NOTE is no pull request and names no commit
		bare      | refs/nostr/main=C1                                  | 64 hex
		full      | refs/heads/main=C2 refs/tags/v1=C1 refs/nostr/x=C1  |
	`) {
		push := repostate.Push{Owner: owner, Event: func(id string) (*nostr.Event, error) {
			return map[string]*nostr.Event{pr.ID: pr, note.ID: note}[id], nil
		}}
		if row[0] == "full" {
			push.Refs = map[string]string{"refs/heads/main": c1}
		}
		for _, change := range strings.Fields(ids.Replace(row[1])) {
			name, value, _ := strings.Cut(change, "=")
			push.Changes = append(push.Changes, repostate.Change{Name: name, New: value})
		}
		d, err := views[row[0]].Authorise(push)
		s := d.State
		err = cmp.Or(err, d.Err(false))
		refused, is := errors.AsType[*repostate.Refused](err)
		switch want := ids.Replace(row[2]); {
		case want == "" && (err != nil || s == nil || s.Event.ID != waiting.ID):
			t.Errorf("%v: %v, allowed by %v", row, err, s)
		case want != "" && (!is || !strings.HasPrefix(refused.Reason, "authorisation failed: ") || !strings.Contains(refused.Reason, want)):
			t.Errorf("%v: %v", row, err)
		}
	}
}

// TestAuthoriseEachReference: branches and tags are decided together, others each for itself, and
// what is there already needs no state.
func TestAuthoriseEachReference(t *testing.T) {
	t.Parallel()
	pr := event(nostr.KindPR, friend, 9, nostr.Tag{"a", "30617:" + owner + ":x"}, nostr.Tag{"c", c1})
	full := view(list{announcement(t, owner, 1), state(owner, 3, "refs/heads/main", c1)}, held(state(owner, 5, "refs/heads/main", c2, "refs/tags/v1", c1)))
	bare := view(list{announcement(t, owner, 1)}, nil)
	ids := strings.NewReplacer("C1", c1, "C2", c2, "PR", pr.ID)
	// What is there; what is pushed; which commands are allowed (+), done (=) and refused (-), in
	// their order.
	for _, row := range fixture.Rows(`
		full | refs/heads/main=C1                   | refs/heads/main=C2 refs/tags/v1=C1 refs/nostr/x=C1  | ++-
		full | refs/heads/main=C1                   | refs/heads/main=C2 refs/nostr/PR=C1                 | -+
		full | refs/heads/main=C2                   | refs/heads/main=C2 refs/tags/v1=C1                  | =+
		full | refs/heads/main=C2                   | refs/tags/v2=C1 refs/heads/main=C2                  | -=
		bare | refs/heads/main=C2 refs/tags/v1=C1   | refs/heads/main=C2 refs/tags/v1=C1 refs/tags/v0=    | ===
		bare | refs/nostr/PR=C1 refs/heads/main=C1  | refs/nostr/PR=C1 refs/heads/main= refs/notes/x=     | =--
		bare | refs/nostr/PR=C1                     | refs/nostr/PR=                                      | -
		bare |                                      | refs/nostr/PR=                                      | =
	`) {
		parse := func(refs string) (changes []repostate.Change) {
			for change := range strings.FieldsSeq(ids.Replace(refs)) {
				name, value, _ := strings.Cut(change, "=")
				changes = append(changes, repostate.Change{Name: name, Old: strings.Repeat("0", 39) + "1", New: value})
			}
			return changes
		}
		there := map[string]string{}
		for _, c := range parse(row[1]) {
			there[c.Name] = c.New
		}
		push := repostate.Push{Owner: owner, Refs: there, Changes: parse(row[2]), Event: func(string) (*nostr.Event, error) { return pr, nil }}
		d, err := map[string]repostate.View{"full": full, "bare": bare}[row[0]].Authorise(push)
		if err != nil {
			t.Errorf("%v: %v", row, err)
		}
		got := ""
		for _, c := range push.Changes {
			switch {
			case slices.Contains(d.Done, c):
				got += "="
			case slices.Contains(d.Allowed, c):
				got += "+"
			case d.Refused[c.Name] != "":
				got += "-"
			}
		}
		if got != row[3] || (d.Err(true) != nil) != strings.Contains(got, "-") {
			t.Errorf("%v: decided %s, atomic: %v", row, got, d.Err(true))
		}
	}
}

// TestServes: an owner whose first announcement only waits is not served yet; one who has a newer
// one that waits still is, and so is a maintainer.
func TestServes(t *testing.T) {
	t.Parallel()
	v := view(list{announcement(t, owner, 1, friend), announcement(t, friend, 1, owner)}, held(announcement(t, owner, 2, friend), announcement(t, other, 1, friend)))
	if !v.Serves(owner) || !v.Serves(friend) || v.Serves(other) || v.Serves("unknown") {
		t.Errorf("served: owner %v, other %v, unknown %v", v.Serves(owner), v.Serves(other), v.Serves("unknown"))
	}
}

// TestSharing: who only points to a lead, and who only lists one who does not list them, share no
// objects.
func TestSharing(t *testing.T) {
	t.Parallel()
	follows := event(nostr.KindAnnouncement, other, 1, append(announcement(t, other, 1).Tags, nostr.Tag{"M", owner})...)
	leads := event(nostr.KindAnnouncement, owner, 1, append(announcement(t, owner, 1).Tags, nostr.Tag{"M", owner}, nostr.Tag{"m", friend})...)
	v := view(list{leads, follows, announcement(t, friend, 1, owner), announcement(t, strings.Repeat("4", 64), 1, owner)}, nil)
	if got := v.Sharing(owner); !slices.Equal(got, []string{owner}) {
		t.Errorf("sharing %v", got)
	}
}

func urls(list []repostate.Source) (urls []string) {
	for _, s := range list {
		urls = append(urls, s.URL)
	}
	return urls
}
