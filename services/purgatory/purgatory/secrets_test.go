package purgatory_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository/gittest"
)

// TestPushesOfSecretsAreRefused: to an announced repository and to a contributor's, naming the file
// and the line, and watchers hear of it. Without the secret the same push is taken.
func TestPushesOfSecretsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--grasp06-enable", "--push-secrets=refuse")
	key, err := nip19.EncodePrivateKey(nostr.GeneratePrivateKey())
	if err != nil {
		t.Fatal(err)
	}
	work := gittest.NewWork(t)
	work.Commit("readme", "hello")
	secret := work.Commit("relay/config.toml", "[relay]\nkey = \""+key+"\"\n")
	work.Git("reset", "--quiet", "--hard", "HEAD~1")
	clean := work.Commit("relay/config.toml", "[relay]\n")
	ref := nip34.RepoRef{PubKey: alice, Identifier: "x"}
	w.in.accept(announcement(t, "announcement", alice, "x"))
	place := "relay/config.toml:2: nostr-secret-key"
	w.in.holds("x", state("state", alice, "x", 1001, secret), proto.SourceUser, time.Hour)
	pr := offer(t, "pull request", bob, secret, ref)
	w.in.holds("x", pr, proto.SourceUser, time.Hour)
	for address, name := range map[string]string{w.address(alice, "x"): "refs/heads/main", w.prs(bob, "x"): "refs/nostr/" + pr.ID} {
		out, err := gittest.Try(t, work.Dir, "push", address, secret+":"+name)
		if err == nil || !strings.Contains(out, "remote:   "+place) || strings.Contains(out, key) {
			t.Errorf("a secret to %s: %v\n%s", name, err, out)
		}
	}
	eventually(t, "both are told", func() bool { return w.told.count("x refused") == 2 })
	if w.ref(alice, "x", "refs/heads/main") != "" || w.offered(bob, "x", pr.ID) != "" || w.in.times(pr.ID) != 0 {
		t.Error("a reference was set to what was refused")
	}
	if n := w.metric("ngit_git_push_secrets_total", "refused"); n != 2 {
		t.Errorf("%v refused pushes are counted", n)
	}
	w.in.holds("x", state("state", alice, "x", 1002, clean), proto.SourceUser, time.Hour)
	if out, err := w.push(work, alice, "x", clean+":refs/heads/main"); err != nil {
		t.Errorf("without the secret: %v\n%s", err, out)
	}
	good := offer(t, "another pull request", bob, clean, ref)
	w.in.holds("x", good, proto.SourceUser, time.Hour)
	if out, err := gittest.Try(t, work.Dir, "push", w.prs(bob, "x"), clean+":refs/nostr/"+good.ID); err != nil {
		t.Errorf("without the secret: %v\n%s", err, out)
	}
	w.released(good)
}
