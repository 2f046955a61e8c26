package repository

import (
	"fmt"
	"os"
)

// archiveFile marks a repository that is kept though its announcement does not list us (GRASP-05).
const archiveFile = "archive"

// IsArchive reports whether the repository is marked as an archive. It starts no git.
func (r *Repo) IsArchive() bool {
	_, err := os.Lstat(r.in(archiveFile))
	return err == nil
}

// SetArchive marks the repository as an archive, durably, or takes the mark away.
func (r *Repo) SetArchive(is bool) error {
	if is == r.IsArchive() {
		return nil
	}
	var err error
	if is {
		err = writeDurably(r.in(archiveFile), "")
	} else if err = removeFile(r.in(archiveFile)); err == nil {
		err = syncPath(r.path)
	}
	if err != nil {
		return fmt.Errorf("mark %s as an archive: %w", r.ref, err)
	}
	return nil
}
