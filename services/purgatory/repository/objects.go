package repository

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"tendril.dev/lib/nostr"
)

const (
	// quarantinePrefix begins the names of folders below objects/ that hold a pack until it is
	// checked, pushPrefix those of receive-pack. Both are git's own, so that git's tools pass over
	// them and its housekeeping removes them when they are old.
	quarantinePrefix = "tmp_objdir-"
	pushPrefix       = quarantinePrefix + "incoming-"

	packFolder  = "pack" // below objects/
	indexSuffix = ".idx"
	// maxLacked bounds the objects that a pack lacks and that are looked for in all of the history.
	maxLacked = 10_000
	// cruftSuffix ends the name of the file that makes a pack one of objects that nothing reaches.
	cruftSuffix = ".mtimes"
)

// packSuffixes end the names of a pack's files. Git sees a pack by its index, the last.
var packSuffixes = []string{".pack", ".rev", indexSuffix}

var (
	// ErrBroken are objects that are there while something that they link to is not.
	ErrBroken = errors.New("objects that these link to are missing")
	// ErrBadPack is a stream that is no pack, or a pack that git refused: damaged, with faulty
	// objects, or with links to objects that are nowhere.
	ErrBadPack = errors.New("the pack is not acceptable")
	// ErrUnwanted is a sound pack in which there is nothing of what was wanted.
	ErrUnwanted = errors.New("the pack has none of the wanted objects")
)

// isID reports whether a name is that of an object in a repository of ours (SHA-1).
func isID(id string) bool { return len(id) == 40 && nostr.IsObjectID(id) }

// pack is a pack that git sees.
type pack struct {
	name  string // without suffix
	bytes int64
	cruft bool // of objects that nothing reaches
}

func (r *Repo) packs() (packs []pack, err error) {
	files, err := readDir(r.in("objects", packFolder))
	if err != nil {
		return nil, fmt.Errorf("look for packs: %w", err)
	}
	for _, file := range files {
		name, is := strings.CutSuffix(file.Name(), indexSuffix)
		info, err := os.Stat(r.in("objects", packFolder, name+".pack"))
		if !is || err != nil {
			continue
		}
		cruft := slices.ContainsFunc(files, func(f fs.DirEntry) bool { return f.Name() == name+cruftSuffix })
		packs = append(packs, pack{name, info.Size(), cruft})
	}
	return packs, nil
}

// Bytes is the size of the repository's packs.
func (r *Repo) Bytes() (bytes int64, err error) {
	packs, err := r.packs()
	for _, p := range packs {
		bytes += p.bytes
	}
	return bytes, err
}

// packedObjects counts the objects of all packs; what lies in several counts in each.
func (r *Repo) packedObjects() (objects int, err error) {
	packs, err := r.packs()
	for _, p := range packs {
		count, failed := countObjects(r.in("objects", packFolder, p.name+indexSuffix))
		objects, err = objects+count, errors.Join(err, failed)
	}
	return objects, err
}

// HasObjects reports whether there is any object. It starts no git.
func (r *Repo) HasObjects() (bool, error) {
	packs, err := r.packs()
	if len(packs) > 0 || err != nil {
		return len(packs) > 0, err
	}
	folders, err := readDir(r.in("objects"))
	if err != nil {
		return false, fmt.Errorf("look for objects: %w", err)
	}
	return slices.ContainsFunc(folders, func(folder fs.DirEntry) bool { return len(folder.Name()) == 2 }), nil
}

// Missing returns those of the object ids that are not in the repository, in the order given. It
// starts no git where there are no objects at all.
func (r *Repo) Missing(ctx context.Context, ids []string) ([]string, error) {
	if has, err := r.HasObjects(); err != nil || !has {
		return ids, err
	}
	return r.missing(ctx, ids)
}

// missing looks in another folder of objects if env names one.
func (r *Repo) missing(ctx context.Context, ids []string, env ...string) ([]string, error) {
	// Git would take an id of another length for the name of a branch.
	ask := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !isID(id) })
	if len(ask) == 0 {
		return ids, nil
	}
	look := r.reading("cat-file", "--buffer", "--batch-check=%(objectname)")
	look.env = env
	out, err := look.ask(ctx, strings.Join(ask, "\n")+"\n")
	if err != nil {
		return nil, fmt.Errorf("look up objects: %w", err)
	}
	have := map[string]bool{} // of others there are more words in the line
	for line := range strings.Lines(out) {
		have[strings.TrimSpace(line)] = true
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return have[id] }), nil
}

// Fsck lets git look through the repository: all that its references reach must be there, and every
// object must be whole. A fault is an *[Error].
func (r *Repo) Fsck(ctx context.Context) error {
	c := r.reading("fsck", "--full", "--no-dangling", "--no-reflogs", "--no-progress")
	c.config = forgive("fsck.")
	return c.Run(ctx)
}

