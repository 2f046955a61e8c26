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
)

// ErrBroken are objects that are there while something that they link to is not: leftovers of data
// that nothing referred to, and of which a part was pruned.
var ErrBroken = errors.New("objects that these link to are missing")

// maxKnownTips bounds what git is told to be in the pool already, so that it stops looking there.
const maxKnownTips = 2000

// Promote brings what tips reach, and what is not in the pool yet, from the repository into the
// pool, where every repository of the identifier sees it. It is for objects that events name which
// are about to be accepted, or are; what else the repository has of its own stays where it is. The
// objects are walked through to their end: ErrBroken if one is missing.
//
// It may be killed at any step and called again. The objects can be read all the time.
func (r *Repo) Promote(ctx context.Context, tips []string) error {
	if err := r.promote(ctx, tips); err != nil {
		return fmt.Errorf("promote objects to the pool: %w", err)
	}
	return nil
}

func (r *Repo) promote(ctx context.Context, tips []string) error {
	if err := r.borrow(ctx); err != nil {
		return err
	}
	pool := r.Pool()
	known, err := pool.readTips()
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, t := range known {
		there[t.id] = true
	}
	tips = slices.DeleteFunc(slices.Clone(tips), func(id string) bool { return there[id] })
	if len(tips) == 0 {
		return nil
	}
	slices.Sort(tips)
	tips = slices.Compact(tips)
	// If nothing comes to refer to them, because we are killed or they are refused, they are to go
	// again.
	if err := pool.mark(tips); err != nil {
		return err
	}
	list, err := r.listFor(ctx, tips, known)
	if err != nil {
		return err
	}
	defer list.close()
	if err := r.store.before("move objects into the pool"); err != nil {
		return err
	}
	if err := r.moveInto(ctx, pool, list); err != nil {
		return err
	}
	if err := r.store.before("tell of the tips"); err != nil {
		return err
	}
	for _, id := range tips {
		known = append(known, tip{r.ref.PubKey, id})
	}
	return pool.writeTips(known)
}

// nearest chooses tips that probably have most in common with what comes from an owner: the owner's
// own, then the newest.
func nearest(known []tip, owner string) []string {
	var ids []string
	seen := map[string]bool{}
	for _, own := range []bool{true, false} {
		for _, t := range slices.Backward(known) {
			if len(ids) < maxKnownTips && (t.owner == owner) == own && !seen[t.id] {
				seen[t.id] = true
				ids = append(ids, t.id)
			}
		}
	}
	return ids
}

