package node

import (
	"bytes"
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nettest"
)

// TestProfilesAreServed: a profile comes from the port that the log names, and from no other.
func TestProfilesAreServed(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	n := &Node{Log: slog.New(slog.NewTextHandler(&log, nil))}
	n.Settings.ProfileAddress = "127.0.0.1:0"
	end, err := n.serveProfiles()
	if err != nil {
		t.Fatal(err)
	}
	_, address, found := strings.Cut(strings.TrimSpace(log.String()), "address=")
	if !found {
		t.Fatalf("the log does not name the address: %s", &log)
	}
	resp, err := http.Get("http://" + address + "/debug/pprof/heap")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	zipped, err := gzip.NewReader(resp.Body)
	if err != nil {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	if profile, err := io.ReadAll(zipped); err != nil || len(profile) == 0 {
		t.Errorf("a profile of %d bytes, %v", len(profile), err)
	}
	index := func() bool {
		return nettest.Answers(t, "http://"+address+"/debug/pprof/", "Types of profiles available:")
	}
	if !index() {
		t.Error("the list of profiles is not served")
	}
	if end(); index() {
		t.Error("profiles are still served at the end")
	}
}

// TestNoProfilesByDefault: who sets nothing opens nothing.
func TestNoProfilesByDefault(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s, err := config.Parse("up", []string{"--domain", "git.example.com", "--env-file", ""})
	if err != nil {
		t.Fatal(err)
	}
	end, err := (&Node{Settings: s, Log: slog.New(slog.NewTextHandler(&log, nil))}).serveProfiles()
	if err != nil {
		t.Fatal(err)
	}
	end()
	if log.Len() > 0 {
		t.Errorf("it said: %s", &log)
	}
}

func TestProfilesForThisMachineOnly(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]int{
		"127.0.0.1:7336":          http.StatusOK,
		"127.0.0.1":               http.StatusOK,
		"localhost:7336":          http.StatusOK,
		"[::1]:7336":              http.StatusOK,
		"evil.example.com:7336":   http.StatusForbidden,
		"127.0.0.1.example.com":   http.StatusForbidden,
		"192.0.2.1:7336":          http.StatusForbidden,
		"localhost.example.com:1": http.StatusForbidden,
	} {
		r := httptest.NewRequest(http.MethodGet, "/debug/pprof/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		profiles().ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("host %s: status %d, want %d", host, w.Code, want)
		}
	}
}