// Take takes a pack, which may be thin, of a stranger's server into the repository. It is indexed
// and checked in quarantine, where no reader sees it: every object must be sound, every link of
// every object must lead to an object that is in the pack or in the repository, the pack must bring
// what is wanted of it (brings; else ErrBadPack), and one of the wanted objects must have come with it
// (else ErrUnwanted). Then it appears at once, durably and whole, for the history of what is wanted is
// in it.
func (l *Leased) Take(ctx context.Context, pack *Spool, wanted []string) error {
	quarantine, hash, err := l.quarantine(ctx, pack, Command{})
	defer os.RemoveAll(quarantine)
	if err != nil {
		return err
	}
	missing, err := l.missing(ctx, wanted, "GIT_OBJECT_DIRECTORY="+quarantine)
	if err == nil && len(missing) == len(wanted) {
		err = ErrUnwanted
	}
	if err == nil {
		came := slices.DeleteFunc(slices.Clone(wanted), func(id string) bool { return slices.Contains(missing, id) })
		err = l.brings(ctx, quarantine, pack, came)
	}
	from, to := filepath.Join(quarantine, packFolder), l.in("objects", packFolder)
	if err = cmp.Or(err, l.MayWrite(ctx)); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("take a pack out of quarantine: %w", err)
	}
	name := "pack-" + hash
	for _, suffix := range packSuffixes {
		err := os.Rename(filepath.Join(from, "new"+suffix), filepath.Join(to, name+suffix))
		if err != nil && !(suffix == ".rev" && errors.Is(err, fs.ErrNotExist)) { // older gits write none
			return fmt.Errorf("take a pack out of quarantine: %w", err)
		}
	}
	return syncPaths(to, l.in("objects"))
}

// Brings is nil where a client's pack brings what these objects reach, as brings. ErrBadPack, with an
// *[Error] where git refuses the pack: it does not. ErrBusy: no process was free within the patience;
// others wait for the lock meanwhile.
func (l *Locked) Brings(ctx context.Context, pack *Spool, client string, patience time.Duration, maxBytes int64,
	ids []string) error {
	by := Command{Client: client, Patience: patience, MaxFile: maxBytes, serves: true}
	quarantine, _, err := l.quarantine(ctx, pack, by)
	defer os.RemoveAll(quarantine)
	if err != nil {
		return err
	}
	return l.brings(ctx, quarantine, pack, ids)
}

// quarantine has git index and check a pack in a folder below objects/, which the caller removes, and
// gives the pack's hash. ErrBadPack: git refuses it. by says whose it is, and how long and how large
// it may be.
func (l *Leased) quarantine(ctx context.Context, pack *Spool, by Command) (folder, hash string, err error) {
	folder, err = os.MkdirTemp(l.in("objects"), quarantinePrefix+"pack-")
	if err == nil {
		err = os.Mkdir(filepath.Join(folder, packFolder), 0o755)
	}
	if err != nil {
		return folder, "", fmt.Errorf("make a quarantine for a pack: %w", err)
	}
	index := l.writing("index-pack", "--stdin", "--fix-thin", "--strict="+strings.Join(forgive(""), ","), "--threads=2",
		filepath.Join(folder, packFolder, "new.pack"))
	index.Stdin, index.Pack, index.Time = pack.Reader(0), pack.Size(), l.Store.PackTime
	index.Client, index.Patience, index.MaxFile, index.serves = by.Client, by.Patience, by.MaxFile, by.serves
	var said strings.Builder
	index.Stdout = &said
	err = index.Run(ctx)
	if refused(err) || errors.Is(err, ErrTooLong) {
		err = fmt.Errorf("%w: %w", ErrBadPack, err)
	}
	// Behind its own line git repeats what follows the pack: the hash becomes the name of a file.
	line, _, _ := strings.Cut(said.String(), "\n")
	hash = strings.TrimPrefix(line, "pack\t")
	if err == nil && !isID(hash) {
		err = fmt.Errorf("git index-pack says %q, want a hash", OneLine(line))
	}
	return folder, hash, err
}

// brings reports whether a pack in quarantine brings all that some objects reach and no reference does;
// else ErrBadPack. What only lies in the repository may be what its owner has removed: who knows no
// more of it than an id must not get it by building on it.
func (l *Leased) brings(ctx context.Context, quarantine string, pack *Spool, ids []string) error {
	if has, err := l.HasObjects(); err != nil || !has {
		return err // nothing lies there
	}
	ctx, done := l.During(ctx) // it may be long, and keeps the shard meanwhile
	defer done()
	file, err := os.Open(filepath.Join(quarantine, packFolder, "new"+indexSuffix))
	if err != nil {
		return fmt.Errorf("look what a pack brings: %w", err)
	}
	defer file.Close()
	index, err := readIndex(file)
	if err != nil {
		return err
	}
	end, err := index.endOfSent(pack.Reader(0))
	if err != nil {
		return err
	}
	lacks, failed := map[string]bool{}, error(nil)
	walk := l.reading("rev-list", "--objects", "--no-object-names", "--stdin", "--not", "--all")
	walk.env = []string{"GIT_OBJECT_DIRECTORY=" + quarantine, alternate(l.Repo)}
	walk.Stdin = strings.NewReader(strings.Join(ids, "\n") + "\n")
	walk.Stdout = &lines{each: func(id string) {
		n, has, err := index.find(id)
		if has {
			var place int64
			place, err = index.place(n)
			has = place < end
		}
		if failed = cmp.Or(failed, err); !has && len(lacks) <= maxLacked {
			lacks[id] = true
		}
	}}
	err = walk.Run(ctx)
	if refused(err) {
		return fmt.Errorf("%w: %w", ErrBadPack, err)
	}
	if err = cmp.Or(err, failed); err != nil || len(lacks) == 0 {
		return err
	}
	if len(lacks) <= maxLacked { // git passes over what it would take long to find: history has some of that
		all := l.reading("rev-list", "--objects", "--no-object-names", "--all")
		all.Stdout = &lines{each: func(id string) { delete(lacks, id) }}
		if err := all.Run(ctx); err != nil || len(lacks) == 0 {
			return err
		}
	}
	return fmt.Errorf("%w: no reference reaches all that it builds on", ErrBadPack)
}

