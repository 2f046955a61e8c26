package repository

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tendril.dev/services/purgatory/packscan"
	"tendril.dev/services/purgatory/slots"
	"tendril.dev/services/purgatory/spool"
)

const (
	// quarantinePrefix begins the names of folders below objects/ that hold a pack until it is
	// checked. It is git's own for the same purpose, so that git's tools pass over them too.
	quarantinePrefix = "tmp_objdir-"

	// maxObjects bounds the objects that a pack may have. The largest histories that people keep in
	// git have half as many.
	maxObjects = 20_000_000
	// memoryOfPack is how much of a pack is kept in memory while it arrives.
	memoryOfPack = 256 << 10
)

// ErrBadPack is a stream that is no pack, or a pack that git refused: damaged, with faulty objects,
// or with links to objects that are nowhere.
var ErrBadPack = errors.New("the pack is not acceptable")

// ErrUnwanted is a sound pack in which there is nothing of what was wanted.
var ErrUnwanted = errors.New("the pack has none of the wanted objects")

// ReadPack reads a pack that somebody sends into a spool, and looks through it meanwhile: one that
// has too many or too large objects, or is no pack, is ErrBadPack, with an *packscan.Error that
// says why. client is whose share of the processors it takes, with the class of the work; none is
// held while from is waited for. watcher sees the objects; it may be nil.
func (s *Store) ReadPack(ctx context.Context, class slots.Class, client string, from io.Reader, into *spool.Spool, watcher packscan.Watcher) (packscan.Summary, error) {
	turns := &turnReader{from: io.TeeReader(from, into), take: func() (func(), error) { return s.scans.Acquire(ctx, class, client, 1) }}
	defer turns.give()
	summary, err := packscan.Scan(turns, s.packs, watcher)
	if _, bad := errors.AsType[*packscan.Error](err); bad {
		return summary, fmt.Errorf("%w: %w", ErrBadPack, err)
	}
	if err != nil {
		return summary, err
	}
	turns.give()
	if _, err := io.Copy(into, from); err != nil { // what git passes over behind the pack
		return summary, err
	}
	return summary, nil
}

// turnReader gives its turn back while it waits for its source.
type turnReader struct {
	from    io.Reader
	take    func() (release func(), err error)
	release func()
}

// Read reads without a turn, and returns with one.
func (t *turnReader) Read(p []byte) (int, error) {
	t.give()
	n, err := t.from.Read(p)
	if n == 0 && err != nil {
		return 0, err
	}
	release, refused := t.take()
	if refused != nil {
		return 0, refused
	}
	t.release = release
	return n, err
}

func (t *turnReader) give() {
	if t.release != nil {
		t.release()
		t.release = nil
	}
}

// StorePack takes a pack, which may be thin, into the repository. It is indexed and checked in
// quarantine, where nobody sees it: every object must be sound, and every link of every object must
// lead to an object that is in the pack or in the repository. Then it appears at once, durably. A
// pack without objects changes nothing. bytes is what was read of the stream.
//
// The error is ErrBadPack where the pack is at fault; one that came from reading is in the chain
// too.
func (r *Repo) StorePack(ctx context.Context, pack io.Reader) (bytes int64, objects int, err error) {
	return r.storePack(ctx, pack, intake{})
}

// StoreWanted is StorePack for what a stranger's server sends: a pack that has not one of the
// wanted objects never leaves quarantine, and the error is ErrUnwanted. One that has some of them
// is taken whole, for the history of those is in it.
func (r *Repo) StoreWanted(ctx context.Context, pack io.Reader, wanted []string) (bytes int64, objects int, err error) {
	return r.storePack(ctx, pack, intake{selective: true, wanted: wanted})
}

// intake is how a pack is taken.
type intake struct {
	selective bool     // only if it has one of the wanted objects
	wanted    []string // object ids
	slotHeld  bool     // by the caller, for the git processes; it comes from a repository of ours
}

