package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhoHasAnIndex: a process keeps one if a service needs it, or if there is nobody to ask.
func TestWhoHasAnIndex(t *testing.T) {
	t.Parallel()
	asks, needs, early := Service{Name: "a", Asks: true}, Service{Name: "b"}, Service{Name: "c", Early: true}
	for name, c := range map[string]struct {
		url      string
		services []Service
		want     bool
	}{
		"asks":                        {"nats://x", []Service{asks}, false},
		"asks, and is observed":       {"nats://x", []Service{early, asks}, false},
		"two ask":                     {"nats://x", []Service{asks, asks}, false},
		"one needs it":                {"nats://x", []Service{asks, needs}, true},
		"needs it":                    {"nats://x", []Service{needs}, true},
		"asks, and embeds the server": {"", []Service{asks}, true},
		"not said":                    {"nats://x", nil, true},
		"not said, and is observed":   {"nats://x", []Service{early}, true},
	} {
		if got := hasIndex(c.url, c.services); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestAnOldIndexIsRemoved with one line in the log, and where there is none nothing is said.
func TestAnOldIndexIsRemoved(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "index-relayconn")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "000004.sst"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	for range 3 {
		dropOldIndex(dir, log)
		dropOldIndex("", log)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	if strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), "was removed") {
		t.Errorf("the log says %q", out.String())
	}
}
