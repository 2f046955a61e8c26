package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"tendril.dev/cmd/tendril/relayread"
)

// importInput is what an import reads.
type importInput struct {
	io.Reader
	close   func() error
	file    *os.File     // nil: it is a relay
	missing func() error // says afterwards what could not be read of it
}

// open opens what is read: a file, standard input or a relay.
func (i *imports) open(ctx context.Context, tell *teller) (*importInput, error) {
	nothing := func() error { return nil }
	if relayread.Named(i.File) {
		r := relayread.New(i.File, tell.reading)
		in := r.Open(ctx)
		return &importInput{Reader: in, close: in.Close, missing: r.Missing}, nil
	}
	if i.File == "-" {
		return &importInput{Reader: interruptible(ctx, os.Stdin), close: nothing, file: os.Stdin, missing: nothing}, nil
	}
	file, err := os.Open(i.File)
	if errors.Is(err, os.ErrNotExist) && strings.Contains(i.File, "://") {
		return nil, fmt.Errorf("%s is no URL of a relay, and no file; want ws:// or wss://", i.File)
	}
	if err != nil {
		return nil, err
	}
	in := &importInput{Reader: file, close: file.Close, file: file, missing: nothing}
	info, err := file.Stat()
	switch {
	case err != nil:
		file.Close()
		return nil, err
	case info.IsDir():
		file.Close()
		return nil, fmt.Errorf("%s is a folder; want a file with the JSON of an event on each line (--git takes a folder of repositories)", i.File)
	case !info.Mode().IsRegular():
		in.Reader = interruptible(ctx, file)
	}
	return in, nil
}

// interruptible returns what a terminal or a pipe gives until ctx ends, also where a read would not
// return because nothing more is written there.
func interruptible(ctx context.Context, from io.Reader) io.Reader {
	out, into := io.Pipe()
	context.AfterFunc(ctx, func() { into.CloseWithError(ctx.Err()) })
	go func() {
		_, err := io.Copy(into, from)
		into.CloseWithError(err)
	}()
	return out
}

// isFile reports whether a name is that of the regular file that is read.
func (in *importInput) isFile(name string) bool {
	if in.file == nil {
		return false
	}
	info, err := in.file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	other, err := os.Stat(name)
	return err == nil && os.SameFile(info, other)
}
