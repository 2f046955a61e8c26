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
	npub, err := nip19.EncodePublicKey(pubkey)
	if err != nil {
		t.Fatal(err)
	}
	return npub
}

func event(kind int, pubkey string, tags ...Tag) *Event {
	return &Event{ID: key('e'), PubKey: pubkey, Kind: kind, CreatedAt: 1000, Tags: tags}
}

// mentions checks that err is an error that contains the text; an empty text asks for no error.
func mentions(t *testing.T, what string, err error, text string) {
	t.Helper()
	if (err != nil) != (text != "") || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want an error about %q", what, err, text)
	}
}

// refusal is an event, and what the error says; "": it is taken.
type refusal struct {
	name  string
	ev    *Event
	wrong string
}

func check[T any](t *testing.T, parse func(*Event) (*T, error), cases ...refusal) {
	t.Helper()
	t.Parallel()
	for _, c := range cases {
		parsed, err := parse(c.ev)
		mentions(t, c.name, err, c.wrong)
		if (parsed == nil) != (err != nil) {
			t.Errorf("%s: %v with error %v", c.name, parsed, err)
		}
	}
}
