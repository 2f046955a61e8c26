package repository

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// objectList is the ids of objects, in a file: there may be millions.
type objectList struct {
	ids   io.ReaderAt // "<id>\n" for each
	file  *os.File    // where these lie; nil: in memory
	count int
	revs  string // what was walked, as git rev-list and git pack-objects read it
}

const lineBytes = idLength + 1

func (l *objectList) close() {
	if l.file != nil {
		l.file.Close()
	}
}

// each calls fn with every id as 20 bytes, until it returns false.
func (l *objectList) each(fn func(id []byte) bool) error {
	lines := bufio.NewReaderSize(io.NewSectionReader(l.ids, 0, int64(l.count)*lineBytes), 1<<16)
	line, id := make([]byte, lineBytes), make([]byte, idBytes)
	for range l.count {
		if _, err := io.ReadFull(lines, line); err != nil {
			return fmt.Errorf("read a list of objects: %w", err)
		}
		if _, err := hex.Decode(id, line[:idLength]); err != nil {
			return fmt.Errorf("read a list of objects: %w", err)
		}
		if !fn(id) {
			return nil
		}
	}
	return nil
}

// filter returns a list of those objects for which keep is true.
func (l *objectList) filter(r *Repo, keep func(id []byte) bool) (*objectList, error) {
	file, err := r.Scratch()
	if err != nil {
		return nil, err
	}
	kept, out := &objectList{ids: file, file: file}, bufio.NewWriter(file)
	var writing error
	err = l.each(func(id []byte) bool {
		if keep(id) {
			kept.count++
			_, writing = out.WriteString(hex.EncodeToString(id) + "\n")
		}
		return writing == nil
	})
	if err = errors.Join(err, writing, out.Flush()); err != nil {
		kept.close()
		return nil, fmt.Errorf("write a list of objects: %w", err)
	}
	return kept, nil
}

// listFor lists what tips reach and the pool may lack, which is asked of git unless the pool is
// new.
func (r *Repo) listFor(ctx context.Context, tips []string, known []tip) (*objectList, error) {
	if len(known) == 0 {
		if list, ok := r.smallList(ctx, tips); ok {
			return list, nil
		}
	}
	return r.list(ctx, tips, nearest(known, r.ref.PubKey))
}

// list walks from tips to everything that they reach and none of the known ids does. A known id
// that is not there is passed over. ErrBroken if something is missing on the way.
func (r *Repo) list(ctx context.Context, tips, known []string) (*objectList, error) {
	there, err := r.sees(ctx, slices.Concat(tips, known))
	if err != nil {
		return nil, err
	}
	var revs strings.Builder
	for _, id := range tips {
		if !there[id] {
			return nil, fmt.Errorf("%w: %s", ErrBroken, id)
		}
		revs.WriteString(id + "\n")
	}
	for _, id := range known {
		if there[id] {
			revs.WriteString("^" + id + "\n")
		}
	}
	file, err := r.Scratch()
	if err != nil {
		return nil, err
	}
	list := &objectList{ids: file, file: file, revs: revs.String()}
	walk := r.Command("rev-list", "--objects", "--no-object-names", "--stdin")
	walk.Stdin, walk.Stdout = strings.NewReader(list.revs), file
	err = walk.Run(ctx)
	if failure, ok := errors.AsType[*Error](err); ok && isExit(failure.Err) && !Unwritable(err) {
		err = fmt.Errorf("%w: %w", ErrBroken, err)
	}
	end, seeking := file.Seek(0, io.SeekEnd)
	if err = errors.Join(err, seeking); err != nil {
		file.Close()
		return nil, err
	}
	list.count = int(end / lineBytes)
	return list, nil
}
