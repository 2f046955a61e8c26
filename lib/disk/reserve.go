package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
)

// reserveBytes is how much a start may write. On a disk from which only the reserve was freed,
// [IsFull] still holds.
const reserveBytes = leastRoom / 2

// Reserve keeps a file that takes up room while there is some, so that a process can start on a
// full disk. Call it at each start, before anything else writes: it removes the file from a disk
// that is full, and makes the file on a disk that has room.
func Reserve(folder, path string) error {
	info, err := os.Stat(path)
	is := err == nil && info.Size() == reserveBytes
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
	case IsFull(folder):
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	case !is && HasRoom(folder):
		err = writeNoise(path)
	default:
		err = nil
	}
	if err != nil {
		return fmt.Errorf("keep room for a start: %w", err)
	}
	return nil
}

// writeNoise writes what no file system can store in less.
func writeNoise(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{}), reserveBytes)
	return errors.Join(err, f.Close())
}
