package wire_test

import (
	"reflect"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/wire"
)

// issue is an event as relays of git events have many.
func issue(t testing.TB) *nostr.Event {
	t.Helper()
	ev := &nostr.Event{Kind: 1621, CreatedAt: 1_700_000_000, Content: strings.Repeat("A line of an issue's text.\n", 8), Tags: nostr.Tags{
		{"a", "30617:" + strings.Repeat("ab", 32) + ":tendril"}, {"p", strings.Repeat("cd", 32)}, {"subject", "an issue"}, {"t", "bug"},
	}}
	if err := ev.Sign("0000000000000000000000000000000000000000000000000000000000000001"); err != nil {
		t.Fatal(err)
	}
	return ev
}

func encoded(t testing.TB, ev *nostr.Event) string {
	t.Helper()
	data, err := ev.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestParseEvent: however the message around it is written, the event is the same.
func TestParseEvent(t *testing.T) {
	t.Parallel()
	ev := issue(t)
	raw := encoded(t, ev)
	spaced := strings.Replace(raw, `"kind":`, "\"kind\":\n", 1)
	for name, tc := range map[string]struct{ message, sub string }{
		"bare":                      {`["EVENT","h1",` + raw + `]`, "h1"},
		"spaces":                    {` [ "EVENT" , "h1" , ` + raw + " ] \r\n", "h1"},
		"no name":                   {`["EVENT","",` + raw + `]`, ""},
		"a name with escapes":       {`["EVENT","h\"\u0031",` + raw + `]`, `h"1`},
		"a name beyond ASCII":       {`["EVENT","é",` + raw + `]`, "é"},
		"a verb with an escape":     {`["\u0045VENT","h1",` + raw + `]`, "h1"},
		"an event on several lines": {`["EVENT","h1",` + spaced + `]`, "h1"},
	} {
		data := []byte(tc.message)
		m, err := wire.Parse(data)
		clear(data) // the message may not share its memory
		if err != nil || m.Kind != wire.Event || m.Sub != tc.sub {
			t.Errorf("%s: %+v, %v", name, m, err)
			continue
		}
		if !reflect.DeepEqual(m.Event, ev) {
			t.Errorf("%s: the event is %v", name, m.Event)
		}
	}
}

func TestMisshapenEvents(t *testing.T) {
	t.Parallel()
	raw := encoded(t, issue(t))
	for _, in := range []string{
		`["EVENT","a",` + raw + `]]`, `["EVENT","a",` + raw + `],`, `["EVENT","a",` + raw, `["EVENT","a" ` + raw + `]`, `["EVENT" "a",` + raw + `]`,
		`["EVENT","a",` + raw + `,` + raw + `]`, `["EVENT","a",]`, `["EVENT","a",null,null]`, `["EVENT","a` + "\n" + `",` + raw + `]`, `"EVENT","a",` + raw + `]`,
		`["EVENT","a",` + strings.Replace(raw, "A line", "\xff line", 1) + `]`, `["EVENT",` + raw + `]`,
		`["EVENT","a",` + strings.Replace(raw, "A line", "A\x13 line", 1) + `]`,
	} {
		if m, err := wire.Parse([]byte(in)); err == nil {
			t.Errorf("%.60s: taken for %+v", in, m)
		}
	}
}
