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

// TestKeyFileOfAnotherServer: it is taken before a key of ours, as nsec or hex, also where nothing
// outlives the process; the environment goes before it, and a broken one stops the start.
func TestKeyFileOfAnotherServer(t *testing.T) {
	t.Parallel()
	secret, other := gonostr.GeneratePrivateKey(), gonostr.GeneratePrivateKey()
	nsec, failed := nip19.EncodePrivateKey(secret)
	want, err := gonostr.GetPublicKey(secret)
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file, environ string
		want          string // the file or the setting that the error names; empty: the key is found
	}{
		{nsec, "", ""}, {nsec + "\n", "", ""}, {"  " + strings.ToUpper(secret) + "\r\n", "", ""}, {other, nsec, ""}, {other, secret, ""},
		{nsec, "xyz", "NGIT_RELAY_OWNER_NSEC"}, {nsec, nsec[:20], "NGIT_RELAY_OWNER_NSEC"}, {nsec, strings.Repeat("f", 64), "NGIT_RELAY_OWNER_NSEC"},
		{"", "", config.BroughtKeyFile}, {"nsec1half", "", config.BroughtKeyFile}, {secret[:40], "", config.BroughtKeyFile},
	} {
		for _, backend := range []string{"file", "memory"} {
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, config.BroughtKeyFile), []byte(c.file), 0o600))
			s := config.Settings{Storage: config.Storage{DatabaseBackend: backend, RelayDataPath: t.TempDir()}, Service: config.Service{RelayOwnerNsec: c.environ}}
			key, err := s.LoadKey(dir)
			if c.want == "" && (err != nil || key.Public != want) {
				t.Errorf("%q, %q: %s, %v", c.file, c.environ, key.Public, err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || c.file+c.environ != "" && strings.Contains(err.Error(), c.file+c.environ)) {
				t.Errorf("%q, %q: %v", c.file, c.environ, err)
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
