package check

import (
	"strings"
	"testing"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// TestLook: what is wrong with one message of the log.
func TestLook(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage func(*nostr.Event)
		wrong  string // part of what is said; empty: nothing is wrong
	}{
		"genuine":              {func(*nostr.Event) {}, ""},
		"another content":      {func(ev *nostr.Event) { ev.Content = "x" }, "the id is not that of the event"},
		"another signature":    {func(ev *nostr.Event) { ev.Sig = strings.Repeat("0", 128) }, "the signature is wrong"},
		"upper-case signature": {func(ev *nostr.Event) { ev.Sig = strings.ToUpper(ev.Sig) }, "the signature is wrong"},
		"short signature":      {func(ev *nostr.Event) { ev.Sig = ev.Sig[:126] }, "the signature is wrong"},
		"upper-case id":        {func(ev *nostr.Event) { ev.ID = strings.ToUpper(ev.ID) }, "64 lower-case hex digits"},
		"short public key":     {func(ev *nostr.Event) { ev.PubKey = ev.PubKey[:62] }, "64 lower-case hex digits"},
	} {
		ev := event(t, 1621, nostr.Tag{"subject", name})
		c.damage(ev)
		err := look(bus.Message{Subject: proto.EventSubjectOf(ev).String(), Data: []byte(ev.String())})
		if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: %v, want %q", name, err, c.wrong)
		}
	}
	ev := event(t, 1621)
	if err := look(bus.Message{Subject: "grasp.event.1.x.y", Data: []byte(ev.String())}); err == nil || !strings.Contains(err.Error(), "belongs at "+proto.EventSubjectOf(ev).String()) {
		t.Errorf("at another's subject: %v", err)
	}
}
