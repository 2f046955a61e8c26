package repository

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// quarantinePrefix begins the names of folders below objects/ that hold a pack until it is
	// checked, pushPrefix those of receive-pack. Both are git's own, so that git's tools pass over
	// them and its housekeeping removes them when they are old.
	quarantinePrefix = "tmp_objdir-"
	pushPrefix       = quarantinePrefix + "incoming-"

	// headerBytes is the length of a pack's header.
	headerBytes = 12
	// memoryOfPack is how much of a pack is kept in memory while it arrives.
	memoryOfPack = 256 << 10
)

// ErrBadPack is a stream that is no pack, or a pack that git refused: damaged, with faulty objects,
// or with links to objects that are nowhere.
var ErrBadPack = errors.New("the pack is not acceptable")

// ErrUnwanted is a sound pack in which there is nothing of what was wanted.
var ErrUnwanted = errors.New("the pack has none of the wanted objects")

// StorePack takes a pack, which may be thin, into the repository. It is indexed and checked in
// quarantine, where no reader sees it: every object must be sound, and every link of every object
// must lead to an object that is in the pack or in the repository. Then it appears at once,
// durably. A pack without objects changes nothing. bytes is what was read of the stream.
//
// The error is ErrBadPack where the pack is at fault; one that came from reading is in the chain
// too.
func (r *Repo) StorePack(ctx context.Context, pack io.Reader) (bytes int64, objects int, err error) {
	return r.storePack(ctx, pack, nil)
}

// StoreWanted is StorePack for what a stranger's server sends: a pack that has not one of the
// wanted objects never leaves quarantine, and the error is ErrUnwanted. One that has some of them
// is taken whole, for the history of those is in it.
func (r *Repo) StoreWanted(ctx context.Context, pack io.Reader, wanted []string) (bytes int64, objects int, err error) {
	return r.storePack(ctx, pack, func(q *quarantine) error {
		came, err := q.has(ctx, wanted)
		if err == nil && !came {
			err = ErrUnwanted
		}
		return err
	})
}

// storePack reads a whole pack before git sees it: a server that sends slowly keeps no process.
func (r *Repo) storePack(ctx context.Context, pack io.Reader, check func(*quarantine) error) (bytes int64, objects int, err error) {
	arrived := r.Spool(memoryOfPack, func(int64) error { return nil })
	defer arrived.Close()
	if _, err := io.Copy(arrived, pack); err != nil {
		return arrived.Size(), 0, fmt.Errorf("store pack: %w", err)
	}
	if objects, err = objectsOf(arrived.Reader()); err == nil && objects > 0 {
		err = r.takePack(ctx, arrived.Reader(), arrived.Size(), check)
	}
	if err != nil {
		return arrived.Size(), 0, fmt.Errorf("store pack: %w", err)
	}
	return arrived.Size(), objects, nil
}

// objectsOf reads how many objects a pack says that it has.
func objectsOf(pack io.Reader) (int, error) {
	header := make([]byte, headerBytes)
	if _, err := io.ReadFull(pack, header); err != nil || string(header[:4]) != "PACK" {
		return 0, fmt.Errorf("%w: it does not begin as a pack does", ErrBadPack)
	}
	return int(binary.BigEndian.Uint32(header[8:])), nil
}

// quarantine is a folder in which packs wait until they are checked.
type quarantine struct {
	repo   *Repo
	folder string
}

// takePack lets git check a pack in quarantine, and then check, if it is set, before the pack
// appears. size is its length; 0: it comes from a repository of ours, and the caller has the slot
// of the process.
func (r *Repo) takePack(ctx context.Context, pack io.Reader, size int64, check func(*quarantine) error) error {
	folder, err := os.MkdirTemp(r.in("objects"), quarantinePrefix+"pack-")
	if err != nil {
		return fmt.Errorf("make quarantine: %w", err)
	}
	defer os.RemoveAll(folder)
	q := &quarantine{repo: r, folder: folder}
	if err := q.index(ctx, pack, size); err != nil {
		return err
	}
	if check != nil {
		if err := check(q); err != nil {
			return err
		}
	}
	if err := r.mayWrite(ctx); err != nil {
		return err
	}
	if err := q.release(); err != nil {
		return fmt.Errorf("take a pack out of quarantine: %w", err)
	}
	return nil
}

func (q *quarantine) index(ctx context.Context, pack io.Reader, size int64) error {
	if err := os.Mkdir(filepath.Join(q.folder, packFolder), 0o755); err != nil {
		return fmt.Errorf("make quarantine: %w", err)
	}
	c := q.repo.Command("index-pack", "--stdin", "--fix-thin", strictOption(), "--threads=2")
	c.held, c.Pack, c.Time = size == 0, size, q.repo.store.packTime
	c.Setenv("GIT_OBJECT_DIRECTORY", q.folder)
	c.Setenv("GIT_ALTERNATE_OBJECT_DIRECTORIES", quotePath(q.repo.in("objects")))
	c.Stdin = pack
	err := c.Run(ctx)
	failure, failed := errors.AsType[*Error](err)
	if failed && (isExit(failure.Err) && !Unwritable(err) || errors.Is(err, ErrTooLong)) {
		return fmt.Errorf("%w: %w", ErrBadPack, err)
	}
	return err
}

// has reports whether any of the objects came with the pack: what is in the repository already is
// not looked at.
func (q *quarantine) has(ctx context.Context, ids []string) (bool, error) {
	types, err := q.repo.types(ctx, ids, func(args ...string) *Command {
		c := q.repo.Command(args...)
		c.Setenv("GIT_OBJECT_DIRECTORY", q.folder)
		return c
	})
	return len(types) > 0, err
}

// release moves a checked pack into the repository, its index last: git sees a pack by its index.
func (q *quarantine) release() error {
	from, to := filepath.Join(q.folder, packFolder), q.repo.in("objects", packFolder)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(from, "pack-*.pack"))
	if err != nil {
		return err
	}
	for _, name := range names {
		name = strings.TrimSuffix(filepath.Base(name), ".pack")
		if err := move(from, to, name); err != nil {
			return err
		}
	}
	return syncFolders(to, q.repo.in("objects"))
}

// move moves the files of a pack. If its index cannot follow, what went before is taken back,
// unless the same pack was there already.
func move(from, to, name string) error {
	var moved []string
	for _, suffix := range []string{".pack", ".rev", indexSuffix} {
		err := os.Rename(filepath.Join(from, name+suffix), filepath.Join(to, name+suffix))
		if suffix == ".rev" && errors.Is(err, os.ErrNotExist) {
			continue // older gits write none
		}
		if err == nil {
			moved = append(moved, suffix)
			continue
		}
		if info, failed := os.Lstat(filepath.Join(to, name+indexSuffix)); failed != nil || !info.Mode().IsRegular() {
			for _, suffix := range slices.Backward(moved) {
				err = errors.Join(err, removeFile(filepath.Join(to, name+suffix)))
			}
		}
		return err
	}
	return nil
}

// quotePath writes a path as git reads it in a list of alternates: one that begins with a quote is
// taken as a C string.
func quotePath(path string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(path) + `"`
}
