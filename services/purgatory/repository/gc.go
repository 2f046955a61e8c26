package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// manyPacks is how many packs a repository may have before housekeeping is due at once: every
	// push leaves one, and git looks into each for every object.
	manyPacks = 50
	// rest is how long a repository is left alone after housekeeping, and how long what nothing
	// reaches is kept: a push that is under way may need it.
	rest = 24 * time.Hour
	// bigPack is the size from which packs stay as they are, so that repositories of a maintainer
	// group go on sharing them.
	bigPack = 16 << 20

	// gcFile of a repository is as old as its last housekeeping.
	gcFile = "last-gc"
)

// NeedsGc reports whether housekeeping is due. It starts no git.
func (r *Repo) NeedsGc(now time.Time) (bool, error) {
	packs, err := r.packs()
	blind, failed := r.blindPacks()
	if err = errors.Join(err, failed); err != nil || len(packs)+len(blind) == 0 {
		return false, err
	}
	last, err := newest(r.in("config"), r.in(gcFile)) // before the first time it is as old as the repository
	if err != nil {
		return false, err
	}
	changed, err := newest(r.in("refs"), r.in("objects", packFolder))
	waits := len(blind) > 0 || slices.ContainsFunc(packs, func(p pack) bool { return p.cruft })
	small := 0
	for _, p := range packs {
		if p.bytes < bigPack && !p.cruft { // the others stay as they are
			small++
		}
	}
	return small > manyPacks || now.Sub(last) > rest && (waits || changed.After(last)), err
}

// blindPacks are packs without index. One that was killed has left them, and git's housekeeping fails
// while they are there.
func (r *Repo) blindPacks() (names []string, err error) {
	files, err := readDir(r.in("objects", packFolder))
	for _, file := range files {
		name, is := strings.CutSuffix(file.Name(), ".pack")
		isIndex := func(f fs.DirEntry) bool { return f.Name() == name+indexSuffix }
		if is && strings.HasPrefix(name, "pack-") && !slices.ContainsFunc(files, isIndex) {
			names = append(names, name)
		}
	}
	return names, err
}

// Moved is when a reference last came, moved or went.
func (r *Repo) Moved() (time.Time, error) { return newest(r.in("refs")) }

// newest is when the files were written, or when anything came or went below the folders.
func newest(roots ...string) (at time.Time, err error) {
	defer doing("look when the repository has changed", &err)
	for _, root := range roots {
		err = errors.Join(err, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() && path != root {
				return ignoreGone(err)
			}
			info, err := entry.Info()
			if err == nil && info.ModTime().After(at) {
				at = info.ModTime()
			}
			return ignoreGone(err)
		}))
	}
	return at, err
}

// Gc does a repository's housekeeping with git's own means: packs are brought together, and objects
// that nothing has reached for a day go. It needs the lock. Git reads the references once and
// removes what they do not reach; the age of a pack tells nothing about that, because old objects
// are in use again as soon as a push builds on them, a state names them, or a pack with them is
// linked. A writer beside it would set a reference to what is just being removed.
func (l *Locked) Gc(ctx context.Context) error { return l.keepHouse(ctx, true) }

// Repack is Gc without removing any object.
func (l *Locked) Repack(ctx context.Context) error { return l.keepHouse(ctx, false) }

func (l *Locked) keepHouse(ctx context.Context, removes bool) error {
	began := time.Now()
	hidden, until := false, "never"
	if removes {
		until = "24.hours.ago"
	}
	err := l.sweepGc()
	if err == nil {
		err = l.indexPacks(ctx)
	}
	if err == nil {
		err = l.gc(ctx, bigPack, until)
	}
	if removes && err == nil {
		hidden, err = l.hidesGarbage(ctx)
	}
	if hidden && err == nil {
		err = l.gc(ctx, 0, until)
	}
	if err == nil {
		err = l.note(gcFile, "", true)
	} else if l.MayWrite(ctx) == nil {
		// Where the disk is full, packs that git did not finish are what fills it.
		err = errors.Join(err, l.sweepFolder("objects/pack", 0))
	}
	moved, looked := l.Moved()
	if err = errors.Join(err, looked); err == nil && moved.After(began) {
		err = os.Chtimes(l.in(gcFile), began, began) // by a push meanwhile
	}
	if err != nil {
		return fmt.Errorf("housekeeping: %w", err)
	}
	return nil
}

// indexPacks gives blind packs their index back: it may be what was lost. One that is no pack goes. A
// fetch that is about to name the index of its own pack names the same one.
func (l *Locked) indexPacks(ctx context.Context) error {
	names, err := l.blindPacks()
	for _, name := range names {
		path := l.in("objects", packFolder, name)
		info, failed := os.Stat(path + ".pack")
		if err = errors.Join(err, ignoreGone(failed)); failed != nil {
			continue
		}
		c := l.writing("index-pack", path+".pack")
		c.low, c.syncs, c.Pack = true, true, max(1, info.Size())
		if failed = c.Run(ctx); refused(failed) {
			l.Store.Log.Warn("a pack without index is no pack, and is removed", "repository", l.Place, "error", failed)
			failed = errors.Join(os.Remove(path+".pack"), ignoreGone(os.Remove(path+".rev")))
		}
		err = errors.Join(err, failed)
	}
	return err
}

// sweepGc removes the lock files of a housekeeping that was killed: git's next one fails while they
// are there. No other git of ours has them, because the caller has the lock.
func (l *Locked) sweepGc() error {
	if err := l.MayWrite(context.Background()); err != nil {
		return err
	}
	var failed error
	for _, folder := range []string{"objects/info", "objects/info/commit-graphs", "objects/pack"} {
		entries, err := readDir(l.in(folder))
		failed = errors.Join(failed, err)
		for _, entry := range entries {
			if strings.HasSuffix(entry.Name(), ".lock") {
				failed = errors.Join(failed, ignoreGone(os.Remove(l.in(folder, entry.Name()))))
			}
		}
	}
	return failed
}

// gc lets git pack all objects into new packs but those of packs from a size on; 0: all. What
// nothing reaches goes if it is from before a time.
func (l *Locked) gc(ctx context.Context, keep int64, before string) error {
	// --force passes over the lock of a gc that was killed: the holder of the claim runs one only.
	c := l.writing("gc", "--cruft", "--prune="+before, "--quiet", "--force")
	c.config = []string{
		fmt.Sprintf("gc.bigPackThreshold=%d", keep),
		"gc.packRefs=false", // when a reference came is told by the time of its file
		"repack.updateServerInfo=false",
		"pack.threads=1",
	}
	c.low, c.syncs = true, true
	return c.Run(ctx)
}

// hidesGarbage reports whether packs that gc leaves as they are have objects that nothing reaches:
// what references let go of must not be served for ever.
func (r *Repo) hidesGarbage(ctx context.Context) (bool, error) {
	packs, err := r.packs()
	packed, big := 0, false
	for _, p := range packs {
		if p.cruft {
			continue
		}
		count, err := countObjects(r.in("objects", packFolder, p.name+indexSuffix))
		if err != nil {
			return false, err
		}
		packed, big = packed+count, big || p.bytes >= bigPack
	}
	if err != nil || !big {
		return false, err
	}
	c := r.reading("rev-list", "--objects", "--all", "--count")
	c.low = true
	out, err := c.ask(ctx, "")
	if err != nil {
		return false, err
	}
	reached, err := strconv.Atoi(strings.TrimSpace(out))
	return packed > reached, err
}
