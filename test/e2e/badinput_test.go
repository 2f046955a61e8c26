package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestBadSettings: one sentence that names the setting, the value, and what would be right; and
// nothing is started.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { taken.Close() })
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, tc := range []struct{ name, setting, value, want string }{
		{"a port in use", "NGIT_BIND_ADDRESS", taken.Addr().String(), "address already in use"},
		{"a NATS port in use", "NGIT_NATS_LISTEN", taken.Addr().String(), "address already in use"},
		{"a git folder that is a file", "NGIT_GIT_DATA_PATH", file, "NGIT_GIT_DATA_PATH"},
		{"a relay folder that is a file", "NGIT_RELAY_DATA_PATH", file, "NGIT_RELAY_DATA_PATH"},
		{"a folder that cannot be written", "NGIT_GIT_DATA_PATH", "/proc/tendril", "NGIT_GIT_DATA_PATH"},
		{"no git", "PATH", dir, "install git"},
		{"a number that is none", "NGIT_SYNC_BATCH_WINDOW_MS", "soon", "NGIT_SYNC_BATCH_WINDOW_MS"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			env := world.Settings()
			env[tc.setting] = tc.value
			env["NGIT_LOG_LEVEL"] = "error"
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
	p.Holds(fixture.NewPerson().Announce("x"))
}
