package repository

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

const (
	// manyPacks is how many packs a repository may have before Tidy does anything. Git looks into
	// each for every object.
	manyPacks = 32
	// largePacks is how many of the largest are left as they are where packs are brought together.
	largePacks = 4
)

// Tidy brings packs together where there are many: every push and every fetch leaves one of its
// own. Small ones become part of larger ones, so that the work for each byte stays small over the
// life of a repository. No object goes, reachable or not, and readers are not disturbed. What the
// repository borrows is left alone. It says whether there was anything to do. Whoever writes to the
// repository calls it from time to time; git never does so by itself here.
func (r *Repo) Tidy(ctx context.Context) (done bool, err error) {
	packs, err := r.ownPacks()
	if err == nil && len(packs) > manyPacks {
		done = true
		if _, failed := os.Lstat(r.in("objects", "info", alternatesFile)); failed == nil {
			err = r.joinPacks(ctx, packs)
		} else {
			err = r.repack(ctx)
		}
	}
	if err != nil {
		return false, fmt.Errorf("tidy up a repository: %w", err)
	}
	return done, nil
}

// repack is for what borrows from nowhere: before 2.41, git repack takes borrowed packs for its own
// and fails.
func (r *Repo) repack(ctx context.Context) error {
	files, err := os.ReadDir(r.in("objects", packsFolder))
	if err != nil {
		return err
	}
	before := map[string]bool{}
	for _, file := range files {
		before[file.Name()] = true
	}
	if _, err := r.run(ctx, "", "repack", "--geometric=2", "-d", "-l", "-q", "-n"); err != nil {
		// Git leaves what it has not finished there, and where the disk is full, that is what fills
		// it. Nobody else makes such files: what comes by pushes and fetches is in quarantine until
		// it is finished.
		return errors.Join(err, r.removeUnfinished(func(file fs.DirEntry) bool { return !before[file.Name()] }))
	}
	return nil
}

// joinPacks puts one pack in the place of all but the largest.
func (r *Repo) joinPacks(ctx context.Context, packs []string) error {
	sizes := map[string]int64{}
	for _, name := range packs {
		info, err := os.Stat(r.in("objects", packsFolder, name+".pack"))
		if err != nil {
			return err
		}
		sizes[name] = info.Size()
	}
	slices.SortFunc(packs, func(a, b string) int { return cmp.Compare(sizes[a], sizes[b]) })
	packs = packs[:len(packs)-largePacks]
	file, err := r.Scratch()
	if err != nil {
		return err
	}
	all := &objectList{ids: file, file: file}
	defer all.close()
	out := bufio.NewWriter(file)
	for _, name := range packs {
		x, err := openIndex(r.in("objects", packsFolder, name+indexSuffix))
		if err != nil {
			return err
		}
		for i := range x.count() {
			all.count++
			_, err = out.WriteString(hex.EncodeToString(x.at(i)) + "\n")
		}
		x.close()
		if err != nil {
			return fmt.Errorf("write a list of objects: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write a list of objects: %w", err)
	}
	return r.replaceOwn(ctx, packs, nil, all)
}
