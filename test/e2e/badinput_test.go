package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/world"
)

// TestBadMessages: each bad message is answered with what was wrong, and the connection
// lives on.
func TestBadMessages(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	ann := world.NewPerson(t)
	good := ann.Sign(10317, "", nostr.Tag{"g", "wss://grasp.example.com"})
	text := func(ev *nostr.Event) string {
		data, err := json.Marshal(ev)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	changed := *good
	changed.Content = "changed"
	forged := *good
	forged.Sig = ann.Sign(1, "other").Sig
	future := ann.SignAt(nostr.Now()+3600, 10317, "")
	var ids []string
	for i := range 3000 {
		ids = append(ids, fmt.Sprintf("%064x", i))
	}
	many, err := json.Marshal(map[string]any{"ids": ids})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, send, verb, want string }{
		{"no JSON", `hello`, "NOTICE", "invalid:"},
		{"no array", `{"a":1}`, "NOTICE", "invalid:"},
		{"an empty array", `[]`, "NOTICE", "invalid:"},
		{"an unknown message", `["HELLO","x"]`, "NOTICE", "unknown"},
		{"an event without fields", `["EVENT",{}]`, "NOTICE", "invalid:"},
		{"an event that is no object", `["EVENT",7]`, "NOTICE", "invalid:"},
		{"a changed event", `["EVENT",` + text(&changed) + `]`, "OK", "invalid:"},
		{"a wrong signature", `["EVENT",` + text(&forged) + `]`, "OK", "invalid:"},
		{"an event from the future", `["EVENT",` + text(future) + `]`, "OK", "invalid:"},
		{"an event that belongs nowhere", `["EVENT",` + text(ann.Sign(1, "good morning")) + `]`, "OK", "invalid:"},
		{"a subscription without filter", `["REQ","a"]`, "CLOSED", "invalid:"},
		{"a filter that is none", `["REQ","a",[]]`, "CLOSED", "invalid:"},
		{"an id that is none", `["REQ","a",{"ids":["xyz"]}]`, "CLOSED", "invalid:"},
		{"a negative kind", `["REQ","a",{"kinds":[-1]}]`, "CLOSED", "invalid:"},
		{"a filter too large", `["REQ","a",` + string(many) + `]`, "CLOSED", "invalid:"},
		{"too many filters", `["REQ","a"` + strings.Repeat(`,{"kinds":[1]}`, 50) + `]`, "CLOSED", "invalid:"},
		{"a subscription id too long", `["REQ","` + strings.Repeat("a", 300) + `",{}]`, "", "invalid:"},
		{"an empty subscription id", `["REQ","",{}]`, "", "invalid:"},
		{"a close of nothing", `["CLOSE"]`, "NOTICE", "invalid:"},
	} {
		s := world.Dial(t, p.Relay())
		s.SendText(tc.send)
		m := s.Next()
		if tc.verb != "" && m[0] != tc.verb || m[0] == "OK" && m[2] != false || !strings.Contains(m[len(m)-1].(string), tc.want) {
			t.Errorf("%s is answered %v, want %s … %s", tc.name, m, tc.verb, tc.want)
		}
		s.Send("REQ", "still", map[string]any{"limit": 0})
		if m := s.Next(); m[0] != "EOSE" || m[1] != "still" {
			t.Errorf("after %s the connection answers %v", tc.name, m)
		}
		s.Close()
	}
	large := world.Dial(t, p.Relay())
	large.SendText(`["NOTICE","` + strings.Repeat("x", 1<<20) + `"]`)
	m, err := large.TryNext()
	if err == nil && m[0] == "NOTICE" {
		_, err = large.TryNext()
	}
	if websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("a message of 1 MiB is answered %v, %v; want status 1009", m, err)
	}
	if ok, message := submit(t, p, good); !ok {
		t.Errorf("after all this a good event is answered %q", message)
	}
	world.Serves(t, p.Relay(), good)
}

