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
	"tendril.dev/test/fixture"
)

// TestKeyFileOfAnotherServer: it is taken before a key of ours, as nsec or hex, also where nothing
// outlives the process; the environment goes before it, and a broken one stops the start.
func TestKeyFileOfAnotherServer(t *testing.T) {
	t.Parallel()
	secret := gonostr.GeneratePrivateKey()
	nsec, err := nip19.EncodePrivateKey(secret)
	must(t, err)
	words := strings.NewReplacer("NSEC", nsec, "HEX", secret, "CAPS", strings.ToUpper(secret), "OTHER", gonostr.GeneratePrivateKey(), "HALF", secret[:40],
		"F64", strings.Repeat("f", 64), "LF", "\n", "CR", "\r", "SP", "  ")
	// What is in the file and in the environment, and what the error names; empty: the key is found.
	for _, row := range fixture.Rows(`
		NSEC         |       |
		NSECLF       |       |
		SPCAPSCRLF   |       |
		OTHER        | NSEC  |
		OTHER        | HEX   |
		NSEC         | xyz   | NGIT_RELAY_OWNER_NSEC
		NSEC         | nsec1 | NGIT_RELAY_OWNER_NSEC
		NSEC         | F64   | NGIT_RELAY_OWNER_NSEC
		             |       | .relay-owner.nsec
		nsec1half    |       | .relay-owner.nsec
		HALF         |       | .relay-owner.nsec`) {
		file, environ, want := words.Replace(row[0]), words.Replace(row[1]), row[2]
		for _, backend := range []string{"file", "memory"} {
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, config.BroughtKeyFile), []byte(file), 0o600))
			s := config.Settings{Storage: config.Storage{DatabaseBackend: backend, RelayDataPath: t.TempDir()}, Service: config.Service{RelayOwnerNsec: environ}}
			key, err := s.LoadKey(dir)
			if want == "" && (err != nil || key.Public != fixture.PersonOf(secret).PubKey) {
				t.Errorf("%q: %s, %v", row, key.Public, err)
			}
			if want != "" && (err == nil || !strings.Contains(err.Error(), want) || file+environ != "" && strings.Contains(err.Error(), file+environ)) {
				t.Errorf("%q: %v", row, err)
			}
		}
	}
}

// TestOwnerIsGeneratedOnce, however many begin at once, and found again. In memory nothing is
// written.
func TestOwnerIsGeneratedOnce(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"lmdb", "memory"} {
		dir := filepath.Join(t.TempDir(), "new")
		s := config.Settings{Storage: config.Storage{DatabaseBackend: backend, RelayDataPath: dir}}
		if _, err := s.FindKey(t.TempDir()); backend != "memory" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: before there is one: %v", backend, err)
		}
		var starts sync.WaitGroup
		keys := make(chan config.Key, 8)
		for range cap(keys) {
			starts.Go(func() {
				key, err := s.LoadKey(t.TempDir())
				if err != nil {
					t.Error(err)
				}
				keys <- key
			})
		}
		starts.Wait()
		close(keys)
		found, err := s.FindKey(t.TempDir())
		for key := range keys {
			if key != found || err != nil {
				t.Errorf("%s: found %s, %v, and another got %s", backend, found.Public, err, key.Public)
			}
		}
		ev := nostr.Event{Kind: gonostr.KindClientAuthentication}
		if err := found.Sign(&ev); err != nil || ev.PubKey != found.Public || !gonostr.IsValid32ByteHex(ev.PubKey) {
			t.Errorf("%s: signed by %s, %v", backend, ev.PubKey, err)
		}
		if ok, err := ev.CheckSignature(); !ok {
			t.Errorf("%s: the signature is wrong: %v", backend, err)
		}
		entries, err := os.ReadDir(dir)
		if backend == "memory" {
			if err == nil {
				t.Error("in memory, but something was written")
			}
			continue
		}
		if err != nil || len(entries) != 1 {
			t.Fatalf("files: %v, %v", entries, err)
		}
		if stat, err := entries[0].Info(); err != nil || stat.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", stat.Mode(), err)
		}
	}
}

// TestTheCredentialComesFirst: the key of a systemd credential is taken before the environment and
// files; a unit without that credential has its key from there.
func TestTheCredentialComesFirst(t *testing.T) {
	folder, secret, other := t.TempDir(), gonostr.GeneratePrivateKey(), gonostr.GeneratePrivateKey()
	t.Setenv("CREDENTIALS_DIRECTORY", folder)
	s := config.Settings{Service: config.Service{RelayOwnerNsec: other}}
	if key, err := s.LoadKey(t.TempDir()); err != nil || key.Public != fixture.PersonOf(other).PubKey {
		t.Errorf("without the credential: %s, %v", key.Public, err)
	}
	must(t, os.WriteFile(filepath.Join(folder, "relay_owner_nsec"), []byte(secret+"\n"), 0o400))
	if key, err := s.LoadKey(t.TempDir()); err != nil || key.Public != fixture.PersonOf(secret).PubKey {
		t.Errorf("with the credential: %s, %v", key.Public, err)
	}
}
