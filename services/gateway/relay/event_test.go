package relay

import (
	"fmt"
	"strings"
	"testing"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	at := nostr.Timestamp(now.Unix())
	expires := func(when any) nostr.Tags { return nostr.Tags{{"expiration", fmt.Sprint(when)}} }
	for name, c := range map[string]struct {
		event  nostr.Event
		change func(*nostr.Event)
		want   string
	}{
		"good":                          {event: nostr.Event{Kind: 1}},
		"farther":                       {event: nostr.Event{Kind: 1, CreatedAt: at + 901}, want: "invalid: created_at is more than 15m0s in the future"},
		"the end of time":               {event: nostr.Event{Kind: 1, CreatedAt: 1<<63 - 1}, want: "invalid: created_at"},
		"first ephemeral":               {event: nostr.Event{Kind: 20000}, want: "invalid: ephemeral"},
		"last ephemeral":                {event: nostr.Event{Kind: 29999}, want: "invalid: ephemeral"},
		"in its last second":            {event: nostr.Event{Kind: 1, Tags: expires(at)}},
		"expired":                       {event: nostr.Event{Kind: 1, Tags: expires(at - 1)}, want: "invalid: the event has expired"},
		"expires, it does not say when": {event: nostr.Event{Kind: 1, Tags: expires("soon")}},
		"protected":                     {event: nostr.Event{Kind: 1, Tags: nostr.Tags{{"-"}}}, want: "auth-required: "},
		"repost of a protected one":     {event: nostr.Event{Kind: 6, Content: `{"tags":[["-"]],"id":"x"}`}, want: "blocked: a repost"},
		"another content":               {event: nostr.Event{Kind: 1}, change: func(ev *nostr.Event) { ev.Content = "x" }, want: "invalid: the id"},
		"another signature":             {event: nostr.Event{Kind: 1}, change: func(ev *nostr.Event) { ev.Sig = strings.Repeat("0", 128) }, want: "invalid: the signature"},
		"another author": {event: nostr.Event{Kind: 1}, change: func(ev *nostr.Event) {
			ev.PubKey = strings.Repeat("f", 64) // not even a point of the curve
			ev.ID = ev.GetID()
		}, want: "invalid: the signature"},
	} {
		ev := c.event
		if ev.CreatedAt == 0 {
			ev.CreatedAt = at
		}
		must(t, ev.Sign(gonostr.GeneratePrivateKey()))
		if c.change != nil {
			c.change(&ev)
		}
		reason, got := check(&ev, nil, now, 15*time.Minute)
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" || (reason == "") != (got == "") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
