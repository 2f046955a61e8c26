package relay

import (
	"strings"
	"testing"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip42"

	"tendril.dev/lib/nostr"
)

const minute = nostr.Timestamp(60)

func TestProve(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	at, ours := nostr.Timestamp(now.Unix()), nostr.Tag{"relay", "wss://git.example.com"}
	for name, c := range map[string]struct {
		relay  string // "": wss://git.example.com
		tags   nostr.Tags
		change func(ev *nostr.Event)
		forge  func(ev *nostr.Event) // after it was signed
		want   string
	}{
		"as clients write it":          {},
		"with a slash":                 {relay: "wss://git.example.com/"},
		"without encryption":           {relay: "ws://git.example.com"},
		"another relay":                {relay: "wss://relay.example.com", want: "invalid: the event does not name this relay"},
		"another port":                 {relay: "wss://git.example.com:7334", want: "invalid: the event does not name this relay"},
		"a host that begins like ours": {relay: "wss://git.example.com.evil.example", want: "invalid: the event does not name this relay"},
		"no tags":                      {tags: nostr.Tags{}, want: "invalid: the event does not name the challenge"},
		"tags without values":          {tags: nostr.Tags{{"challenge"}, {"relay"}}, want: "invalid: the event does not name the challenge"},
		"another challenge":            {tags: nostr.Tags{ours, {"challenge", "x"}}, want: "invalid: the event does not name the challenge"},
		"no challenge":                 {tags: nostr.Tags{ours, {"challenge", ""}}, want: "invalid: the event does not name the challenge"},
		"another kind":                 {change: func(ev *nostr.Event) { ev.Kind = 1 }, want: "invalid: AUTH takes an event of kind 22242"},
		"ten minutes old":              {change: func(ev *nostr.Event) { ev.CreatedAt = at - 10*minute }},
		"ten minutes ahead":            {change: func(ev *nostr.Event) { ev.CreatedAt = at + 10*minute }},
		"older":                        {change: func(ev *nostr.Event) { ev.CreatedAt = at - 10*minute - 1 }, want: "invalid: created_at"},
		"farther":                      {change: func(ev *nostr.Event) { ev.CreatedAt = at + 10*minute + 1 }, want: "invalid: created_at"},
		"the end of time":              {change: func(ev *nostr.Event) { ev.CreatedAt = 1<<63 - 1 }, want: "invalid: created_at"},
		"another's id":                 {forge: func(ev *nostr.Event) { ev.ID = strings.Repeat("0", 64) }, want: "invalid: the id"},
		"another's signature":          {forge: func(ev *nostr.Event) { ev.Sig = strings.Repeat("0", 128) }, want: "invalid: the signature"},
		"signed by another author":     {forge: func(ev *nostr.Event) { ev.PubKey = strings.Repeat("f", 64); ev.ID = ev.GetID() }, want: "invalid: the signature"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.relay == "" {
				c.relay = "wss://git.example.com"
			}
			s := newProofs("git.example.com")
			ev := nip42.CreateUnsignedAuthEvent(s.challenge, "", c.relay)
			ev.CreatedAt = at
			if c.tags != nil {
				ev.Tags = c.tags
			}
			if c.change != nil {
				c.change(&ev)
			}
			must(t, ev.Sign(gonostr.GeneratePrivateKey()))
			if c.forge != nil {
				c.forge(&ev)
			}
			got := s.prove(&ev, now)
			if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
				t.Errorf("%q, want %q", got, c.want)
			}
			if proved := c.want == ""; s.keys[ev.PubKey] != proved || len(s.keys) > 0 != proved {
				t.Errorf("keys %v", s.keys)
			}
		})
	}
}

func TestKeysAreBounded(t *testing.T) {
	t.Parallel()
	s := newProofs("git.example.com")
	prove := func(secret string) (key, refusal string) {
		ev := nip42.CreateUnsignedAuthEvent(s.challenge, "", "wss://git.example.com")
		must(t, ev.Sign(secret))
		return ev.PubKey, s.prove(&ev, time.Now())
	}
	first := gonostr.GeneratePrivateKey()
	for i := range mostKeys {
		secret := first
		if i > 0 {
			secret = gonostr.GeneratePrivateKey()
		}
		if key, refusal := prove(secret); refusal != "" || !s.keys[key] {
			t.Fatalf("key %d: %q", i+1, refusal)
		}
	}
	if key, refusal := prove(gonostr.GeneratePrivateKey()); !strings.HasPrefix(refusal, "restricted: ") || s.keys[key] {
		t.Errorf("one key more: %q", refusal)
	}
	if _, refusal := prove(first); refusal != "" {
		t.Errorf("the first one again: %q", refusal)
	}
}
