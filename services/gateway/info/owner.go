package info

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/config"
)

// OwnerFile is the name of the operator's key file in the relay data folder.
const OwnerFile = "owner.nsec"

// BroughtFile is the key file of other GRASP servers, in the working directory.
const BroughtFile = ".relay-owner.nsec"

// Owner is the operator's public key, 64 hex digits. Its secret key is, in this order:
// NGIT_RELAY_OWNER_NSEC; the file .relay-owner.nsec in dir, the working directory, where another
// GRASP server has left it; a key that is generated once and kept in the relay data folder. Where
// nothing outlives the process, that last one is in memory only.
func Owner(s config.Settings, dir string) (string, error) {
	if s.RelayOwnerNsec != "" {
		key, err := config.PublicKey(s.RelayOwnerNsec)
		if err != nil {
			return "", fmt.Errorf("NGIT_RELAY_OWNER_NSEC: %w", err)
		}
		return key, nil
	}
	if key, err := readOwner(filepath.Join(dir, BroughtFile)); !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if s.DatabaseBackend == "memory" {
		return nostr.GetPublicKey(nostr.GeneratePrivateKey())
	}
	path := filepath.Join(s.RelayDataPath, OwnerFile)
	key, err := readOwner(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := writeOwner(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("keep the operator's key: %w", err)
	}
	return readOwner(path)
}

func readOwner(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the operator's key: %w", err)
	}
	key, err := config.PublicKey(string(data))
	if err != nil {
		return "", fmt.Errorf("the file %s %w; put one there, or remove the file to have one generated", path, err)
	}
	return key, nil
}

// writeOwner writes a new key to a file of its own and then gives it its name, unless another process was faster: nobody ever reads half a
// key.
func writeOwner(path string) error {
	nsec, err := nip19.EncodePrivateKey(nostr.GeneratePrivateKey())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+OwnerFile+"-*") // mode 0600
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
