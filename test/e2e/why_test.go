package e2e

import (
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/nettest"
	"tendril.dev/test/world"
)

// TestWhy: an operator is told why an event, a repository or a relay is as it is, and what to do.
// The page of a repository that waits says it to its owner.
func TestWhy(t *testing.T) {
	t.Parallel()
	git, work, owner := world.NewGitServer(t), world.NewWorkTree(t), fixture.NewPerson()
	clone, refusing := git.Host("tree", work), "ws://"+nettest.Refusing(t)
	git.Shut(true)
	relay := world.NewRelay(t)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": relay.URL})
	announcement := owner.Announce("tree", clone, relay.URL, refusing)
	state := owner.State("tree", work.Refs())
	relay.Publish(announcement, state)
	commit := work.Refs()["refs/heads/main"]
	tells := func(subject string, wanted ...string) {
		t.Helper()
		var out string
		await(t, "the story of "+subject+" has "+strings.Join(wanted, " and "), func() bool {
			out = tool(t, p, "why", subject)
			for _, want := range wanted {
				if !strings.Contains(out, want) {
					return false
				}
			}
			return true
		})
	}
	name, page := owner.Npub+"/tree", p.Repo(owner, "tree")
	tells(state.ID, "held (waiting): event "+state.ID, "from "+relay.URL, "misses "+commit, clone+": ", "→ push commit "+commit)
	tells(name, "held (waiting): event "+announcement.ID, strings.TrimPrefix(relay.URL, "ws://")+" is asked for it", " is held: 0 references")
	tells(refusing, "failures in a row; the last attempt ended so: ", "→ nothing: it is tried again; the last attempt ended so: ", "connection refused")
	tells("wss://nowhere.example", "it is not synced from")
	if _, html := world.Get(t, page); !strings.Contains(html, commit) || !strings.Contains(html, clone) || !strings.Contains(html, "git push ") || !strings.Contains(html, "Waits until") {
		t.Errorf("the page of what waits:\n%s", html)
	}

	orphan := owner.Sign(1621, "an issue", owner.Repo("nothing"))
	elsewhere := owner.On("other.example").Announce("other")
	p.Refuses("", orphan)
	p.Refuses("", elsewhere)
	tells(orphan.ID, "refused: event "+orphan.ID, "from the client ", "→ it belongs to nothing")
	tells(owner.Npub+"/other", "refused: event "+elsewhere.ID, "→ the announcement lists another domain")
	tells(strings.Repeat("ab", 32), "never seen", "→ publish it")

	world.GitOnceMoved(t, work.Dir, "push", "-q", page, "main")
	tells(state.ID, "accepted: kind 30618", "→ nothing: it is accepted")
	tells(page, " is hosted: 1 references")
	p.Accepts(owner.Sign(5, "", nostr.Tag{"e", announcement.ID}))
	tells(name, "accepted: kind 30617", "deleted by its owner")
	tells(announcement.ID, " asks for its deletion", "→ nothing: an event that its author")
}

// TestTap: each step is one line, from now on, until the command is interrupted.
func TestTap(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	tap := world.Begin(t, t.TempDir(), map[string]string{"NGIT_NATS_LISTEN": strings.TrimPrefix(p.NATS, "nats://")}, "tap", "--kind=1621")
	guest := fixture.NewPerson()
	await(t, "a rejected issue is told", func() bool {
		p.Submit(guest.Sign(1621, "an issue", guest.Repo("nothing")))
		return strings.Contains(tap.Output(), " → nothing ("+guest.Npub[:12]+"…) issue ")
	})
	if err := tap.Interrupt(); err != nil || strings.Contains(tap.Output(), "\x1b") {
		t.Errorf("it ends with %v:\n%s", err, tap.Output())
	}
}
