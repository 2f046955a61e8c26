package purgatory

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

var (
	placeX = repository.Place{RepoRef: nostr.RepoRef{PubKey: strings.Repeat("1", 64), Identifier: "x"}}
	placeY = repository.Place{RepoRef: nostr.RepoRef{PubKey: strings.Repeat("1", 64), Identifier: "y"}}
)

func TestWaitingLimits(t *testing.T) {
	t.Parallel()
	limits := waitingLimits{ClientBytes: 100, Bytes: 250, ClientRefs: 3, RepositoryRefs: 4, References: 6}
	type push struct {
		ref    repository.Place
		client string
		events int
		bytes  int64
	}
	for name, tc := range map[string]struct {
		before  []push
		push    push
		refusal string
	}{
		"nothing waits":                  {nil, push{placeX, "a", 1, 100}, ""},
		"no event is unknown":            {[]push{{placeX, "a", 3, 100}}, push{placeX, "a", 0, 1000}, ""},
		"too much at once":               {nil, push{placeX, "a", 1, 101}, "0 bytes from your address wait for their events, this push would add 101 bytes, and at most 100 bytes may wait"},
		"too much by the client":         {[]push{{placeX, "a", 1, 60}}, push{placeY, "a", 1, 41}, "60 bytes from your address"},
		"as much by another":             {[]push{{placeX, "a", 1, 60}}, push{placeY, "b", 1, 41}, ""},
		"no room before the pack":        {[]push{{placeX, "a", 1, 100}}, push{placeY, "a", 1, 0}, "100 bytes from your address"},
		"too many by the client":         {[]push{{placeX, "a", 2, 1}}, push{placeY, "a", 2, 1}, "2 references from your address wait for their events, at most 3 may"},
		"too many in the repository":     {[]push{{placeX, "a", 3, 1}}, push{placeX, "b", 2, 1}, "3 references of this repository wait for their events, at most 4 may"},
		"as many in another":             {[]push{{placeX, "a", 3, 1}}, push{placeY, "b", 2, 1}, ""},
		"too many in all":                {[]push{{placeX, "a", 3, 1}, {placeY, "b", 2, 1}}, push{placeY, "c", 2, 1}, "too many references wait"},
		"too much in all":                {[]push{{placeX, "a", 1, 100}, {placeX, "b", 1, 100}}, push{placeY, "c", 1, 51}, "too much waits for its events on this server"},
		"a client that is not known too": {[]push{{placeX, "", 1, 60}}, push{placeY, "", 1, 41}, "60 bytes from your address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, n := newAccount(limits), 0
			events := func(count int) (ids []string) {
				for range count {
					n++
					ids = append(ids, fmt.Sprintf("%064x", n))
				}
				return ids
			}
			for _, p := range tc.before {
				if _, err := l.Admit(p.ref, p.client, events(p.events), p.bytes); err != nil {
					t.Fatal(err)
				}
			}
			ids := events(tc.push.events)
			checked := l.Check(tc.push.ref, tc.push.client, ids, tc.push.bytes)
			bytes, references := l.Waiting()
			_, admitted := l.Admit(tc.push.ref, tc.push.client, ids, tc.push.bytes)
			for _, err := range []error{checked, admitted} {
				refused, ok := errors.AsType[*repostate.Refused](err)
				if ok != (tc.refusal != "") || ok && (!strings.Contains(refused.Reason, tc.refusal) || !strings.Contains(refused.Reason, "publish")) {
					t.Errorf("%v, want %q", err, tc.refusal)
				}
			}
			if b, r := l.Waiting(); tc.refusal != "" && (b != bytes || r != references) {
				t.Error("a refused push is in the account")
			}
		})
	}
}

func TestTheAccountIsBalanced(t *testing.T) {
	t.Parallel()
	l := newAccount(waitingLimits{ClientBytes: 100, Bytes: 1000, ClientRefs: 10, RepositoryRefs: 10, References: 10})
	one, two := strings.Repeat("a", 64), strings.Repeat("b", 64)
	notes, err := l.Admit(placeX, "a", []string{one, two}, 70)
	if err != nil || len(notes) != 2 || notes[0].Bytes != 70 || notes[1].Bytes != 0 {
		t.Fatalf("%+v (%v)", notes, err)
	}
	if _, err := l.Admit(placeX, "a", []string{one}, 20); err != nil { // pushed again: what it was before takes up room too
		t.Fatal(err)
	}
	if bytes, references := l.Waiting(); bytes != 90 || references != 2 {
		t.Errorf("%d bytes, %d references", bytes, references)
	}
	l.Set(placeX, repository.WaitingPush{Event: two, Client: "a", Bytes: 5})
	l.Set(placeY, repository.WaitingPush{Event: two, Client: "b", Bytes: 7})
	if bytes, references := l.Waiting(); bytes != 102 || references != 3 {
		t.Errorf("%d bytes, %d references", bytes, references)
	}
	l.Remove(placeX, one)
	l.Remove(placeX, one)
	l.Drop(func(ref repository.Place) bool { return ref == placeY })
	if bytes, references := l.Waiting(); bytes != 5 || references != 1 {
		t.Errorf("%d bytes, %d references", bytes, references)
	}
	l.Remove(placeX, two)
	if err := l.Check(placeX, "a", []string{one}, 100); err != nil {
		t.Errorf("when nothing waits any more: %v", err)
	}
}