// moveInto brings listed objects, which are the repository's own or in the pool, into packs of the
// pool. Packs that have nothing else in them are linked there as they are.
func (r *Repo) moveInto(ctx context.Context, pool *Pool, list *objectList) error {
	if list.count == 0 {
		return nil
	}
	whole, err := r.ownsExactly(list)
	if err != nil {
		return err
	}
	if !whole {
		_, err := r.packInto(ctx, pool.git, strings.NewReader(list.revs), "--revs")
		return err
	}
	packs, err := r.ownPacks()
	if err != nil {
		return err
	}
	for _, name := range packs {
		if err := linkPack(r, pool.git, name); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	return nil
}

// ownsExactly reports whether the packs of the repository's own have the listed objects and no
// others.
func (r *Repo) ownsExactly(list *objectList) (bool, error) {
	loose, err := r.looseObjects()
	if err != nil || len(loose) > 0 {
		return false, err
	}
	own, err := r.openIndexes()
	if err != nil {
		return false, err
	}
	defer own.close()
	if own.count() != list.count {
		return false, nil
	}
	exactly := true
	err = list.each(func(id []byte) bool {
		exactly = own.has(id)
		return exactly
	})
	return exactly, err
}

// packInto lets git pack-objects write packs of what r can see, lets them appear in the other
// repository or pool, and returns their names. One of them may have been there before.
func (r *Repo) packInto(ctx context.Context, into *Repo, input io.Reader, options ...string) (names []string, err error) {
	quarantine, err := into.quarantine()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(quarantine)
	if err := r.packObjects(ctx, quarantine, input, options...); err != nil {
		return nil, err
	}
	if names, err = indexesIn(filepath.Join(quarantine, packsFolder)); err != nil {
		return nil, err
	}
	return names, into.install(quarantine)
}

// quarantine makes a folder in which packs wait to be shown.
func (r *Repo) quarantine() (string, error) {
	folder, err := os.MkdirTemp(r.in("objects"), quarantinePrefix+"pack-")
	if err != nil {
		return "", fmt.Errorf("make quarantine: %w", err)
	}
	if err := os.Mkdir(filepath.Join(folder, packsFolder), 0o755); err != nil {
		os.RemoveAll(folder)
		return "", fmt.Errorf("make quarantine: %w", err)
	}
	return folder, nil
}

// packObjects writes a pack into a quarantine. An empty one is left out.
func (r *Repo) packObjects(ctx context.Context, quarantine string, input io.Reader, options ...string) error {
	args := append([]string{"pack-objects", "-q", "--delta-base-offset", "--threads=1", "--non-empty"}, options...)
	c := r.Command(append(args, filepath.Join(quarantine, packsFolder, strings.TrimSuffix(packPrefix, "-")))...)
	// Git writes into its object folder and reads from the others.
	c.Setenv("GIT_OBJECT_DIRECTORY", quarantine)
	c.Setenv("GIT_ALTERNATE_OBJECT_DIRECTORIES", quotePath(r.in("objects")))
	c.Stdin = input
	if err := c.Run(ctx); err != nil {
		return fmt.Errorf("pack objects: %w", err)
	}
	return nil
}

// install brings the packs in quarantine to the disk and shows them.
func (r *Repo) install(quarantine string) error {
	folder := filepath.Join(quarantine, packsFolder)
	if err := errors.Join(r.store.before("show a pack"), syncTree(folder)); err != nil {
		return fmt.Errorf("take a pack out of quarantine: %w", err)
	}
	if err := r.release(folder); err != nil {
		return fmt.Errorf("take a pack out of quarantine: %w", err)
	}
	return nil
}

// linkPack lets a pack of one repository be one of another too. Its index comes last, when the rest
// is on the disk.
func linkPack(from, to *Repo, name string) error {
	folder := to.in("objects", packsFolder)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	link := func(suffix string) error {
		source, target := from.in("objects", packsFolder, name+suffix), filepath.Join(folder, name+suffix)
		err := os.Link(source, target)
		switch {
		case errors.Is(err, fs.ErrExist), suffix == ".rev" && errors.Is(err, fs.ErrNotExist):
			return nil // linked before, or there is none
		case err != nil:
			return copyDurably(source, target) // not on one file system, or one that cannot link
		}
		return nil // git has brought it to the disk when it wrote it
	}
	if err := errors.Join(link(".pack"), link(".rev"), syncPath(folder)); err != nil {
		return err
	}
	if err := from.store.before("link an index"); err != nil {
		return err
	}
	// A new pool gets its folder of packs here.
	return errors.Join(link(indexSuffix), syncFolders(folder, to.in("objects")))
}

// copyDurably makes a copy of a file that appears whole or not at all.
func copyDurably(source, target string) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.CreateTemp(filepath.Dir(target), "tmp_copy_")
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	err = errors.Join(err, out.Chmod(0o444), out.Sync(), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), target)
	}
	if err != nil {
		return errors.Join(err, removeFile(out.Name()))
	}
	return nil
}

// DropPromoted removes what the repository has of its own and the pool has too. It starts no git.
func (r *Repo) DropPromoted() error {
	own, err := r.HasOwnObjects()
	if err != nil || !own {
		return err
	}
	pool, err := r.Pool().git.openIndexes()
	if err != nil {
		return fmt.Errorf("drop what is in the pool: %w", err)
	}
	defer pool.close()
	packs, err := r.ownPacks()
	if err != nil {
		return fmt.Errorf("drop what is in the pool: %w", err)
	}
	for _, name := range packs {
		inPool, err := r.packIsIn(pool, name)
		if err == nil {
			err = r.store.before("drop a pack")
		}
		if err == nil && inPool {
			err = r.removePack(name)
		}
		if err != nil {
			return fmt.Errorf("drop what is in the pool: %w", err)
		}
	}
	loose, err := r.looseObjects()
	if err != nil {
		return fmt.Errorf("drop what is in the pool: %w", err)
	}
	for _, id := range loose {
		if !pool.hasHex(id) {
			continue
		}
		if err := r.removeLoose(id); err != nil {
			return fmt.Errorf("drop what is in the pool: %w", err)
		}
	}
	return nil
}

// packIsIn reports whether every object of one of the repository's own packs is in other packs too.
func (r *Repo) packIsIn(others packIndexes, name string) (bool, error) {
	x, err := openIndex(r.in("objects", packsFolder, name+indexSuffix))
	if err != nil {
		return false, err
	}
	defer x.close()
	for i := range x.count() {
		if !others.has(x.at(i)) {
			return false, nil
		}
	}
	return true, nil
}
