// Package owner knows the operator's key, with which the service signs what it says in its own
// name.
package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
)

// File is the name of the operator's key file in the relay data folder.
const File = "owner.nsec"

// BroughtFile is the key file of other GRASP servers, in the working directory.
const BroughtFile = ".relay-owner.nsec"

// Key is the operator's key.
type Key struct {
	secret string // 64 hex digits
	Public string // 64 hex digits
}

// Sign signs an event in the operator's name.
func (k Key) Sign(ev *nostr.Event) error { return ev.Sign(k.secret) }

// passing is the key of a process that leaves nothing behind.
var passing = sync.OnceValues(func() (Key, error) { return read(gonostr.GeneratePrivateKey()) })

// Load returns the operator's key. It is, in this order: NGIT_RELAY_OWNER_NSEC; the file
// .relay-owner.nsec in dir, the working directory, where another GRASP server has left it; a key
// that is generated once and kept in the relay data folder. Where nothing outlives the process,
// that last one is in memory only.
func Load(s config.Settings, dir string) (Key, error) {
	key, err := Find(s, dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	path := filepath.Join(s.RelayDataPath, File)
	if err := write(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return Key{}, fmt.Errorf("keep the operator's key: %w", err)
	}
	return readFile(path)
}

// Find returns the operator's key as Load does, and generates none: without one its error is
// [fs.ErrNotExist].
func Find(s config.Settings, dir string) (Key, error) {
	if s.RelayOwnerNsec != "" {
		key, err := read(s.RelayOwnerNsec)
		if err != nil {
			return Key{}, fmt.Errorf("NGIT_RELAY_OWNER_NSEC: %w", err)
		}
		return key, nil
	}
	if key, err := readFile(filepath.Join(dir, BroughtFile)); !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if s.DatabaseBackend == "memory" {
		return passing()
	}
	return readFile(filepath.Join(s.RelayDataPath, File))
}

func read(text string) (Key, error) {
	secret, public, err := config.KeyPair(text)
	return Key{secret, public}, err
}

func readFile(path string) (Key, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Key{}, fmt.Errorf("read the operator's key: %w", err)
	}
	key, err := read(string(data))
	if err != nil {
		return Key{}, fmt.Errorf("the file %s %w; put one there, or remove the file to have one generated", path, err)
	}
	return key, nil
}

// write writes a new key to a file of its own and then gives it its name, unless another process
// was faster: nobody ever reads half a key.
func write(path string) error {
	nsec, err := nip19.EncodePrivateKey(gonostr.GeneratePrivateKey())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+File+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(nsec + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}
