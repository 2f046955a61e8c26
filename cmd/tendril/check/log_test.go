package check

import (
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// TestLook: what is wrong with one message of the log, and whether an index has its event all the
// same.
func TestLook(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage  func(*nostr.Event)
		wrong   string // part of what is said; empty: nothing is wrong
		indexed bool
	}{
		"genuine":              {func(*nostr.Event) {}, "", true},
		"another content":      {func(ev *nostr.Event) { ev.Content = "x" }, "the id is not that of the event", true},
		"another signature":    {func(ev *nostr.Event) { ev.Sig = strings.Repeat("0", 128) }, "the signature is wrong", true},
		"upper-case signature": {func(ev *nostr.Event) { ev.Sig = strings.ToUpper(ev.Sig) }, "the signature is wrong", true},
		"short signature":      {func(ev *nostr.Event) { ev.Sig = ev.Sig[:126] }, "the signature is wrong", true},
		"upper-case id":        {func(ev *nostr.Event) { ev.ID = strings.ToUpper(ev.ID) }, "64 lower-case hex digits", false},
		"short public key":     {func(ev *nostr.Event) { ev.PubKey = ev.PubKey[:62] }, "64 lower-case hex digits", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ev := event(t, 1621, nostr.Tag{"subject", name})
			c.damage(ev)
			got, err := look(message{subject: proto.EventSubjectOf(ev).String(), data: []byte(ev.String())})
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("%v, want %q", err, c.wrong)
			}
			if (got != nil) != c.indexed {
				t.Errorf("the event for the index is %v", got)
			}
		})
	}
	ev := event(t, 1621)
	if _, err := look(message{subject: "grasp.event.1.x.y", data: []byte(ev.String())}); err == nil || !strings.Contains(err.Error(), "belongs at "+proto.EventSubjectOf(ev).String()) {
		t.Errorf("at another's subject: %v", err)
	}
	if got, err := look(message{subject: "x", data: []byte("hello")}); got != nil || err == nil {
		t.Errorf("no event: %v, %v", got, err)
	}
}
