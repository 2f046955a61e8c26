package release_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
)

// TestContributions: a commit waits for its event for as long as held events wait, stays if the
// event names it, and then is offered to the repositories of the identifier.
func TestContributions(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		event    string // "", held or accepted
		names    bool   // the event names the pushed commit
		known    bool   // the event was known when the commit was pushed
		age      time.Duration
		left     bool
		waits    bool
		released bool
	}{
		"unknown":                      {age: 59 * time.Minute, left: true, waits: true},
		"unknown for too long":         {age: 61 * time.Minute},
		"deleted":                      {known: true},
		"held":                         {event: "held", names: true, age: 2 * time.Hour, left: true, released: true},
		"held before the push":         {event: "held", names: true, known: true, left: true, released: true},
		"accepted":                     {event: "accepted", names: true, age: 2 * time.Hour, left: true},
		"held, and names another":      {event: "held"},
		"accepted, and names another":  {event: "accepted"},
		"accepted, before it was push": {event: "accepted", names: true, known: true, left: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pushed := w.work.Commit("a", "1")
			named := pushed
			if !tc.names {
				named = strings.Repeat("b", 40)
			}
			pr := w.event("pull", nostr.KindPR, carol, nostr.Tag{"a", "30617:" + alice + ":x"}, nostr.Tag{"c", named},
				nostr.Tag{"clone", "https://" + domain + nostr.PRsURLPath(npub(t, carol), "x")})
			w.held = nil
			switch tc.event {
			case "held":
				w.held = []*nostr.Event{pr}
			case "accepted":
				w.accept(pr)
			}
			repo, err := w.store.At(repository.Place{RepoRef: nostr.RepoRef{PubKey: carol, Identifier: "x"}, PRs: true})
			if err == nil {
				err = repo.Ensure(t.Context())
			}
			if err == nil && !tc.known {
				err = repo.SetWaiting([]repository.WaitingPush{{Event: pr.ID}})
			}
			if err != nil {
				t.Fatal(err)
			}
			w.work.Git("push", "-q", repo.Path(), "HEAD:"+nostrPrefix+pr.ID)
			then := time.Now().Add(-tc.age)
			if err := os.Chtimes(filepath.Join(repo.Path(), nostrPrefix+pr.ID), then, then); err != nil {
				t.Fatal(err)
			}
			result, err := w.r.Release(t.Context(), w.view(), release.Scope{Contributors: []string{carol}})
			if err != nil {
				t.Fatal(err)
			}
			waiting, err := repo.Waiting()
			if repo.Exists() != tc.left || len(waiting) > 0 != tc.waits || result.Later[repo.Place()].IsZero() == tc.waits || err != nil {
				t.Errorf("it is there: %t, waits: %v, looked at again: %v, %v", repo.Exists(), waiting, result.Later, err)
			}
			if len(result.Released) > 0 != tc.released {
				t.Errorf("released %v", result.Released)
			}
		})
	}
}
