package check

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

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
	// Store is the git folder; nil: it is not looked at.
	Store *repository.Store
	// Indexes are folders of indexes that nobody has open, each locked by the caller.
	Indexes []string
	// Running: services work on it meanwhile. What differs is looked at again, and nothing is
	// mended.
	Running bool
	// IgnoreDeletions is NGIT_DELETION_REQUEST_DISRESPECTOR, which the indexes were made under.
	IgnoreDeletions bool
	// DeletionGrace is NGIT_DELETION_GRACE: how long a repository is kept that its owner gave up.
	DeletionGrace time.Duration
	// Temp is where an index of the log and copies of the others are made: best on their file
	// system.
	Temp string
	// Repair: mend what can be mended.
	Repair bool
	// WithoutFsck: git does not look through the objects.
	WithoutFsck bool
	Progress    func(what string, done, of uint64)
	Log         *slog.Logger
}

var discard = slog.New(slog.DiscardHandler)

type checker struct {
	System
	report   *Report
	truth    *eventdb.DB // made of the log just now
	holdings *held.Set
	logHead  *bus.Head
	heldHead *bus.Head
}

// Run checks a system. An error says why it could not be checked to its end; what was found until
// then is in the report.
func Run(ctx context.Context, s System) (*Report, error) {
	if s.Progress == nil {
		s.Progress = func(string, uint64, uint64) {}
	}
	if s.Log == nil {
		s.Log = discard
	}
	c := &checker{System: s, report: &Report{Findings: []Finding{}, Notes: []string{}}, holdings: held.NewSet()}
	defer c.report.finish()
	temp, err := os.MkdirTemp(s.Temp, ".tendril-check-")
	if err != nil {
		return c.report, err
	}
	defer os.RemoveAll(temp)
	if c.truth, err = eventdb.Open(filepath.Join(temp, "log"), eventdb.WithDeletionsDisrespected(s.IgnoreDeletions)); err != nil {
		return c.report, err
	}
	defer c.truth.Close()
	if err := c.checkLog(ctx); err != nil {
		return c.report, err
	}
	for _, dir := range s.Indexes {
		if err := c.checkIndex(ctx, dir, filepath.Join(temp, "index")); err != nil {
			return c.report, err
		}
	}
	if s.Store == nil {
		return c.report, nil
	}
	following, stop := context.WithCancel(ctx)
	done := make(chan error, 2)
	go func() { done <- eventdb.Follow(following, s.Bus.JS, c.truth, c.Log) }()
	go func() {
		done <- c.holdings.Follow(following, s.Bus.JS, discard, func(held.Change) {})
	}()
	defer func() {
		stop()
		<-done
		<-done
	}()
	c.logHead = s.Bus.Head(proto.StreamEvents, c.truth.WaitFor)
	c.heldHead = s.Bus.Head(proto.KVStream(proto.BucketHeld), c.holdings.WaitFor)
	if err := c.checkRepositories(ctx); err != nil {
		return c.report, fmt.Errorf("check the repositories: %w", err)
	}
	return c.report, nil
}

// found notes a finding, and mends it where that is wanted. mend says in words what mending does;
// without do it cannot be mended.
func (c *checker) found(part, what, problem, mend string, do func() error) {
	f := Finding{Part: part, What: what, Problem: problem}
	if do != nil {
		f.Mend = mend
		if c.Repair {
			if err := do(); err != nil {
				f.Failed = err.Error()
			} else {
				f.Mended = true
			}
		}
	}
	c.report.add(f)
}
