package repository

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"tendril.dev/services/purgatory/slots"
)

// Quarantine is a push whose pack git has checked and that nobody sees yet.
type Quarantine struct {
	repo     *Repo
	folder   string
	client   string
	patience time.Duration
}

// Quarantine takes the pack of a push, which may be thin, checked as strictly as receive-pack checks
// it. client is whose share of the processes of pushes it takes, and patience how long it waits for
// them. Drop must be called. A pack that is at fault is ErrBadPack; receive-pack says why.
func (r *Repo) Quarantine(ctx context.Context, pack io.Reader, client string, patience time.Duration) (*Quarantine, error) {
	// The name is as receive-pack's own, so that SweepPushes removes what a killed process left.
	folder, err := os.MkdirTemp(r.in("objects"), quarantinePrefix+"incoming-")
	if err != nil {
		return nil, fmt.Errorf("make quarantine: %w", err)
	}
	q := &Quarantine{repo: r, folder: folder, client: client, patience: patience}
	if err := os.Mkdir(filepath.Join(folder, packsFolder), 0o755); err != nil {
		return nil, errors.Join(fmt.Errorf("make quarantine: %w", err), q.Drop())
	}
	c := q.command("index-pack", "--stdin", "--fix-thin", strictOption(), "--threads=2")
	c.Time = r.store.packTime
	c.Stdin = pack
	if err := c.Run(ctx); err != nil {
		return nil, errors.Join(err, q.Drop())
	}
	return q, nil
}

// command prepares a git command that sees what is in quarantine beside what is in the repository.
func (q *Quarantine) command(args ...string) *Command {
	c := q.repo.Command(args...)
	c.Class, c.Client, c.Patience = slots.Push, q.client, q.patience
	c.Setenv("GIT_OBJECT_DIRECTORY", q.folder)
	c.Setenv("GIT_ALTERNATE_OBJECT_DIRECTORIES", quotePath(q.repo.in("objects")))
	return c
}

// Drop removes what was not released.
func (q *Quarantine) Drop() error {
	if err := os.RemoveAll(q.folder); err != nil {
		return fmt.Errorf("remove a quarantine: %w", err)
	}
	return nil
}

// Release moves the pack into the repository, durably. Nothing refers to it yet: if nothing comes to,
// takeBack removes it again, unless the same pack was there before. Nobody else may write to the
// repository until then.
func (q *Quarantine) Release() (takeBack func() error, err error) {
	packs, err := os.ReadDir(filepath.Join(q.folder, packsFolder))
	if err != nil {
		return nil, fmt.Errorf("take a push out of quarantine: %w", err)
	}
	var fresh []string
	for _, pack := range packs {
		path := q.repo.in("objects", packsFolder, pack.Name())
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			fresh = append(fresh, path)
		}
	}
	if err := q.repo.release(filepath.Join(q.folder, packsFolder)); err != nil {
		return nil, fmt.Errorf("take a push out of quarantine: %w", err)
	}
	// The index goes first: git sees a pack by its index.
	slices.SortFunc(fresh, func(a, b string) int { return releaseOrder(filepath.Base(b)) - releaseOrder(filepath.Base(a)) })
	return func() error {
		for _, path := range fresh {
			if err := removeFile(path); err != nil {
				return fmt.Errorf("take a push back: %w", err)
			}
		}
		return nil
	}, nil
}

// IDs returns the ids of the objects that begin at these places of the pack, in the order of their
// places. What is no such place is passed over.
func (q *Quarantine) IDs(ctx context.Context, offsets []int64) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(q.folder, packsFolder, packPrefix+"*"+indexSuffix))
	if err != nil || len(names) != 1 {
		return nil, fmt.Errorf("look for the index of a push: %d found (%w)", len(names), err)
	}
	index, err := os.Open(names[0])
	if err != nil {
		return nil, fmt.Errorf("read the index of a push: %w", err)
	}
	defer index.Close()
	wanted := make(map[int64]bool, len(offsets))
	for _, offset := range offsets {
		wanted[offset] = true
	}
	type place struct {
		offset int64
		id     string
	}
	var found []place
	c := q.command("show-index")
	c.Stdin = index
	err = q.eachLine(ctx, c, func(line []byte) bool {
		at, rest, _ := bytes.Cut(line, []byte(" "))
		offset, err := strconv.ParseInt(string(at), 10, 64)
		if err == nil && wanted[offset] && len(rest) >= idLength {
			found = append(found, place{offset, string(rest[:idLength])})
		}
		return len(found) < len(wanted)
	})
	if err != nil {
		return nil, fmt.Errorf("read the index of a push: %w", err)
	}
	slices.SortFunc(found, func(a, b place) int { return cmp.Compare(a.offset, b.offset) })
	ids := make([]string, len(found))
	for i, f := range found {
		ids[i] = f.id
	}
	return ids, nil
}

