package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
)

func settings(t *testing.T, args ...string) config.Settings {
	t.Helper()
	s, err := config.Process().Parse(append([]string{"--domain=git.example.com", "--relay-data-path=" + t.TempDir()}, args...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// load returns the public key.
func load(s config.Settings, dir string) (string, error) {
	key, err := s.LoadKey(dir)
	return key.Public, err
}

// TestFind generates no key, and finds the one that Load has generated, with which it signs.
func TestFind(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"lmdb", "memory"} {
		s := settings(t)
		s.DatabaseBackend = backend
		if _, err := s.FindKey(t.TempDir()); backend != "memory" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: before there is one: %v", backend, err)
		}
		loaded, err := s.LoadKey(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		found, err := s.FindKey(t.TempDir())
		if err != nil || found != loaded {
			t.Errorf("%s: found %s, %v, want %s", backend, found.Public, err, loaded.Public)
		}
		ev := nostr.Event{Kind: gonostr.KindClientAuthentication}
		if err := found.Sign(&ev); err != nil || ev.PubKey != loaded.Public {
			t.Errorf("%s: signed by %s, %v", backend, ev.PubKey, err)
		}
		if ok, err := ev.CheckSignature(); !ok {
			t.Errorf("%s: the signature is wrong: %v", backend, err)
		}
	}
}

// TestKeyFileOfAnotherServer: it is taken before a key of ours, as nsec or hex, also where nothing
// outlives the process; the environment goes before it, and a broken one stops the start.
func TestKeyFileOfAnotherServer(t *testing.T) {
	t.Parallel()
	secret := gonostr.GeneratePrivateKey()
	nsec, err := nip19.EncodePrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	want, err := gonostr.GetPublicKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	brought := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, config.BroughtKeyFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := settings(t)
	ours, err := load(s, dir)
	if err != nil || ours == want {
		t.Fatalf("before: %s, %v", ours, err)
	}
	for _, backend := range []string{"file", "memory"} {
		s.DatabaseBackend = backend
		for _, text := range []string{nsec, nsec + "\n", "  " + strings.ToUpper(secret) + "\r\n"} {
			brought(text)
			if got, err := load(s, dir); err != nil || got != want {
				t.Errorf("%s, %q: %s, %v", backend, text, got, err)
			}
		}
	}
	other := gonostr.GeneratePrivateKey()
	s.RelayOwnerNsec = other
	if got, err := load(s, dir); err != nil || got == want || got == ours {
		t.Errorf("hex in the environment: %s, %v", got, err)
	}
	s.RelayOwnerNsec = nsec
	if got, err := load(s, dir); err != nil || got != want {
		t.Errorf("nsec in the environment: %s, %v", got, err)
	}
	for _, wrong := range []string{"xyz", nsec[:20], strings.Repeat("f", 64)} {
		s.RelayOwnerNsec = wrong
		if _, err := load(s, dir); err == nil || !strings.Contains(err.Error(), "NGIT_RELAY_OWNER_NSEC") || strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	s.RelayOwnerNsec = ""
	for _, broken := range []string{"", "nsec1half", secret[:40]} {
		brought(broken)
		_, err := load(s, dir)
		if err == nil || !strings.Contains(err.Error(), config.BroughtKeyFile) || broken != "" && strings.Contains(err.Error(), broken) {
			t.Errorf("%q: %v", broken, err)
		}
	}
}

func TestOwnerIsGeneratedOnce(t *testing.T) {
	t.Parallel()
	s := settings(t)
	s.RelayDataPath = filepath.Join(s.RelayDataPath, "new")
	var all sync.Map
	var starts sync.WaitGroup
	for range 8 {
		starts.Go(func() {
			key, err := load(s, t.TempDir())
			if err != nil {
				t.Error(err)
			}
			all.Store(key, true)
		})
	}
	starts.Wait()
	keys := 0
	all.Range(func(key, _ any) bool { keys++; return len(key.(string)) == 64 })
	if keys != 1 {
		t.Errorf("%d keys, want one", keys)
	}
	entries, err := os.ReadDir(s.RelayDataPath)
	if err != nil || len(entries) != 1 {
		t.Fatalf("files: %v, %v", entries, err)
	}
	if stat, err := entries[0].Info(); err != nil || stat.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", stat.Mode(), err)
	}

	s.DatabaseBackend = "memory"
	s.RelayDataPath = filepath.Join(t.TempDir(), "none")
	if key, err := load(s, t.TempDir()); err != nil || !gonostr.IsValid32ByteHex(key) {
		t.Errorf("in memory: %q, %v", key, err)
	}
	if _, err := os.Stat(s.RelayDataPath); err == nil {
		t.Error("in memory, but something was written")
	}
}
