package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// manyPacks is how many packs a repository may have before Tidy does anything. Git looks into each for every object.
const manyPacks = 32

// Tidy brings packs together where there are many: every push and every fetch leaves one of its own. Small ones become part of larger
// ones, so that the work for each byte stays small over the life of a repository. No object goes, reachable or not, and readers
// are not disturbed. What the repository borrows is left alone. It says whether there was anything to do. Whoever writes to the repository calls it from time to time; git
// never does so by itself here.
func (r *Repo) Tidy(ctx context.Context) (done bool, err error) {
	files, err := os.ReadDir(r.in("objects", "pack"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("tidy up a repository: %w", err)
	}
	packs, before := 0, map[string]bool{}
	for _, file := range files {
		before[file.Name()] = true
		if strings.HasSuffix(file.Name(), ".idx") {
			packs++
		}
	}
	if packs <= manyPacks {
		return false, nil
	}
	if _, err := r.run(ctx, "", "repack", "--geometric=2", "-d", "-l", "-q", "-n"); err != nil {
		// Git leaves what it has not finished there, and where the disk is full, that is what fills it. Nobody else makes such files: what comes by
		// pushes and fetches is in quarantine until it is finished.
		left := r.removeUnfinished(func(file fs.DirEntry) bool { return !before[file.Name()] })
		return false, fmt.Errorf("tidy up a repository: %w", errors.Join(err, left))
	}
	return true, nil
}
