package subject

import (
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr/nip19"
)

var (
	alice   = strings.Repeat("a1", 32)
	eventID = strings.Repeat("1b", 32)
)

// spell puts alice's encodings into a form.
func spell(form string) string {
	encoded := func(text string, err error) string {
		if err != nil {
			panic(err)
		}
		return text
	}
	return strings.NewReplacer(
		"NPROFILE", encoded(nip19.EncodeProfile(alice, nil)), "NPUB", encoded(nip19.EncodePublicKey(alice)),
		"NOTE", encoded(nip19.EncodeNote(eventID)), "NEVENT", encoded(nip19.EncodeEvent(eventID, nil, "")),
		"NADDR", encoded(nip19.EncodeEntity(alice, 30617, "tree", nil)),
		"NSTATE", encoded(nip19.EncodeEntity(alice, 30618, "tree", nil)),
		"ALICE", alice, "ID", eventID,
	).Replace(form)
}

func TestForms(t *testing.T) {
	t.Parallel()
	tree := Subject{Kind: Repository, PubKey: alice, Identifier: "tree"}
	author := Subject{Kind: Author, PubKey: alice}
	event := Subject{Kind: Event, Event: eventID}
	for form, want := range map[string]Subject{
		"NPUB/tree": tree, " NPUB/tree\n": tree, "NPUB/tree.git": tree, "nostr:NPUB/tree": tree, "ALICE/tree": tree,
		"30617:ALICE:tree": tree, "NADDR": tree, "nostr:NADDR": tree, "NPROFILE/tree": tree,
		"https://git.example.com/NPUB/tree.git":                   tree,
		"https://git.example.com/NPUB/tree":                       tree,
		"https://git.example.com/NPUB/tree.git/":                  tree,
		"HTTPS://git.example.com:8443/NPUB/tr%65e.git":            tree,
		"http://[::1]:7334/base/path/NPUB/tree.git/info/refs?a=b": tree,
		"git.example.com/NPUB/tree.git":                           tree,
		"localhost:7334/base/NPUB/tree":                           tree,
		"nostr://NPUB/tree":                                       tree,
		"nostr://NPUB/relay.example.com/tree":                     tree,
		"https://git.example.com/prs/NPUB/tree.git":               tree,
		"NPUB/a/b:c d":            {Kind: Repository, PubKey: alice, Identifier: "a/b:c d"},
		"NPUB/a%2Fb.git":          {Kind: Repository, PubKey: alice, Identifier: "a/b"},
		"30617:ALICE:x.git":       {Kind: Repository, PubKey: alice, Identifier: "x.git"},
		"NPUB":                    author,
		"nostr:NPROFILE":          author,
		"ID":                      event,
		"NOTE":                    event,
		"nostr:NEVENT":            event,
		"identifier:tree":         {Kind: Identifier, Identifier: "tree"},
		"identifier:a/b":          {Kind: Identifier, Identifier: "a/b"},
		"wss://Relay.example.com": {Kind: Relay, Relay: "wss://relay.example.com"},
	} {
		got, err := Parse(spell(form))
		if err != nil || got != want {
			t.Errorf("%q is %+v, %v; want %+v", form, got, err, want)
		}
		if again, err := Parse(got.String()); err != nil || again != got {
			t.Errorf("%q is written %q, which is read as %+v, %v", form, got, again, err)
		}
	}
	if got, err := Parse(strings.ToUpper(eventID)); err != nil || got != event {
		t.Errorf("an id in upper case is %+v, %v", got, err)
	}
}

// TestWhatIsNone: what has none of the forms is not taken for an identifier, and the error lists
// the forms.
func TestWhatIsNone(t *testing.T) {
	t.Parallel()
	for _, form := range []string{
		"", "tree", "a/b", "NSTATE", "NPUB/", "NPUBx", "NPUB/a\nb", "NOTE/x", "NADDR/tree", "note1.x", "30617:ALICE", "identifier:",
		"https://git.example.com/", "https://git.example.com/tree.git", "https://git.example.com/xNPUB/tree.git", "ftp://x/NPUB/tree.git",
		"wss://", "IDID", "nostr://", "nostr://NPUB", "npub1/tree", "git.example.com/npub1/tree.git", "identifier:a\nb",
	} {
		got, err := Parse(spell(form))
		if err == nil {
			t.Errorf("%q is %+v", form, got)
		} else if !strings.Contains(err.Error(), "npub1…/identifier") {
			t.Errorf("%q: %v does not list the forms", form, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, form := range []string{
		"NPUB/tree", "30617:ALICE:x.git", "https://x/NPUB/a%2fb.git", "nostr://NPUB/r/i", "identifier:x", "wss://x/y", "NOTE",
	} {
		f.Add(spell(form))
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(s.String()); err != nil || again != s {
			t.Errorf("%q is %+v, written %q, and read again %+v, %v", text, s, s, again, err)
		}
	})
}