func (r *Repo) storePack(ctx context.Context, pack io.Reader, how intake) (int64, int, error) {
	counted := &countingReader{from: pack}
	arrived := &spool.Spool{Memory: memoryOfPack, Scratch: r.Scratch}
	defer arrived.Close()
	objects, whole, err := r.takeIn(ctx, counted, arrived, how)
	if err != nil {
		return counted.n, 0, fmt.Errorf("store pack: %w", err)
	}
	if objects == 0 {
		return counted.n, 0, nil
	}
	quarantine, err := os.MkdirTemp(r.in("objects"), quarantinePrefix+"pack-")
	if err != nil {
		return counted.n, 0, fmt.Errorf("store pack: make quarantine: %w", err)
	}
	defer os.RemoveAll(quarantine)
	if err := r.indexPack(ctx, quarantine, whole, how.slotHeld); err != nil {
		return counted.n, 0, fmt.Errorf("store pack: %w", err)
	}
	if how.selective {
		// Only the quarantine is looked into: what is in the repository already did not come with
		// this pack.
		came, err := hasAny(filepath.Join(quarantine, packsFolder), how.wanted)
		if err != nil {
			return counted.n, 0, fmt.Errorf("store pack: %w", err)
		}
		if !came {
			return counted.n, 0, fmt.Errorf("store pack: %w", ErrUnwanted)
		}
	}
	if err := r.release(filepath.Join(quarantine, "pack")); err != nil {
		return counted.n, 0, fmt.Errorf("store pack: take it out of quarantine: %w", err)
	}
	return counted.n, objects, nil
}

// takeIn returns the objects that a pack has, and the pack itself. One from outside has arrived in
// whole and been looked through by then: a server that sends slowly keeps no git process.
func (r *Repo) takeIn(ctx context.Context, pack io.Reader, arrived *spool.Spool, how intake) (objects int, whole io.Reader, err error) {
	if how.slotHeld {
		header := make([]byte, packscan.HeaderBytes)
		n, err := io.ReadFull(pack, header)
		if objects, noPack := packscan.Objects(header[:n], maxObjects); noPack == nil {
			return objects, io.MultiReader(bytes.NewReader(header), pack), nil
		} else if err == nil {
			err = noPack
		}
		return 0, nil, fmt.Errorf("%w: read its header: %w", ErrBadPack, err)
	}
	summary, err := r.store.ReadPack(ctx, slots.Work, "", pack, arrived, nil)
	if err != nil {
		return 0, nil, err
	}
	return summary.Objects, arrived.Reader(), nil
}

func (r *Repo) indexPack(ctx context.Context, quarantine string, pack io.Reader, slotHeld bool) error {
	if err := os.Mkdir(filepath.Join(quarantine, "pack"), 0o755); err != nil {
		return fmt.Errorf("make quarantine: %w", err)
	}
	c := r.Command("index-pack", "--stdin", "--fix-thin", strictOption(), "--threads=2")
	c.held, c.Time = slotHeld, r.store.packTime
	c.Setenv("GIT_OBJECT_DIRECTORY", quarantine)
	c.Setenv("GIT_ALTERNATE_OBJECT_DIRECTORIES", quotePath(r.in("objects")))
	c.Stdin = pack
	err := c.Run(ctx)
	failure, failed := errors.AsType[*Error](err)
	if failed && (isExit(failure.Err) && !Unwritable(err) || errors.Is(err, ErrTooLong)) {
		return fmt.Errorf("%w: %w", ErrBadPack, err)
	}
	return err
}

// release moves a checked pack into the repository, its index last: git sees a pack by its index.
func (r *Repo) release(from string) error {
	files, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(files))
	for _, file := range files {
		names = append(names, file.Name())
	}
	slices.SortFunc(names, func(a, b string) int { return releaseOrder(a) - releaseOrder(b) })
	to := r.in("objects", "pack")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return releaseOrder(name) < 0 })
	for i, name := range names {
		if err := os.Rename(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return errors.Join(err, takeBack(to, names[:i]))
		}
	}
	return syncFolders(to, r.in("objects"))
}

// takeBack removes the files of a pack whose index could not follow. If there is an index, the same
// pack was there before, and stays.
func takeBack(folder string, names []string) error {
	for _, name := range names {
		index := strings.TrimSuffix(name, filepath.Ext(name)) + ".idx"
		if info, err := os.Lstat(filepath.Join(folder, index)); err == nil && info.Mode().IsRegular() {
			continue
		}
		if err := removeFile(filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	return nil
}

// releaseOrder is the place of a file in the order of release, or -1 for what stays behind.
func releaseOrder(name string) int {
	switch {
	case !strings.HasPrefix(name, "pack-"):
		return -1
	case strings.HasSuffix(name, ".pack"):
		return 0
	case strings.HasSuffix(name, ".rev"):
		return 1
	case strings.HasSuffix(name, ".idx"):
		return 2
	}
	return -1
}

// quotePath writes a path as git reads it in a list of alternates: one that begins with a quote is
// taken as a C string.
func quotePath(path string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(path) + `"`
}

type countingReader struct {
	from io.Reader
	n    int64
}

// Read counts what it reads.
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	return n, err
}