// Files calls look with the content of each of these objects that is a file of at most largest
// bytes, until look returns false. It does not keep the bytes.
func (q *Quarantine) Files(ctx context.Context, ids []string, largest int64, look func(id string, content []byte) bool) error {
	if len(ids) == 0 {
		return nil
	}
	c := q.command("cat-file", "--buffer", "--batch")
	c.Stdin = strings.NewReader(strings.Join(ids, "\n") + "\n")
	var content []byte
	err := q.each(ctx, c, func(out *bufio.Reader) (bool, error) {
		header, err := out.ReadString('\n')
		if err != nil {
			return false, err
		}
		var id, kind string
		var size int64
		if _, err := fmt.Sscanf(header, "%40s %s %d", &id, &kind, &size); err != nil {
			return true, nil // "… missing"
		}
		if kind != "blob" || size > largest {
			_, err := io.CopyN(io.Discard, out, size+1)
			return true, err
		}
		content = slices.Grow(content[:0], int(size)+1)[:size+1]
		if _, err := io.ReadFull(out, content); err != nil {
			return false, err
		}
		return look(id, content[:size]), nil
	})
	if err != nil {
		return fmt.Errorf("read files of a push: %w", err)
	}
	return nil
}

// Paths returns a path of each of these files, with slashes, in what a push makes visible by new tips:
// that in the tips' own trees where there is one, otherwise that in an older commit. A file has none
// that was visible before, or that no tip leads to.
func (q *Quarantine) Paths(ctx context.Context, files, tips []string) (map[string]string, error) {
	paths := map[string]string{}
	wanted := make(map[string]bool, len(files))
	for _, id := range files {
		wanted[id] = true
	}
	note := func(id, path []byte) bool {
		if wanted[string(id)] && paths[string(id)] == "" {
			paths[string(id)] = string(path)
		}
		return len(paths) < len(wanted)
	}
	c := q.command("rev-list", "--objects", "--in-commit-order", "--stdin", "--not", "--all")
	c.Stdin = strings.NewReader(strings.Join(tips, "\n") + "\n")
	err := q.eachLine(ctx, c, func(line []byte) bool {
		id, path, _ := bytes.Cut(line, []byte(" "))
		return note(id, path)
	})
	if err != nil {
		return nil, fmt.Errorf("look for the paths of files: %w", err)
	}
	return paths, nil
}

// eachLine runs a command and calls look with each line that it prints, until look returns false.
func (q *Quarantine) eachLine(ctx context.Context, c *Command, look func(line []byte) bool) error {
	return q.each(ctx, c, func(out *bufio.Reader) (bool, error) {
		line, err := out.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			for errors.Is(err, bufio.ErrBufferFull) { // a path that is too long for a name
				_, err = out.ReadSlice('\n')
			}
			return true, err
		}
		if err != nil {
			return false, err
		}
		return look(bytes.TrimSuffix(line, []byte("\n"))), nil
	})
}

// each runs a command and lets next read what it prints, until next returns false or the output
// ends. A command that is not needed any more is ended, which is no error.
func (q *Quarantine) each(ctx context.Context, c *Command, next func(out *bufio.Reader) (more bool, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, to := io.Pipe()
	c.Stdout = to
	ended := make(chan error, 1)
	go func() {
		err := c.Run(ctx)
		to.CloseWithError(cmp.Or(err, io.EOF))
		ended <- err
	}()
	out := bufio.NewReaderSize(from, 64<<10)
	more, err := true, error(nil)
	for more && err == nil {
		more, err = next(out)
	}
	from.Close()
	cancel()
	failed := <-ended
	switch {
	case errors.Is(err, io.EOF):
		return failed
	case err != nil:
		return errors.Join(err, failed)
	}
	return nil
}

// EmptyPack is a pack without objects.
func EmptyPack() []byte {
	sum, _ := hex.DecodeString("029d08823bd8a8eab510ad6ac75c823cfd3ed31e")
	return append([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x00"), sum...)
}
