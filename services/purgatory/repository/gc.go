package repository

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	// lowPriority is the priority of housekeeping, as nice(1) counts it.
	lowPriority = 10
)

// upkeep is what decides whether housekeeping is due.
type upkeep struct {
	packs   int
	cruft   bool      // there are packs of what nothing reaches
	changed time.Time // when a pack came or a reference moved
	last    time.Time // when housekeeping was done
}

func (u upkeep) due(now time.Time) bool {
	if u.packs > manyPacks {
		return true
	}
	return u.packs > 0 && now.Sub(u.last) > rest && (u.cruft || u.changed.After(u.last))
}

// NeedsGc reports whether housekeeping is due. It starts no git.
func (r *Repo) NeedsGc(now time.Time) (bool, error) {
	u, err := r.upkeep()
	if err != nil {
		return false, fmt.Errorf("look whether housekeeping is due: %w", err)
	}
	return u.due(now), nil
}

func (r *Repo) upkeep() (u upkeep, err error) {
	files, err := readDir(r.in("objects", packFolder))
	if err != nil {
		return u, err
	}
	for _, file := range files {
		switch filepath.Ext(file.Name()) {
		case indexSuffix:
			u.packs++
		case cruftSuffix:
			u.cruft = true
		}
	}
	for name, at := range map[string]*time.Time{gcFile: &u.last, "config": &u.changed} {
		info, err := os.Stat(r.in(name))
		if err == nil {
			*at = info.ModTime()
		} else if !errors.Is(err, fs.ErrNotExist) {
			return u, err
		}
	}
	if u.last.IsZero() {
		u.last = u.changed // it is new
	}
	for _, root := range []string{r.in("refs"), r.in("objects", packFolder)} {
		err := filepath.WalkDir(root, func(_ string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return ignoreGone(err)
			}
			info, err := entry.Info()
			if err == nil && info.ModTime().After(u.changed) {
				u.changed = info.ModTime()
			}
			return ignoreGone(err)
		})
		if err != nil {
			return u, err
		}
	}
	return u, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Gc does a repository's housekeeping with git's own means: packs are brought together, and objects
// that nothing has reached for a day go. It may run beside pushes and fetches. ctx ends with the
// claim on the repository.
func (r *Repo) Gc(ctx context.Context) error {
	began := time.Now()
	err := r.dropUnfinished() // of one that was killed
	if err == nil {
		err = r.gc(ctx, bigPack)
	}
	if err == nil {
		var hidden bool
		if hidden, err = r.hidesGarbage(ctx); hidden && err == nil {
			err = r.gc(ctx, 0)
		}
	}
	if err == nil {
		err = writeDurably(r.in(gcFile), "")
	}
	if err == nil {
		err = os.Chtimes(r.in(gcFile), began, began)
	}
	if err != nil {
		return fmt.Errorf("housekeeping: %w", errors.Join(err, r.dropUnfinished()))
	}
	return nil
}

// dropUnfinished removes packs that git did not finish; where the disk is full, they are what fills
// it. Only housekeeping makes such files: pushes and fetches write in quarantine.
func (r *Repo) dropUnfinished() error {
	if err := r.mayWrite(context.Background()); err != nil {
		return err
	}
	files, err := readDir(r.in("objects", packFolder))
	for _, file := range files {
		if strings.HasPrefix(file.Name(), "tmp_") || strings.HasPrefix(file.Name(), ".tmp-") {
			err = errors.Join(err, removeFile(r.in("objects", packFolder, file.Name())))
		}
	}
	return err
}

// gc lets git pack all objects anew but those of packs from a size on; 0: all.
func (r *Repo) gc(ctx context.Context, keep int64) error {
	// --force passes over the lock of a gc that was killed: whoever holds the claim runs one only.
	c := r.Command("gc", "--cruft", "--prune="+strconv.Itoa(int(rest/time.Hour))+".hours.ago", "--quiet", "--force")
	c.Config("gc.bigPackThreshold", strconv.FormatInt(keep, 10))
	c.Config("gc.packRefs", "false") // when a reference came is told by the time of its file
	c.Config("repack.updateServerInfo", "false")
	c.Config("pack.threads", "1")
	c.low = true
	return c.Run(ctx)
}

// hidesGarbage reports whether packs that gc leaves as they are have objects that nothing reaches:
// what references let go of must not be served for ever.
func (r *Repo) hidesGarbage(ctx context.Context) (bool, error) {
	packs, err := r.packs()
	if err != nil {
		return false, err
	}
	packed, big := 0, false
	for _, name := range packs {
		path := r.in("objects", packFolder, name)
		if _, err := os.Lstat(path + cruftSuffix); err == nil {
			continue
		}
		info, err := os.Stat(path + ".pack")
		if err != nil {
			return false, err
		}
		count, err := countObjects(path + indexSuffix)
		if err != nil {
			return false, err
		}
		packed, big = packed+count, big || info.Size() >= bigPack
	}
	if !big {
		return false, nil
	}
	var out bytes.Buffer
	c := r.Command("rev-list", "--objects", "--all", "--count")
	c.Stdout, c.low = &out, true
	if err := c.Run(ctx); err != nil {
		return false, err
	}
	reached, err := strconv.Atoi(strings.TrimSpace(out.String()))
	return packed > reached, err
}

// countObjects reads from the index of a pack how many objects there are (gitformat-pack, version
// 2): the last entry of its fan-out table.
func countObjects(index string) (int, error) {
	const fanOut = 8 + 255*4
	f, err := os.Open(index)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	count := make([]byte, 4)
	if _, err := f.ReadAt(count, fanOut); err != nil {
		return 0, fmt.Errorf("read the index of a pack: %w", err)
	}
	return int(binary.BigEndian.Uint32(count)), nil
}
