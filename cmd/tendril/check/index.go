package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tendril.dev/lib/eventdb"
)

// checkIndex holds the index in a folder against the log. What is opened and brought up to date is
// a copy, as the process would when it starts; the folder stays as it is.
func (c *checker) checkIndex(ctx context.Context, dir, temp string) error {
	c.report.Indexes++
	name := filepath.Base(dir)
	defer os.RemoveAll(temp)
	if err := os.CopyFS(temp, os.DirFS(dir)); err != nil {
		return fmt.Errorf("check %s: %w", name, err)
	}
	problem, note, err := c.compare(ctx, temp)
	if err != nil {
		return fmt.Errorf("check %s: %w", name, err)
	}
	if note != "" {
		c.report.note(name + " " + note)
	}
	if problem != "" {
		c.found(Finding{
			Part: PartIndex, What: name, Problem: strings.ReplaceAll(problem, temp, dir),
			Mend: "it is emptied, and made anew from the log at the next start",
		}, func() error { return empty(dir) })
	}
	return nil
}

// compare brings an index up to date and says what is wrong with it, or why it was not compared.
func (c *checker) compare(ctx context.Context, dir string) (problem, note string, err error) {
	db, err := eventdb.Open(dir, eventdb.Options{KeepDeleted: c.IgnoreDeletions})
	if err != nil {
		return "", "", err
	}
	defer db.Close()
	if why := db.Rebuilt(); why != nil {
		return fmt.Sprintf("its files are damaged: %v", why), "", nil
	}
	before := db.Seq()
	if before == 0 {
		return "", "is empty: it is made from the log at the next start", nil
	}
	if err := eventdb.Bind(ctx, c.Bus.JS, db, discard); err != nil {
		return "", "", err
	}
	if db.Seq() < before {
		return "", "is of another log, or of another version or other settings: it is made anew at the next start", nil
	}
	for try := 0; db.Seq() != c.truth.Seq(); try++ {
		if try == levels {
			return "", "was not compared: the log grows too quickly", nil
		}
		if err := errors.Join(c.follow(ctx, db, c.truth.Seq()), c.follow(ctx, c.truth, db.Seq())); err != nil {
			return "", "", err
		}
	}
	differs, err := db.Compare(ctx, c.truth)
	switch {
	case ctx.Err() != nil:
		return "", "", ctx.Err()
	case err != nil:
		return fmt.Sprintf("its files are damaged: %v", err), "", nil
	case differs > 0:
		return fmt.Sprintf("%d entries are not what the log says", differs), "", nil
	}
	return "", "", nil
}

// levels is how often it is tried to bring two indexes to the same sequence of a log that grows.
const levels = 10

// follow brings an index up to a sequence of the log.
func (c *checker) follow(ctx context.Context, db *eventdb.DB, seq uint64) error {
	if db.Seq() >= seq {
		return nil
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- eventdb.Follow(ctx, c.Bus.JS, db, discard)
		stop()
	}()
	var err error
	for before := uint64(1); db.Seq() < seq && before != db.Seq(); {
		before = db.Seq()
		err = db.WaitFor(ctx, seq) // its patience may be too short for a long log
	}
	if db.Seq() >= seq {
		err = nil
	}
	stop()
	return errors.Join(unasked(<-ended), err)
}

// unasked is the error of what was asked to end; nil where it says no more than that it did.
func unasked(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// empty removes the files of an index that the caller has locked. The lock stays.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.Name() != "LOCK" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	return err
}
