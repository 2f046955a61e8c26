package e2e

import (
	"slices"
	"strings"
	"testing"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestAuthentication (NIP-42), as client and as server: a relay that shows what it has to no one
// but those who authenticate is synced from, with the operator's key, and a user who authenticates
// publishes a protected event (NIP-70).
func TestAuthentication(t *testing.T) {
	t.Parallel()
	ann, guest, work, git := fixture.NewPerson(), fixture.NewPerson(), world.NewWorkTree(t), world.NewGitServer(t)
	guarded := world.NewKhatru(t, true)
	guarded.Guard()
	announcement := ann.Announce("mine", git.Host("mine", work), guarded.URL)
	issue := guest.Sign(1621, "found elsewhere", ann.Repo("mine"))
	guarded.Publish(announcement, ann.State("mine", work.Refs()), issue)

	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": guarded.URL})
	p.Serves(announcement)
	p.Serves(issue)
	live := guest.Sign(1621, "found live", ann.Repo("mine"))
	guarded.Publish(live)
	p.Serves(live)
	if readers, operator := guarded.Readers(), information(t, p).PubKey; !slices.Equal(readers, []string{operator}) {
		t.Errorf("the relay was read by %v, want the operator, %s", readers, operator)
	}

	protected := guest.Sign(1621, "only here", ann.Repo("mine"), nostr.Tag{"-"})
	client, err := gonostr.RelayConnect(t.Context(), p.Relay())
	must(t, err)
	if err := client.Publish(t.Context(), *protected); err == nil || !strings.Contains(err.Error(), "auth-required: ") {
		t.Fatalf("a protected event without authentication: %v", err)
	}
	client.URL = "wss://" + fixture.Domain // as clients know it that did not find it by its address
	as := func(who *fixture.Person) {
		t.Helper()
		err := client.Auth(t.Context(), func(ev *nostr.Event) error {
			*ev = *who.At(ev.CreatedAt).Sign(ev.Kind, ev.Content, ev.Tags...)
			return nil
		})
		if err != nil {
			t.Fatalf("authenticate: %v", err)
		}
	}
	as(ann)
	if err := client.Publish(t.Context(), *protected); err == nil || !strings.Contains(err.Error(), "restricted: ") {
		t.Fatalf("a protected event by another: %v", err)
	}
	as(guest)
	if err := client.Publish(t.Context(), *protected); err != nil {
		t.Fatalf("a protected event by its author: %v", err)
	}
	p.Serves(protected)
}
