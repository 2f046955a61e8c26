package repostate_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repostate"
)

// offer is a pull request by friend that is offered here for these identifiers.
func offer(t *testing.T, commit string, identifiers ...string) *nostr.Event {
	t.Helper()
	npub, err := nip19.EncodePublicKey(friend)
	must(t, err)
	tags, clone := nostr.Tags{{"c", commit}}, nostr.Tag{"clone"}
	for _, identifier := range identifiers {
		tags = append(tags, nostr.Tag{"a", "30617:" + owner + ":" + identifier})
		clone = append(clone, "https://"+domain+nostr.PRsURLPath(npub, identifier))
	}
	return event(nostr.KindPR, friend, 9, append(tags, clone)...)
}

func TestCheckContribution(t *testing.T) {
	t.Parallel()
	good := offer(t, c1, "y", "x")
	bare := event(nostr.KindPR, friend, 9, nostr.Tag{"a", "30617:" + owner + ":x"}, nostr.Tag{"c", c1}, nostr.Tag{"clone", "https://" + domain + "/x.git"})
	at := nostr.RepoRef{PubKey: friend, Identifier: "x"}
	for name, tc := range map[string]struct {
		ev     *nostr.Event
		at     nostr.RepoRef
		commit string
		want   string // of the refusal
	}{
		"all matches":                    {good, at, c1, ""},
		"for another of its identifiers": {good, nostr.RepoRef{PubKey: friend, Identifier: "y"}, c1, ""},
		"another commit":                 {good, at, c2, "names commit " + c1},
		"another signer":                 {good, nostr.RepoRef{PubKey: other, Identifier: "x"}, c1, "not signed by"},
		"another identifier":             {good, nostr.RepoRef{PubKey: friend, Identifier: "z"}, c1, `identifier "z"`},
		"another address":                {bare, at, c1, "does not name " + domain + "/prs/"},
		"no pull request":                {event(1, friend, 9), at, c1, "is no pull request"},
	} {
		err := repostate.CheckContribution(tc.ev, tc.at, tc.commit, domain)
		var refused *repostate.Refused
		if tc.want == "" && err != nil || tc.want != "" && (!errors.As(err, &refused) || !strings.Contains(refused.Reason, tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
