package nostr

import (
	"fmt"
	"strings"
	"testing"
)

// TestParseRelayList: the first four of each purpose count, each once; a bad entry costs the entry.
func TestParseRelayList(t *testing.T) {
	t.Parallel()
	list := func(private bool, entries ...string) string {
		ev := &Event{Kind: KindRelayList}
		for _, entry := range entries {
			ev.Tags = append(ev.Tags, append(Tag{"r"}, strings.Fields(entry)...))
		}
		l := ParseRelayList(ev, private)
		return fmt.Sprint(l.Read, l.Write, l.Past)
	}
	for _, row := range []struct {
		entries []string
		want    string
	}{
		{[]string{"wss://a.example", "wss://b.example read", "wss://c.example write", "wss://d.example other"},
			"[wss://a.example wss://b.example] [wss://a.example wss://c.example] [wss://a.example wss://c.example wss://b.example]"},
		{[]string{"wss://a.example", "wss://A.example:443/", "wss://b.example", "wss://c.example", "wss://d.example", "wss://e.example", "wss://f.example write"},
			"[wss://a.example wss://b.example wss://c.example wss://d.example] [wss://a.example wss://b.example wss://c.example wss://d.example] [wss://a.example wss://b.example wss://c.example wss://d.example]"},
		{[]string{"wss://" + strings.Repeat("a", 2048) + ".example", "https://a.example", "a.example", "wss://me:secret@a.example",
			"wss://127.0.0.1", "wss://10.0.0.1", "wss://[::1]", "wss://[fd00::1]", "ws://localhost:7777", "wss://nas.local", "wss://hidden.onion",
			"wss://a.example/" + strings.Repeat("0a", 32), "wss://a.example/" + strings.Repeat("0A", 32) + "/x", "wss://a.example/wss://a.example", "://", "wss://ok.example/path"},
			"[wss://ok.example/path] [wss://ok.example/path] [wss://ok.example/path]"},
	} {
		if got := list(false, row.entries...); got != row.want {
			t.Errorf("%q: %s, want %s", row.entries, got, row.want)
		}
	}
	if got := list(true, "ws://127.0.0.1:7777"); !strings.Contains(got, "ws://127.0.0.1:7777") {
		t.Errorf("where private addresses are allowed: %s", got)
	}
}
