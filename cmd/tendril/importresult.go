package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"tendril.dev/cmd/tendril/check"
	"tendril.dev/cmd/tendril/importer"
)

// conclude prints what came of an import. Its error is why the command failed.
func (i *imports) conclude(ctx context.Context, counts importer.Counts, trees *importer.Trees, err error) error {
	result := importResult{Counts: counts}
	if trees != nil {
		pushed := trees.Pushed()
		result.Pushed = &pushed
	}
	if i.JSON {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		err = errors.Join(err, encoder.Encode(result))
	} else {
		result.write(os.Stdout, i.Refused)
	}
	switch {
	case ctx.Err() != nil:
		return interrupted(ctx)
	case err != nil:
		return err
	case result.Pushed != nil && len(result.Pushed.Failed) > 0:
		return fmt.Errorf("%s could not be pushed", check.Count(len(result.Pushed.Failed), "repository", "repositories"))
	}
	return nil
}

// interrupted is the error of an import whose ctx has ended; nil: it has not.
func interrupted(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return errors.New("interrupted: run it again to go on; what is here already is counted as known then")
}

// importResult is what is printed.
type importResult struct {
	importer.Counts
	Pushed *importer.Pushed `json:"git,omitempty"`
}

func (r importResult) write(out io.Writer, refused string) {
	line := func(n int, what string) { fmt.Fprintf(out, "%9d  %s\n", n, what) }
	line(r.Lines, "lines read")
	line(r.Accepted, "accepted")
	line(r.Held, "held: they wait for their git data")
	line(r.Known, "known already, or a newer one is in their place")
	switch {
	case r.Refused == 0:
		line(0, "refused")
	case refused == "":
		line(r.Refused, "refused (--refused FILE writes down which and why)")
	default:
		line(r.Refused, "refused, see "+refused)
	}
	if r.Invalid > 0 {
		line(r.Invalid, "of these are no genuine events")
	}
	if r.Left > 0 {
		line(r.Left, "not decided")
	}
	if p := r.Pushed; p != nil {
		line(p.Repositories, "repositories pushed, or as they should be")
		if p.Empty > 0 {
			line(p.Empty, "repositories without branches and tags")
		}
		line(p.Pulls, "commits of pull requests pushed")
		if p.Waiting > 0 {
			line(p.Waiting, "commits of pull requests not pushed: their events are not in the file, or were refused")
		}
		for _, why := range p.Failed {
			fmt.Fprintf(out, "           not pushed: %s\n", why)
		}
	}
}

// refusedFile is where it is written what is not accepted; nil: nowhere.
type refusedFile struct {
	file *os.File
	w    *bufio.Writer
}

func openRefused(name string) (*refusedFile, error) {
	if name == "" {
		return nil, nil
	}
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	return &refusedFile{file, bufio.NewWriter(file)}, nil
}

func (r *refusedFile) close() error {
	if r == nil {
		return nil
	}
	return errors.Join(r.w.Flush(), r.file.Close())
}
