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
	"os"
	"path/filepath"
	"slices"
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

// Quarantine takes the pack of a push, which may be thin, checked as strictly as receive-pack
// checks it. client is whose share of the processes of pushes it takes, and patience how long it
// waits for them. Drop must be called. A pack that is at fault is ErrBadPack; receive-pack says
// why.
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

// Release moves the pack into the repository, durably. Nothing refers to it yet.
func (q *Quarantine) Release() error {
	if err := q.repo.release(filepath.Join(q.folder, packsFolder)); err != nil {
		return fmt.Errorf("take a push out of quarantine: %w", err)
	}
	return nil
}

// index opens the index of the pack. close must be called.
func (q *Quarantine) index() (*packIndex, error) {
	folder := filepath.Join(q.folder, packsFolder)
	names, err := indexesIn(folder)
	if err != nil {
		return nil, err
	}
	if len(names) != 1 {
		return nil, fmt.Errorf("look for the index of a push: there are %d", len(names))
	}
	return openIndex(filepath.Join(folder, names[0]+indexSuffix))
}

// Has reports whether all these objects are in quarantine or in the repository.
func (q *Quarantine) Has(ctx context.Context, ids []string) (bool, error) {
	index, err := q.index()
	if err != nil {
		return false, err
	}
	defer index.close()
	elsewhere := slices.DeleteFunc(slices.Clone(ids), packIndexes{index}.hasHex)
	missing, err := q.repo.Missing(ctx, elsewhere)
	return len(missing) == 0, err
}

// IDs returns the ids of the objects that begin at these places of the pack, which are in order, in
// the order of their places. What is no such place is passed over.
func (q *Quarantine) IDs(offsets []int64) ([]string, error) {
	index, err := q.index()
	if err != nil {
		return nil, err
	}
	defer index.close()
	ids := make([]string, len(offsets))
	for i := range index.count() {
		if at, is := slices.BinarySearch(offsets, index.offset(i)); is {
			ids[at] = hex.EncodeToString(index.at(i))
		}
	}
	return slices.DeleteFunc(ids, func(id string) bool { return id == "" }), nil
}

// File is an object of a push that people have written.
type File struct {
	ID   string
	Kind string // "blob", "commit" or "tag"
	Size int64
	// Content must be read before the next File comes. What is not read is passed over.
	Content io.Reader
}

// Files calls look with each of these objects that is no tree, until look returns false.
func (q *Quarantine) Files(ctx context.Context, ids []string, look func(f File) bool) error {
	if len(ids) == 0 {
		return nil
	}
	c := q.command("cat-file", "--buffer", "--batch")
	c.Stdin = strings.NewReader(strings.Join(ids, "\n") + "\n")
	err := q.each(ctx, c, func(out *bufio.Reader) (bool, error) {
		header, err := out.ReadString('\n')
		if err != nil {
			return false, err
		}
		var f File
		if _, err := fmt.Sscanf(header, "%40s %s %d", &f.ID, &f.Kind, &f.Size); err != nil {
			return true, nil // "… missing"
		}
		content := &io.LimitedReader{R: out, N: f.Size}
		f.Content = content
		if f.Kind != "tree" && !look(f) {
			return false, nil
		}
		_, err = io.CopyN(io.Discard, out, content.N+1)
		return true, err
	})
	if err != nil {
		return fmt.Errorf("read files of a push: %w", err)
	}
	return nil
}

// maxPath is the length of the longest path that Changes tells, in bytes. Of a longer one it tells
// the end.
const maxPath = 4096

// Changes calls look with each file that a commit of a push brings, newer commits first, with the
// commit's id and the file's path with slashes, until look returns false; and with the id of each
// commit, with an empty path and no file, before its files. A commit is one of the push if a new
// tip leads to it and no reference did before. Of a merge these are the files that none of its
// parents has. look must not keep the bytes.
func (q *Quarantine) Changes(ctx context.Context, tips []string, look func(commit, path, file []byte) bool) error {
	c := q.command("log", "--raw", "-z", "-r", "--root", "--diff-merges=c", "--no-renames", "--no-abbrev", "--format=%H", "--stdin", "--not", "--all")
	c.Stdin = strings.NewReader(strings.Join(tips, "\n") + "\n")
	var commit, file []byte
	isPath := false
	err := q.each(ctx, c, func(out *bufio.Reader) (bool, error) {
		word, err := readWord(out)
		if err != nil {
			return false, err
		}
		if isPath {
			isPath = false
			return look(commit, word, file), nil
		}
		word = bytes.TrimPrefix(word, []byte("\n"))
		if fields := bytes.Fields(word); len(word) > 0 && word[0] == ':' && len(fields) > 2 {
			file, isPath = append(file[:0], fields[len(fields)-2]...), true
		} else if len(word) == idLength {
			commit = append(commit[:0], word...)
			return look(commit, nil, nil), nil
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("look for the paths of files: %w", err)
	}
	return nil
}

// readWord reads up to a byte of zero. Of what is longer than maxPath it returns the end, which is
// valid until the next read.
func readWord(out *bufio.Reader) ([]byte, error) {
	word, err := out.ReadSlice(0)
	var before []byte
	for errors.Is(err, bufio.ErrBufferFull) {
		before = append(before[:0], word[max(0, len(word)-maxPath):]...)
		word, err = out.ReadSlice(0)
	}
	if err != nil {
		return nil, err
	}
	word = word[:len(word)-1]
	if n := len(word); n < maxPath && len(before) > 0 {
		word = append(before[n:], word...)
	}
	return word[max(0, len(word)-maxPath):], nil
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