// TestBadSettings: one sentence that names the setting, the value, and what would be right; and
// nothing is started.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, setting, value, want string }{
		{"no domain", "NGIT_DOMAIN", "", "NGIT_DOMAIN"},
		{"a domain that is a URL", "NGIT_DOMAIN", "https://grasp.example.com/x", "NGIT_DOMAIN"},
		{"a port in use", "NGIT_BIND_ADDRESS", taken.Addr().String(), "address already in use"},
		{"a NATS port in use", "NGIT_NATS_LISTEN", taken.Addr().String(), "address already in use"},
		{"an address without port", "NGIT_BIND_ADDRESS", "localhost", "NGIT_BIND_ADDRESS"},
		{"a number that is none", "NGIT_SYNC_BATCH_WINDOW_MS", "soon", "NGIT_SYNC_BATCH_WINDOW_MS"},
		{"a negative number", "NGIT_MAX_CONNECTIONS", "-1", "NGIT_MAX_CONNECTIONS"},
		{"a log level that is none", "NGIT_LOG_LEVEL", "loud", "NGIT_LOG_LEVEL"},
		{"a relay that is none", "NGIT_SYNC_BOOTSTRAP_RELAY_URL", "ftp://x", "NGIT_SYNC_BOOTSTRAP_RELAY_URL"},
		{"a key that is none", "NGIT_REPOSITORY_WHITELIST", "npub1xyz", "NGIT_REPOSITORY_WHITELIST"},
		{"a limit that is none", "NGIT_SYNC_DOMAIN_LIMITS", "github.com", "NGIT_SYNC_DOMAIN_LIMITS"},
		{"a git folder that is a file", "NGIT_GIT_DATA_PATH", file, "NGIT_GIT_DATA_PATH"},
		{"a relay folder that is a file", "NGIT_RELAY_DATA_PATH", file, "NGIT_RELAY_DATA_PATH"},
		{"a folder that cannot be written", "NGIT_GIT_DATA_PATH", "/proc/tendril", "NGIT_GIT_DATA_PATH"},
		{"a git that is none", "NGIT_GIT_BINARY", file, "NGIT_GIT_BINARY"},
		{"an archive of nothing", "NGIT_ARCHIVE_READ_ONLY", "true", "nothing is archived"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			env := world.Settings()
			env[tc.setting] = tc.value
			env["NGIT_LOG_LEVEL"] = "error"
			if tc.setting == "NGIT_LOG_LEVEL" {
				env[tc.setting] = tc.value
			}
			out, err := world.RunToEnd(t, t.TempDir(), env, "up")
			if err == nil || !strings.Contains(out, tc.want) {
				t.Errorf("it ends with %v and %q, want %q", err, out, tc.want)
			}
			if lines := strings.Count(strings.TrimSpace(out), "\n"); lines > 0 {
				t.Errorf("more than one sentence:\n%s", out)
			}
		})
	}
}

// TestSecondInstance on the same folders is refused, and does no harm to the first.
func TestSecondInstance(t *testing.T) {
	t.Parallel()
	p := world.Start(t, nil)
	env := world.Settings()
	env["NGIT_LOG_LEVEL"] = "error"
	out, err := world.RunToEnd(t, p.Dir, env, "up")
	if err == nil || !strings.Contains(out, "NGIT_RELAY_DATA_PATH") {
		t.Errorf("a second instance ends with %v and %q", err, out)
	}
	wantHeld(t, p, world.NewPerson(t).Announce("x", "x", nil, nil))
}

// TestDeletionsOfNothing: deletion requests whose tags name nothing, from a client and from a
// relay, are events like any other, and what comes after them is accepted.
func TestDeletionsOfNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	synced := s.guest.Sign(5, "", nostr.Tag{"a", s.owner.Address(project)}, nostr.Tag{"e", ""})
	s.second.Publish(synced)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.first.URL})
	for _, tags := range []nostr.Tags{{{"e", "zz"}}, {{"e", ""}}, {{"e"}}, {{"a", ":::"}}, {{"e", strings.Repeat("A", 64)}, {"k"}}} {
		if ok, message := submit(t, p, s.guest.Sign(5, "", tags...)); !ok {
			t.Errorf("%v is answered %q", tags, message)
		}
	}
	world.Serves(t, p.Relay(), s.issue)
	world.Serves(t, p.Relay(), synced)
	late := s.guest.Sign(1621, "after all that", nostr.Tag{"a", s.owner.Address(project)})
	if ok, message := submit(t, p, late); !ok {
		t.Errorf("an issue is answered %q", message)
	}
}
