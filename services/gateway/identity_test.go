package gateway

import (
	"testing"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
)

// TestIdentity: at its start the service stores a profile and a relay list under its own key, which
// name its address. What an operator has published with the key stays, however old it is, and what
// the operator publishes later replaces ours.
func TestIdentity(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, profile, relay string }{
		{"--domain=git.example.com", `{"bot":true,"name":"git.example.com","nip05":"_@git.example.com"}`, "wss://git.example.com"},
		{"--base-path=/grasp", `{"bot":true,"name":"git.example.com"}`, "wss://git.example.com/grasp"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			sys := start(t, c.args)
			key, err := sys.Settings.LoadKey(".")
			must(t, err)
			ingest, err := candidates.New(sys.Bus.Conn, sys.Log)
			must(t, err)
			has := func(kind int) (found []*nostr.Event) {
				must(t, sys.Accepted.CatchUp(t.Context()))
				for ev, err := range sys.Accepted.Query(t.Context(), nostr.Filter{Kinds: []int{kind}, Authors: []string{key.Public}}) {
					must(t, err)
					found = append(found, ev)
				}
				return found
			}
			introduce(t.Context(), sys.Node, ingest)
			profile, list := has(nostr.KindProfile), has(nostr.KindRelayList)
			if len(profile) != 1 || profile[0].Content != c.profile || !nostr.Signed(profile[0]) || len(list) != 1 ||
				list[0].Tags.Find("r")[1] != c.relay {
				t.Fatalf("stored are %v and %v", profile, list)
			}
			operators := &nostr.Event{Kind: nostr.KindProfile, Content: "the operator's", Tags: nostr.Tags{},
				CreatedAt: nostr.Timestamp(time.Now().AddDate(-1, 0, 0).Unix())}
			must(t, key.Sign(operators))
			sys.store(t, operators)
			introduce(t.Context(), sys.Node, ingest)
			if profile = has(nostr.KindProfile); len(profile) != 1 || profile[0].ID != operators.ID {
				t.Errorf("the operator's profile is replaced by %v", profile)
			}
		})
	}
}
