package repostate_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

const endDomain = "git.example.com"

var (
	alice = strings.Repeat("a1", 32)
	ref   = nostr.RepoRef{PubKey: alice, Identifier: "tree"}
)

func lastOf(t *testing.T, at string) *nostr.Event {
	t.Helper()
	npub, err := nip19.EncodePublicKey(alice)
	must(t, err)
	ev := &nostr.Event{Kind: nostr.KindAnnouncement, PubKey: alice, Tags: nostr.Tags{
		{"d", "tree"}, {"clone", "https://" + at + "/" + npub + "/tree.git"}, {"relays", "wss://" + at}}}
	ev.ID = ev.GetID()
	return ev
}

func TestEndingOf(t *testing.T) {
	t.Parallel()
	here, elsewhere, before := lastOf(t, endDomain), lastOf(t, "other.example.org"), lastOf(t, "old.example.com")
	isHere := func(a *nostr.Announcement) bool {
		return a.ListsService("old.example.com") || a.ListsService(endDomain)
	}
	for name, tc := range map[string]struct {
		last  *nostr.Event
		taken string
		want  string
	}{
		"deleted":                {here, repostate.Deleted, repostate.Deleted},
		"its owner has vanished": {here, repostate.Vanished, repostate.Vanished},
		"moved away":             {elsewhere, "", repostate.Moved},
		"the service has moved":  {before, "", ""},
		"no announcement at all": {&nostr.Event{Kind: 1, PubKey: alice}, repostate.Deleted, ""},
	} {
		if got := repostate.EndingOf(ref, isHere, tc.last, tc.taken, false); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestDeletionsOf: requests by the author that name the id, or the address and are as new.
func TestDeletionsOf(t *testing.T) {
	t.Parallel()
	a := lastOf(t, endDomain)
	a.CreatedAt = 1000
	a.ID = a.GetID()
	bob := strings.Repeat("b0", 32)
	request := func(kind int, author string, at nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
		return &nostr.Event{ID: strings.Repeat("1", 64), Kind: kind, PubKey: author, CreatedAt: at, Tags: tags}
	}
	address := "30617:" + alice + ":tree"
	for name, tc := range map[string]struct {
		request *nostr.Event
		want    bool
	}{
		"by id":                 {request(5, alice, 1, nostr.Tag{"e", a.ID}), true},
		"by address":            {request(5, alice, 2000, nostr.Tag{"a", address}), true},
		"by address, before it": {request(5, alice, 999, nostr.Tag{"a", address}), false},
		"by another author":     {request(5, bob, 2000, nostr.Tag{"a", address}, nostr.Tag{"e", a.ID}), false},
	} {
		found := slices.ContainsFunc(repostate.DeletionsOf(a), func(f nostr.Filter) bool { return f.Matches(tc.request) })
		if found != tc.want {
			t.Errorf("%s: found by a filter: %t", name, found)
		}
	}
}

func TestKeptUntil(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	const week = 7 * 24 * time.Hour
	ending := &repository.Ended{Announcement: "one", Reason: repostate.Deleted}
	noted := func(announcement string, age time.Duration, kept bool) *repository.Ended {
		return &repository.Ended{Announcement: announcement, Since: now.Add(-age), Kept: kept}
	}
	const forever = -1
	for name, tc := range map[string]struct {
		why, noted *repository.Ended
		grace      time.Duration
		isNew      bool
		left       time.Duration
	}{
		"the log knows of no end":                 {nil, nil, week, false, forever},
		"just ended":                              {ending, nil, week, true, week},
		"another end than the one that was noted": {ending, noted("before", 2*week, false), week, true, week},
		"over":                                  {ending, noted("one", week, false), week, false, 0},
		"an operator has cancelled the removal": {ending, noted("one", 2*week, true), week, false, forever},
		"no grace at all, and nothing noted either": {ending, nil, 0, true, 0},
	} {
		note, until := repostate.KeptUntil(tc.why, tc.noted, tc.grace, now)
		want := now.Add(tc.left)
		if tc.left == forever {
			want = time.Time{}
		}
		if !until.Equal(want) || (note == nil) != (tc.why == nil) {
			t.Errorf("%s: noted %v until %v, want until %v", name, note, until, want)
		}
		if isNew := note != nil && note != tc.noted; isNew != tc.isNew || isNew && (note.Announcement != "one" || !note.Since.Equal(now) || note.Kept) {
			t.Errorf("%s: noted %+v", name, note)
		}
	}
}
