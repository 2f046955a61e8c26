package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
)

const (
	// KeyFile is the name of the operator's key file in the relay data folder, and BroughtKeyFile
	// that of other GRASP servers, in the working directory.
	KeyFile        = "owner.nsec"
	BroughtKeyFile = ".relay-owner.nsec"
	// credentialsFolder is the variable in which systemd names the folder of a unit's credentials, and
	// keyCredential the credential that holds the operator's key.
	credentialsFolder = "CREDENTIALS_DIRECTORY"
	keyCredential     = "relay_owner_nsec"
	// groupOrder is what a secret key of secp256k1 is below; one is not 0 either.
	groupOrder = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"
)

// Key is the operator's key, with which the service signs what it says in its own name.
type Key struct {
	secret string // 64 hex digits
	Public string // 64 hex digits
}

// Sign signs an event in the operator's name.
func (k Key) Sign(ev *nostr.Event) error { return ev.Sign(k.secret) }

// passing is the key of a process that keeps nothing on disk.
var passing = sync.OnceValues(func() (Key, error) { return ReadKey(gonostr.GeneratePrivateKey()) })

// LoadKey returns the operator's key. It is, in this order: the systemd credential
// relay_owner_nsec; NGIT_RELAY_OWNER_NSEC; the file .relay-owner.nsec in dir, the working
// directory, where another GRASP server has left it; a key that is generated once and kept in the
// relay data folder. Where nothing is kept on disk, that last one is in memory only.
func (s Settings) LoadKey(dir string) (Key, error) {
	key, err := s.FindKey(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	path := filepath.Join(s.RelayDataPath, KeyFile)
	if err := writeKey(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return Key{}, fmt.Errorf("keep the operator's key: %w", err)
	}
	return ReadKeyFile(path)
}

// FindKey returns the operator's key as LoadKey does, and generates none: without one its error is
// [fs.ErrNotExist].
func (s Settings) FindKey(dir string) (Key, error) {
	if folder := os.Getenv(credentialsFolder); folder != "" {
		if key, err := ReadKeyFile(filepath.Join(folder, keyCredential)); !errors.Is(err, fs.ErrNotExist) {
			return key, err
		}
	}
	if s.RelayOwnerNsec != "" {
		key, err := ReadKey(s.RelayOwnerNsec)
		if err != nil {
			return key, fmt.Errorf("NGIT_RELAY_OWNER_NSEC %w", err)
		}
		return key, nil
	}
	if key, err := ReadKeyFile(filepath.Join(dir, BroughtKeyFile)); !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if s.DatabaseBackend == "memory" {
		return passing()
	}
	return ReadKeyFile(filepath.Join(s.RelayDataPath, KeyFile))
}

// ReadKey reads a secret key as NGIT_RELAY_OWNER_NSEC and key files hold it: nsec1… (NIP-19) or 64
// hex digits, with spaces around. Its error never repeats the secret.
func ReadKey(text string) (k Key, err error) {
	k.secret = strings.ToLower(strings.TrimSpace(text))
	if b, err := hex.DecodeString(k.secret); err != nil || len(b) != 32 {
		kind, decoded, err := nip19.Decode(strings.TrimSpace(text))
		if err != nil || kind != "nsec" {
			return Key{}, errors.New("holds no secret key: want nsec1… or 64 hex digits")
		}
		k.secret = decoded.(string)
	}
	k.Public, err = gonostr.GetPublicKey(k.secret)
	if err != nil || k.secret >= groupOrder || k.secret == strings.Repeat("0", 64) {
		return Key{}, errors.New("holds no valid secret key")
	}
	return k, nil
}

// ReadKeyFile reads the secret key in a file.
func ReadKeyFile(path string) (Key, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Key{}, fmt.Errorf("read the operator's key: %w", err)
	}
	key, err := ReadKey(string(data))
	if err != nil {
		return Key{}, fmt.Errorf("the file %s %w; put one there, or remove the file to have one generated", path, err)
	}
	return key, nil
}

// writeKey writes a new key to a file of its own and then gives it its name, unless another process
// was faster: half a key is never read.
func writeKey(path string) error {
	nsec, err := nip19.EncodePrivateKey(gonostr.GeneratePrivateKey())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+KeyFile+"-*") // mode 0600
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
