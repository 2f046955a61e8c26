package smarthttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repository"
)

// smallPack is how much of a pack is kept in memory before it is written to disk.
const smallPack = 1 << 20

// spooled is a pack that has arrived. It is read in whole before its push is carried out: whoever sends slowly, on purpose or not,
// holds up neither the others who push to repositories of the same identifier nor a git process.
type spooled struct {
	io.Reader
	size int64
	file *os.File
	free func()
}

// Close gives its place on disk free.
func (s *spooled) Close() {
	if s.file != nil {
		s.file.Close()
		s.free()
	}
}

// unreadable is a request that ended before its end.
type unreadable struct{ err error }

func (e *unreadable) Error() string { return "read the pack of a push: " + e.err.Error() }
func (e *unreadable) Unwrap() error { return e.err }

// spool reads a pack of at most max bytes. Before it reads one that does not fit into memory, it asks whether it may.
func (x *exchange) spool(body io.Reader, max int64, ask func() error) (*spooled, error) {
	body = netguard.LimitBody(body, max)
	var head bytes.Buffer
	if _, err := io.CopyN(&head, body, smallPack); errors.Is(err, io.EOF) {
		return &spooled{Reader: &head, size: int64(head.Len())}, nil
	} else if err != nil {
		return nil, readError(err)
	}
	if err := ask(); err != nil {
		return nil, err
	}
	free, err := x.spoolPlace()
	if err != nil {
		return nil, err
	}
	file, err := x.repo.Scratch()
	if err != nil {
		free()
		return nil, err
	}
	s := &spooled{file: file, free: free}
	if err := s.fill(&head, body); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *spooled) fill(parts ...io.Reader) error {
	for _, part := range parts {
		from := &failureReader{from: part}
		n, err := io.Copy(s.file, from)
		s.size += n
		if from.err != nil {
			return readError(from.err)
		} else if err != nil {
			return fmt.Errorf("write a pack to disk: %w", err)
		}
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read a pack from disk: %w", err)
	}
	s.Reader = s.file
	return nil
}

func readError(err error) error {
	if isTooLarge(err) {
		return err
	}
	return &unreadable{err}
}

// spoolPlace waits for one of the places on disk.
func (x *exchange) spoolPlace() (free func(), err error) {
	ctx, cancel := context.WithTimeout(x.r.Context(), x.options.Patience)
	defer cancel()
	select {
	case x.spools <- struct{}{}:
		return func() { <-x.spools }, nil
	case <-ctx.Done():
		return nil, repository.ErrBusy
	}
}

// failureReader remembers how reading failed.
type failureReader struct {
	from io.Reader
	err  error
}

// Read reads from the source.
func (f *failureReader) Read(p []byte) (int, error) {
	n, err := f.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}
