package pending_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/pending"
	"tendril.dev/services/purgatory/repository"
)

var (
	x = repository.Place{RepoRef: nostr.RepoRef{PubKey: strings.Repeat("1", 64), Identifier: "x"}}
	y = repository.Place{RepoRef: nostr.RepoRef{PubKey: strings.Repeat("1", 64), Identifier: "y"}}
)

func TestLimits(t *testing.T) {
	t.Parallel()
	limits := pending.Limits{ClientBytes: 100, Bytes: 250, ClientRefs: 3, RepositoryRefs: 4, References: 6}
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
		"nothing waits":                  {nil, push{x, "a", 1, 100}, ""},
		"no event is unknown":            {[]push{{x, "a", 3, 100}}, push{x, "a", 0, 1000}, ""},
		"too much at once":               {nil, push{x, "a", 1, 101}, "0 bytes from your address wait for their events, this push would add 101 bytes, and at most 100 bytes may wait"},
		"too much by the client":         {[]push{{x, "a", 1, 60}}, push{y, "a", 1, 41}, "60 bytes from your address"},
		"as much by another":             {[]push{{x, "a", 1, 60}}, push{y, "b", 1, 41}, ""},
		"no room before the pack":        {[]push{{x, "a", 1, 100}}, push{y, "a", 1, 0}, "100 bytes from your address"},
		"too many by the client":         {[]push{{x, "a", 2, 1}}, push{y, "a", 2, 1}, "2 references from your address wait for their events, at most 3 may"},
		"too many in the repository":     {[]push{{x, "a", 3, 1}}, push{x, "b", 2, 1}, "3 references of this repository wait for their events, at most 4 may"},
		"as many in another":             {[]push{{x, "a", 3, 1}}, push{y, "b", 2, 1}, ""},
		"too many in all":                {[]push{{x, "a", 3, 1}, {y, "b", 2, 1}}, push{y, "c", 2, 1}, "too many references wait"},
		"too much in all":                {[]push{{x, "a", 1, 100}, {x, "b", 1, 100}}, push{y, "c", 1, 51}, "too much waits for its events on this server"},
		"a client that nobody knows too": {[]push{{x, "", 1, 60}}, push{y, "", 1, 41}, "60 bytes from your address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, n := pending.New(limits), 0
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
				refused, ok := errors.AsType[*pending.Refused](err)
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
	l := pending.New(pending.Limits{ClientBytes: 100, Bytes: 1000, ClientRefs: 10, RepositoryRefs: 10, References: 10})
	one, two := strings.Repeat("a", 64), strings.Repeat("b", 64)
	notes, err := l.Admit(x, "a", []string{one, two}, 70)
	if err != nil || len(notes) != 2 || notes[0].Bytes != 70 || notes[1].Bytes != 0 {
		t.Fatalf("%+v (%v)", notes, err)
	}
	if _, err := l.Admit(x, "a", []string{one}, 20); err != nil { // pushed again: what it was before takes up room too
		t.Fatal(err)
	}
	if bytes, references := l.Waiting(); bytes != 90 || references != 2 {
		t.Errorf("%d bytes, %d references", bytes, references)
	}
	l.Set(x, repository.WaitingPush{Event: two, Client: "a", Bytes: 5})
	l.Set(y, repository.WaitingPush{Event: two, Client: "b", Bytes: 7})
	if bytes, references := l.Waiting(); bytes != 102 || references != 3 {
		t.Errorf("%d bytes, %d references", bytes, references)
	}
	l.Remove(x, one)
	l.Remove(x, one)
	l.Drop(func(ref repository.Place) bool { return ref == y })
	if bytes, references := l.Waiting(); bytes != 5 || references != 1 {
		t.Errorf("%d bytes, %d references", bytes, references)
	}
	l.Remove(x, two)
	if err := l.Check(x, "a", []string{one}, 100); err != nil {
		t.Errorf("when nothing waits any more: %v", err)
	}
}

// TestWhereAnEventIsAwaited: an event may be pushed to several places.
func TestWhereAnEventIsAwaited(t *testing.T) {
	t.Parallel()
	l := pending.New(pending.Limits{ClientBytes: 100, Bytes: 100, ClientRefs: 9, RepositoryRefs: 9, References: 9})
	offered := repository.Place{RepoRef: x.RepoRef, PRs: true}
	event := strings.Repeat("a", 64)
	for n, at := range []repository.Place{x, offered} {
		if _, err := l.Admit(at, "c", []string{event}, 1); err != nil {
			t.Fatal(err)
		}
		if got := l.At(event); len(got) != n+1 {
			t.Errorf("it is awaited at %v", got)
		}
	}
	l.Remove(x, event)
	if got := l.At(event); len(got) != 1 || got[0] != offered {
		t.Errorf("it is still awaited at %v", got)
	}
	l.Drop(func(at repository.Place) bool { return at.PRs })
	if bytes, refs := l.Waiting(); bytes != 0 || refs != 0 || len(l.At(event)) != 0 {
		t.Errorf("%d bytes and %d references are left, at %v", bytes, refs, l.At(event))
	}
}
