package release

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// TestFateOfAContribution: a commit waits for its event for as long as held events wait, and stays
// if the event names it.
func TestFateOfAContribution(t *testing.T) {
	t.Parallel()
	const domain, commit = "git.example.com", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	store, err := repository.NewStore(repository.Options{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	contributor := strings.Repeat("1", 64)
	npub, err := nip19.EncodePublicKey(contributor)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := store.At(repository.Place{RepoRef: nostr.RepoRef{PubKey: contributor, Identifier: "x"}, PRs: true})
	if err != nil {
		t.Fatal(err)
	}
	pr := &nostr.Event{Kind: nostr.KindPR, PubKey: contributor, Tags: nostr.Tags{
		{"a", "30617:" + strings.Repeat("2", 64) + ":x"}, {"c", commit}, {"clone", "https://" + domain + nostr.PRsURLPath(npub, "x")}}}
	pr.ID = pr.GetID()
	held := []proto.Held{{Event: pr, Identifier: "x", Phase: proto.PhaseWaiting}}
	for name, tc := range map[string]struct {
		accepted, waiting *nostr.Event
		here              []proto.Held // of the identifier
		commit            string
		age               time.Duration
		want              fate
		waits, offered    bool
	}{
		"unknown":                          {commit: commit, age: 30*time.Minute - 1, waits: true},
		"unknown for too long":             {commit: commit, age: 30 * time.Minute, want: fate{goes: "its event has not come"}},
		"held":                             {waiting: pr, here: held, commit: commit, age: time.Hour, offered: true},
		"held for another identifier":      {waiting: pr, commit: commit, age: time.Hour, waits: true},
		"accepted":                         {accepted: pr, commit: commit, age: time.Hour, want: fate{right: true}},
		"held, and it names another":       {waiting: pr, here: held, commit: strings.Repeat("b", 40), want: fate{goes: "names commit"}},
		"accepted, and it names another":   {accepted: pr, commit: strings.Repeat("b", 40), want: fate{goes: "names commit"}},
		"between the commits of a release": {accepted: pr, waiting: pr, here: held, commit: commit, offered: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &pass{v: repostate.New("x", config.Rules{Home: domain}, nil, tc.here), offered: map[string]bool{}, Releaser: &Releaser{
					Hold:     30 * time.Minute,
					Accepted: func(context.Context, string) (*nostr.Event, error) { return tc.accepted, nil },
					Held:     func(string) *nostr.Event { return tc.waiting },
				}}
				pushed := tip{commit: tc.commit, placed: time.Now(), waits: true}
				time.Sleep(tc.age)
				got, err := p.decideContribution(t.Context(), repo, pr.ID, pushed)
				if err != nil || got.until.IsZero() == tc.waits || got.right != tc.want.right || p.offered[pr.ID] != tc.offered ||
					(got.goes == "") != (tc.want.goes == "") || !strings.Contains(got.goes, tc.want.goes) {
					t.Errorf("%+v, %v; want %+v", got, err, tc.want)
				}
			})
		})
	}
}
