// Package check compares the parts of a system: the log, the indexes made of it, the references of
// the repositories, their objects, and what else is on the disk.
package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
)

// System is what is looked at.
type System struct {
	Bus *bus.Bus
	// Rules say which repositories are kept here.
	Rules repository.Rules
	// Store is the git folder.
	Store *repository.Store
	// Indexes are folders of indexes that no process has open, each locked by the caller.
	Indexes []string
	// Running: services work on it meanwhile. What differs is looked at again, and nothing is
	// mended.
	Running bool
	// IgnoreDeletions is NGIT_DELETION_REQUEST_DISRESPECTOR, which the indexes were made under.
	IgnoreDeletions bool
	// Temp is where an index of the log and copies of the others are made.
	Temp string
	// Repair: mend what can be mended.
	Repair bool
	// WithoutFsck: git does not look through the objects.
	WithoutFsck bool
	Progress    func(step string, done, of int)
}

var discard = slog.New(slog.DiscardHandler)

type checker struct {
	System
	report   *Report
	truth    *eventdb.DB // made of the log just now
	holdings *held.Set
}

// Run checks a system. An error says why it could not be checked to its end; the report has what
// was found until then.
func Run(ctx context.Context, s System) (*Report, error) {
	c := &checker{System: s, report: &Report{Findings: []Finding{}, Notes: []string{}}, holdings: held.NewSet(s.Bus.JS, discard, nil)}
	defer c.report.sort()
	temp, err := os.MkdirTemp(s.Temp, ".tendril-check-")
	if err != nil {
		return c.report, err
	}
	defer os.RemoveAll(temp)
	if c.truth, err = eventdb.Open(filepath.Join(temp, "log"), eventdb.Options{KeepDeleted: s.IgnoreDeletions}); err != nil {
		return c.report, err
	}
	defer c.truth.Close()
	if err := c.readLog(ctx); err != nil {
		return c.report, fmt.Errorf("check the log: %w", err)
	}
	for _, dir := range s.Indexes {
		if err := c.checkIndex(ctx, dir, filepath.Join(temp, "index")); err != nil {
			return c.report, fmt.Errorf("check %s: %w", filepath.Base(dir), err)
		}
	}
	if err := c.withRepositories(ctx); err != nil {
		return c.report, fmt.Errorf("check the repositories: %w", err)
	}
	return c.report, nil
}

// readLog makes an index of the log, and looks at its messages meanwhile.
func (c *checker) readLog(ctx context.Context) error {
	last, err := bus.LastSeq(ctx, c.Bus.JS, proto.StreamEvents)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.follow(ctx, c.truth, last) })
	group.Go(func() error { return c.checkLog(ctx) })
	return group.Wait()
}

// follow brings an index up to a sequence of the log.
func (c *checker) follow(ctx context.Context, db *eventdb.DB, seq uint64) error {
	following, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- eventdb.Follow(following, c.Bus.JS, db, discard) }()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for db.Seq() < seq {
		select {
		case err := <-ended:
			return errors.Join(err, ctx.Err())
		case <-look.C:
		}
	}
	stop()
	return unasked(<-ended)
}

// unasked is the error of what was asked to end; nil where it says no more than that it did.
func unasked(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// withRepositories checks the repositories while it follows what is accepted and held.
func (c *checker) withRepositories(ctx context.Context) (err error) {
	following, stop := context.WithCancel(ctx)
	var both errgroup.Group
	both.Go(func() error { return eventdb.Follow(following, c.Bus.JS, c.truth, discard) })
	both.Go(func() error { return c.holdings.Run(following) })
	defer func() {
		stop()
		err = errors.Join(err, unasked(both.Wait()))
	}()
	return c.checkRepositories(ctx)
}
