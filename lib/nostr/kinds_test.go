package nostr

import (
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr/nip19"
)

// Keys, ids and objects of the tests; each is told apart by its digit.
var (
	alice, bob, carol, dave = key('a'), key('b'), key('c'), key('d')
	commit1, commit2        = strings.Repeat("1", 40), strings.Repeat("2", 40)
	sha256Commit            = strings.Repeat("3", 64)
)

func key(digit byte) string { return strings.Repeat(string(digit), 64) }

func npubOf(t testing.TB, pubkey string) string {
	t.Helper()
	npub, err := nip19.EncodePublicKey(pubkey)
	if err != nil {
		t.Fatal(err)
	}
	return npub
}

func event(kind int, pubkey string, tags ...Tag) *Event {
	return &Event{ID: key('e'), PubKey: pubkey, Kind: kind, CreatedAt: 1000, Tags: tags}
}

// mentions fails the test unless err is an error that contains the text; an empty text asks for no
// error.
func mentions(t *testing.T, err error, text string) {
	t.Helper()
	switch {
	case text == "" && err != nil:
		t.Fatalf("unexpected error: %v", err)
	case text != "" && err == nil:
		t.Fatalf("no error, want one about %q", text)
	case text != "" && !strings.Contains(err.Error(), text):
		t.Fatalf("error %q does not mention %q", err, text)
	}
}

func TestIsObjectID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		commit1:                        true,
		sha256Commit:                   true,
		"":                             false,
		commit1[:39]:                   false,
		commit1 + "1":                  false,
		strings.Repeat("A", 40):        false,
		strings.Repeat("g", 40):        false,
		strings.Repeat("0", 40):        false,
		strings.Repeat("0", 64):        false,
		strings.Repeat("0", 39) + "1":  true,
		strings.Repeat("é", 20):        false,
		"ref: refs/heads/aaaaaaaaaaaa": false,
	} {
		if got := IsObjectID(id); got != want {
			t.Errorf("IsObjectID(%q) = %v", id, got)
		}
	}
}
