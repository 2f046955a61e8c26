package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"tendril.dev/lib/eventdb"
)

// tellEntries is how many entries are told in which an index differs.
const tellEntries = 3

// checkIndex holds the index in a folder against the log. What is opened and brought up to date is
// a copy, as the process would when it starts; the folder stays as it is.
func (c *checker) checkIndex(ctx context.Context, dir, temp string) error {
	c.report.Indexes++
	name := filepath.Base(dir)
	problem, err := c.lookAtIndex(ctx, dir, temp)
	if err != nil {
		return fmt.Errorf("check %s: %w", name, err)
	}
	if problem != "" {
		problem = strings.ReplaceAll(problem, temp, dir)
		c.found(PartIndex, name, problem, "it is emptied, and made anew from the log at the next start", func() error { return empty(dir) })
	}
	return nil
}

func (c *checker) lookAtIndex(ctx context.Context, dir, temp string) (problem string, err error) {
	defer os.RemoveAll(temp)
	if err := copyIndex(dir, temp); err != nil {
		return "", err
	}
	db, err := eventdb.Open(temp, eventdb.WithDeletionsDisrespected(c.IgnoreDeletions))
	if err != nil {
		return "", err
	}
	defer db.Close()
	if why := db.Rebuilt(); why != nil {
		return fmt.Sprintf("its files are damaged: %v", why), nil
	}
	before := db.Seq()
	if before == 0 {
		c.report.note("%s is empty: it is made from the log at the next start", filepath.Base(dir))
		return "", nil
	}
	if err := eventdb.Bind(ctx, c.Bus.JS, db, c.Log); err != nil {
		return "", err
	}
	if db.Seq() < before {
		c.report.note("%s is of another log, or of another version or other settings: it is made anew at the next start", filepath.Base(dir))
		return "", nil
	}
	level, err := c.level(ctx, db)
	if err != nil {
		return "", err
	}
	if !level {
		c.report.note("%s was not compared: the log grows too quickly", filepath.Base(dir))
		return "", nil
	}
	differs, first := 0, []string{}
	err = db.Compare(ctx, c.truth, func(d eventdb.Difference) bool {
		if differs++; len(first) < tellEntries {
			first = append(first, describe(d))
		}
		return ctx.Err() == nil
	})
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return fmt.Sprintf("its files are damaged: %v", err), nil
	case differs > 0:
		return fmt.Sprintf("%d entries are not what the log says: %s", differs, strings.Join(first, ", ")), nil
	}
	return "", nil
}

func describe(d eventdb.Difference) string {
	how := "wrong"
	switch {
	case d.Missing:
		how = "missing"
	case d.Extra:
		how = "too many"
	}
	return fmt.Sprintf("%s %.40s… %s", d.Table, d.Key, how)
}

// levels is how often it is tried to bring two indexes to the same sequence of a log that grows.
const levels = 10

// level brings an index and that of the log to the same sequence.
func (c *checker) level(ctx context.Context, db *eventdb.DB) (level bool, err error) {
	for range levels {
		behind, head := db, c.truth.Seq()
		if db.Seq() > head {
			behind, head = c.truth, db.Seq()
		}
		if behind.Seq() == head {
			return true, nil
		}
		if err := c.follow(ctx, behind, head); err != nil {
			return false, err
		}
	}
	return false, nil
}

// follow brings an index up to a sequence.
func (c *checker) follow(ctx context.Context, db *eventdb.DB, seq uint64) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- eventdb.Follow(ctx, c.Bus.JS, db, c.Log)
		stop()
	}()
	err := db.WaitFor(ctx, seq)
	stop()
	if following := <-ended; following != nil {
		return following
	}
	return err
}

// copyIndex makes a copy of an index that nobody has open. Files that never change are linked.
func copyIndex(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		source, target := filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name())
		if !entry.Type().IsRegular() || entry.Name() == "LOCK" {
			continue
		}
		if strings.HasSuffix(entry.Name(), ".sst") && os.Link(source, target) == nil {
			continue
		}
		if err := copyFile(source, target); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// empty removes the files of an index that the caller has locked. The lock stays.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() == "LOCK" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