// lines calls a function for each line that git prints.
type lines struct {
	each func(line string)
	rest []byte
}

// Write never fails.
func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			l.rest = bytes.Clone(rest)
			return len(p), nil
		}
		l.each(string(line))
		l.rest = rest
	}
}

// Share brings objects, with all that they reach, from another repository of the same maintainer group.
// Where this one is empty the packs of the other are linked, so that they are on the disk once; else
// git copies what is missing. ErrBroken: the other lacks a part.
func (l *Locked) Share(ctx context.Context, from *Repo, ids []string) error {
	return l.share(ctx, from, ids, true, 0)
}

// Copy is Share from a repository of another group: no other object of that is ever shown through this
// one. What would take more than most bytes is not copied, and LimitReached says so of the error. 0:
// any number.
func (l *Locked) Copy(ctx context.Context, from *Repo, ids []string, most int64) error {
	return l.share(ctx, from, ids, false, most)
}

func (l *Locked) share(ctx context.Context, from *Repo, ids []string, group bool, most int64) error {
	if err := l.MayWrite(ctx); err != nil {
		return err
	}
	folder := l.in("objects", packFolder)
	has, err := l.HasObjects()
	err = cmp.Or(err, os.MkdirAll(folder, 0o755))
	if err == nil && !has && group {
		err = l.linkPacks(from)
	}
	var missing []string
	if err == nil {
		missing, err = l.Missing(ctx, ids)
	}
	if err == nil && len(missing) > 0 {
		err = l.copyFrom(ctx, from, missing, most)
	}
	if err = cmp.Or(err, syncPaths(folder, l.in("objects"))); err != nil {
		return fmt.Errorf("share objects: %w", err)
	}
	return nil
}

// linkPacks makes the packs of another repository packs of this one, which has none. Packs of what
// nothing reaches there stay there. All come at once or none does, for then git copies: with a part of
// them a commit could be here without what it reaches. None does where the other's housekeeping has
// brought a new pack meanwhile, because that removes older ones next.
func (l *Locked) linkPacks(from *Repo) error {
	folder, err := os.MkdirTemp(l.in("objects"), quarantinePrefix+"link-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	packs, err := from.packs()
	for _, p := range packs {
		for _, suffix := range packSuffixes {
			if p.cruft {
				break
			}
			err := os.Link(from.in("objects", packFolder, p.name+suffix), filepath.Join(folder, p.name+suffix))
			if err != nil && !(suffix == ".rev" && errors.Is(err, fs.ErrNotExist)) { // older gits write none
				return nil // it has gone, or this file system cannot link
			}
		}
	}
	now, failed := from.packs()
	if err = cmp.Or(err, failed); err != nil || slices.ContainsFunc(now, func(p pack) bool { return !slices.Contains(packs, p) }) {
		return err
	}
	if err = cmp.Or(os.Chmod(folder, 0o755), syncPaths(folder)); err == nil {
		_ = syscall.Rename(folder, l.in("objects", packFolder)) // it fails where a fetch has just brought a pack
	}
	return err
}

// copyFrom lets git pack objects of the other folder, with what they reach and no reference here
// does. It needs no shell, as git fetch would between folders.
func (l *Locked) copyFrom(ctx context.Context, from *Repo, ids []string, most int64) error {
	refs, err := l.Refs()
	if err != nil {
		return err
	}
	named := slices.Collect(maps.Values(refs.ByName))
	c := l.writing("pack-objects", "--revs", "--delta-base-offset", "-q", l.in("objects", packFolder, "pack"))
	c.env, c.MaxFile = []string{alternate(from)}, most
	_, err = c.ask(ctx, strings.Join(slices.Concat(ids, []string{"--not"}, named), "\n")+"\n")
	if err != nil && l.MayWrite(ctx) == nil {
		err = errors.Join(err, l.sweepFolder("objects/pack", 0)) // what git has begun may be large
	}
	return broken(err)
}

// alternate lets a command see the objects of a repository too.
func alternate(of *Repo) string {
	// Git reads a path that begins with a quote as a C string.
	path := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(of.in("objects"))
	return "GIT_ALTERNATE_OBJECT_DIRECTORIES=\"" + path + "\""
}

// broken is the error of a command that found something missing.
func broken(err error) error {
	if refused(err) {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return err
}
