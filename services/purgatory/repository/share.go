package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// maxCommonTips bounds what git is told to be on both sides already.
const maxCommonTips = 1000

// Share brings objects, with all that they reach, from a repository of the same maintainer group.
// The packs of the other are linked where this one is empty, so that both are on the disk once;
// later git copies what is missing. ErrBroken: the other lacks a part.
//
// Whoever calls it knows that the two belong together: objects of a repository are never shown
// through one of another group.
func (r *Repo) Share(ctx context.Context, from *Repo, ids []string) error {
	has, err := r.HasObjects()
	if err == nil && !has {
		err = r.linkPacks(ctx, from)
	}
	if err != nil {
		return fmt.Errorf("share objects: %w", err)
	}
	missing, err := r.Missing(ctx, ids)
	if err != nil || len(missing) == 0 {
		return err
	}
	gone, err := from.Missing(ctx, missing)
	if err == nil && len(gone) > 0 {
		err = fmt.Errorf("%w: %s", ErrBroken, gone[0])
	}
	if err == nil {
		err = r.copyFrom(ctx, from, missing)
	}
	if err != nil {
		return fmt.Errorf("share objects: %w", err)
	}
	return nil
}

// linkPacks makes the packs of another repository packs of this one too. Packs of what nothing
// reaches there stay there, and so does a pack that the other's housekeeping is removing.
func (r *Repo) linkPacks(ctx context.Context, from *Repo) error {
	names, err := from.packs()
	if err != nil || len(names) == 0 {
		return err
	}
	folder := r.in("objects", packFolder)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := r.mayWrite(ctx); err != nil {
			return err
		}
		if _, err := os.Lstat(from.in("objects", packFolder, name+cruftSuffix)); err == nil {
			continue
		}
		for _, suffix := range []string{".pack", ".rev", indexSuffix} { // git sees a pack by its index
			err := os.Link(from.in("objects", packFolder, name+suffix), filepath.Join(folder, name+suffix))
			if err != nil && !errors.Is(err, fs.ErrExist) && suffix != ".rev" {
				break // git copies it: it has gone, or this file system cannot link
			}
		}
	}
	return syncFolders(folder, r.in("objects"))
}

// copyFrom lets git copy objects, with what they reach and is not here yet.
func (r *Repo) copyFrom(ctx context.Context, from *Repo, ids []string) error {
	common, err := r.commonTips(ctx, from)
	if err != nil {
		return err
	}
	release, err := r.store.acquirePipe(ctx)
	if err != nil {
		return err
	}
	defer release()
	pipe, packed := io.Pipe()
	pack := from.Command("pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q")
	pack.held = true
	pack.Stdin = strings.NewReader(strings.Join(ids, "\n") + "\n--not\n" + strings.Join(common, "\n") + "\n")
	pack.Stdout = packed
	var packing error // that of pack-objects, unless it failed because its output was not taken
	var ended atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		err := pack.Run(ctx)
		if !ended.Load() {
			packing = err
		}
		packed.CloseWithError(err)
	})
	taking := r.takePack(ctx, pipe, 0, nil)
	ended.Store(true)
	pipe.CloseWithError(io.ErrClosedPipe)
	running.Wait()
	if failure, ok := errors.AsType[*Error](packing); ok && isExit(failure.Err) && !Unwritable(packing) {
		return fmt.Errorf("%w: %w", ErrBroken, packing)
	}
	return errors.Join(packing, taking)
}

// commonTips are objects that references name here and that the other repository has too.
func (r *Repo) commonTips(ctx context.Context, other *Repo) ([]string, error) {
	named, err := r.Named(ctx, nil)
	if err != nil {
		return nil, err
	}
	named = named[:min(len(named), maxCommonTips)]
	missing, err := other.Missing(ctx, named)
	return slices.DeleteFunc(named, func(id string) bool { return slices.Contains(missing, id) }), err
}
