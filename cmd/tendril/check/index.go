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

// checkIndex compares the index in a folder with the log. It opens a copy and brings that up to
// date, as the process would when it starts; the folder stays as it is.
func (c *checker) checkIndex(ctx context.Context, dir, temp string) error {
	c.report.Indexes++
	name := filepath.Base(dir)
	defer os.RemoveAll(temp)
	if err := os.CopyFS(temp, os.DirFS(dir)); err != nil {
		return err
	}
	problem, note, err := c.compare(ctx, temp)
	if err != nil {
		return err
	}
	if note != "" {
		c.report.Notes = append(c.report.Notes, name+" "+note)
	}
	if problem != "" {
		c.report.found(Finding{
			Part: PartIndex, What: name, Problem: strings.ReplaceAll(problem, temp, dir),
			Mend: "it is emptied; the next start makes it from the log", mend: func() error { return empty(dir) },
		}, c.Repair)
	}
	return nil
}

// catchUps is how often it is tried to bring two indexes to the same sequence of a log that grows.
const catchUps = 10

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
	if err := eventdb.Bind(ctx, c.Bus.JS, db, discard); err != nil {
		return "", "", err
	}
	if db.Seq() < before || before == 0 {
		return "", "is empty, or of another log, version or setting: the next start makes it from the log", nil
	}
	for range catchUps {
		if db.Seq() == c.truth.Seq() {
			break
		}
		if err := errors.Join(c.follow(ctx, db, c.truth.Seq()), c.follow(ctx, c.truth, db.Seq())); err != nil {
			return "", "", err
		}
	}
	if db.Seq() != c.truth.Seq() {
		return "", "was not compared: the log grows too quickly", nil
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
