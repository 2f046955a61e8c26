package e2e

import (
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestOddIdentifiers: anything that a nostr event can carry as an identifier is hosted, safely;
// what cannot be is refused with a reason.
func TestOddIdentifiers(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	ann, work := fixture.NewPerson(), world.NewWorkTree(t)
	for _, identifier := range []string{"with space", "a/b", "..", "../../etc/passwd", "🌱 tendril", "-x", ".hidden", "a:b", "%2e%2e", "x.git", strings.Repeat("a", 200)} {
		escaped := url.PathEscape(identifier)
		if identifier == ".." {
			escaped = "%2E%2E"
		}
		announcement := ann.Announce(identifier)
		p.Holds(announcement, ann.State(identifier, work.Refs()))
		remote := p.URL + "/" + ann.Npub + "/" + escaped + ".git"
		work.Git("push", "-q", remote, "main")
		world.CloneIs(t, remote, work.Refs()["refs/heads/main"])
		p.Serves(announcement)
	}
	root := filepath.Join(p.Dir, "data", "git", ann.Npub)
	if names := world.Names(t, root); len(names) != 11 {
		t.Errorf("below %s lie %v", root, names)
	}
	for _, d := range world.Names(t, filepath.Join(p.Dir, "data")) {
		if d != "git" && d != "relay" {
			t.Errorf("%s was made outside of the folders", d)
		}
	}
	for identifier, why := range map[string]string{
		strings.Repeat("a", 300): "longer than", strings.Repeat("🌱", 20): "longer than", "new\nline": "control", "": "identifier",
	} {
		ok, message := p.Submit(ann.Announce(identifier))
		if ok || !strings.HasPrefix(message, "invalid: ") || !strings.Contains(message, why) {
			t.Errorf("%.20q is answered %v %q, want invalid: …%s…", identifier, ok, message, why)
		}
	}
}
