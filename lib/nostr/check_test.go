package nostr_test

import (
	"strings"
	"testing"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
)

func signed(t testing.TB, ev nostr.Event) *nostr.Event {
	t.Helper()
	if err := ev.Sign(gonostr.GeneratePrivateKey()); err != nil {
		t.Fatal(err)
	}
	return &ev
}

// every is a string of all bytes below 128 that need an escape, and some that need none.
var every = func() string {
	var b strings.Builder
	for c := range 128 {
		b.WriteByte(byte(c))
	}
	return b.String() + "é€𝄞\u2028<&>"
}()

func TestGenuineEvents(t *testing.T) {
	t.Parallel()
	for name, ev := range map[string]nostr.Event{
		"empty":       {},
		"no values":   {Kind: 1, Tags: nostr.Tags{{}, {"a"}, {}}},
		"every byte":  {Kind: 1621, CreatedAt: 1700000000, Tags: nostr.Tags{{"t", every}, {every, "", every}}, Content: every},
		"far away":    {Kind: 65535, CreatedAt: -1},
		"large":       {Kind: 1, Content: strings.Repeat("x\n", 100_000)},
		"not UTF-8":   {Kind: 1, Content: "\xff\xfe"},
		"odd strings": {Kind: 1, Content: `\u0041\`, Tags: nostr.Tags{{`"`, `\"`}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ev := signed(t, ev)
			if !nostr.HasID(ev) || !nostr.Signed(ev) {
				t.Fatalf("id %v, signature %v", nostr.HasID(ev), nostr.Signed(ev))
			}
		})
	}
}

// forgeries are what is done to an event, and whether its id is right after that. Its signature
// speaks of the event only then.
var forgeries = map[string]struct {
	forge func(*nostr.Event)
	id    bool
}{
	"content":                   {func(ev *nostr.Event) { ev.Content += "!" }, false},
	"tag":                       {func(ev *nostr.Event) { ev.Tags = append(ev.Tags, nostr.Tag{"x"}) }, false},
	"kind":                      {func(ev *nostr.Event) { ev.Kind++ }, false},
	"time":                      {func(ev *nostr.Event) { ev.CreatedAt++ }, false},
	"upper-case id":             {func(ev *nostr.Event) { ev.ID = strings.Repeat("A", 64) }, false},
	"short id":                  {func(ev *nostr.Event) { ev.ID = ev.ID[:62] }, false},
	"another id":                {func(ev *nostr.Event) { ev.ID = strings.Repeat("ab", 32) }, false},
	"short signature":           {func(ev *nostr.Event) { ev.Sig = ev.Sig[:126] }, true},
	"no signature":              {func(ev *nostr.Event) { ev.Sig = "" }, true},
	"signature of zeros":        {func(ev *nostr.Event) { ev.Sig = strings.Repeat("0", 128) }, true},
	"signature beyond":          {func(ev *nostr.Event) { ev.Sig = strings.Repeat("f", 128) }, true},
	"another author":            {func(ev *nostr.Event) { ev.PubKey = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798" }, false},
	"an author without a point": {func(ev *nostr.Event) { ev.PubKey = strings.Repeat("f", 64) }, false},
	"long author":               {func(ev *nostr.Event) { ev.PubKey += "00" }, false},
}

func TestForgedEvents(t *testing.T) {
	t.Parallel()
	for name, f := range forgeries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ev := signed(t, nostr.Event{Kind: 1, Content: "hello"})
			f.forge(ev)
			if id, sig := nostr.HasID(ev), nostr.Signed(ev); id != f.id || id && sig {
				t.Errorf("id %v, signature %v", id, sig)
			}
		})
	}
}
