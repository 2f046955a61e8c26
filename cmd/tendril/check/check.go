// Package check compares the parts of a system: the log, the indexes made of it, the references of
// the repositories, their objects, and what else is on the disk.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"

	"tendril.dev/cmd/tendril/importer"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
)

// System is what is looked at.
type System struct {
	// Bus, Rules and Store must be set.
	Bus *bus.Bus
	// Rules say which repositories are kept here.
	Rules repository.Rules
	// Store is the git folder.
	Store *repository.Store
	// Indexes are folders of indexes that no process has open, each locked by the caller.
	Indexes []string
	// Running: services work on it meanwhile. What differs is looked at again.
	Running bool
	// IgnoreDeletions is NGIT_DELETION_REQUEST_DISRESPECTOR, which the indexes were made under.
	IgnoreDeletions bool
	// Temp is where an index of the log and copies of the others are made; empty: the folder for
	// temporary files.
	Temp string
	// WithoutFsck: git does not look through the objects.
	WithoutFsck bool
	// Progress is told how far each step is: of is 0 where that is not known. It must be set.
	Progress func(step string, done, of int)
}

var discard = slog.New(slog.DiscardHandler)

type checker struct {
	System
	*Report
	truth    *eventdb.DB // made of the log just now
	holdings *held.Set
}

// Run checks a system. An error says why it could not be checked to its end; the report has what
// was found until then.
func Run(ctx context.Context, report *Report, s System) error {
	c := &checker{System: s, Report: report, holdings: held.NewSet(s.Bus.JS, discard, nil)}
	defer report.sort()
	temp, err := os.MkdirTemp(s.Temp, ".tendril-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if c.truth, err = eventdb.Open(filepath.Join(temp, "log"),
		eventdb.Options{KeepDeleted: s.IgnoreDeletions}); err != nil {
		return err
	}
	defer c.truth.Close()
	if err := c.readLog(ctx); err != nil {
		return fmt.Errorf("check the log: %w", err)
	}
	for _, dir := range s.Indexes {
		if err := c.checkIndex(ctx, dir, filepath.Join(temp, "index")); err != nil {
			return fmt.Errorf("check %s: %w", filepath.Base(dir), err)
		}
	}
	// The repositories are checked while what is accepted and held is followed.
	ctx, stop := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return eventdb.Follow(ctx, c.Bus.JS, c.truth, discard) })
	group.Go(func() error { return c.holdings.Run(ctx) })
	err = c.checkRepositories(ctx)
	stop()
	return errors.Join(err, unasked(group.Wait()))
}

// unasked is the error of what was asked to end; nil where it says no more than that it did.
func unasked(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// readLog makes an index of the log, and looks at its messages meanwhile, on all processors.
func (c *checker) readLog(ctx context.Context) error {
	last, err := bus.LastSeq(ctx, c.Bus.JS, proto.StreamEvents)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.follow(ctx, c.truth, last) })
	var looking errgroup.Group
	looking.SetLimit(runtime.GOMAXPROCS(0))
	err = bus.Read(ctx, c.Bus.JS, bus.Reading{Stream: proto.StreamEvents}, func(m bus.Message) {
		c.Progress("events", int(m.Seq), int(max(m.Seq, last)))
		if m.Subject == proto.SubjectEventsMark {
			return
		}
		if m.Header.Get(proto.HeaderRemoved) == "" {
			c.Events++
		}
		looking.Go(func() error {
			if err := look(m); err != nil {
				c.found(Finding{Part: PartLog, What: fmt.Sprintf("message %d, %s", m.Seq, m.Subject), Problem: err.Error()})
			}
			return nil
		})
	})
	return errors.Join(err, looking.Wait(), group.Wait())
}

// look says what is wrong with a message of the log.
func look(m bus.Message) error {
	if removed := m.Header.Get(proto.HeaderRemoved); removed != "" {
		if !nostr.IsHex64(removed) || len(m.Data) > 0 {
			return errors.New("it removes what is no event, or is not empty")
		}
		return nil
	}
	ev, err := importer.Verify(m.Data)
	if err != nil {
		return err
	}
	if subject := proto.EventSubjectOf(ev).String(); subject != m.Subject {
		return fmt.Errorf("its event belongs at %s", subject)
	}
	return nil
}

// follow brings an index up to a sequence of the log, unless it gets no further.
func (c *checker) follow(ctx context.Context, db *eventdb.DB, seq uint64) (err error) {
	following, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- eventdb.Follow(following, c.Bus.JS, db, discard)
	}()
	for before := db.Seq(); ; before = db.Seq() {
		if err = db.WaitFor(following, seq); err == nil || db.Seq() == before {
			break
		}
	}
	stop()
	return cmp.Or(unasked(<-ended), ctx.Err(), err)
}

// checkIndex compares the index in a folder with the log. It opens a copy and brings that up to
// date, as the process would when it starts; the folder stays as it is.
func (c *checker) checkIndex(ctx context.Context, dir, temp string) error {
	c.Report.Indexes++
	name := filepath.Base(dir)
	defer os.RemoveAll(temp)
	if err := os.CopyFS(temp, os.DirFS(dir)); err != nil {
		return err
	}
	problem, err := c.compare(ctx, name, temp)
	if err != nil || problem == "" {
		return err
	}
	c.found(Finding{
		Part: PartIndex, What: name, Problem: strings.ReplaceAll(problem, temp, dir),
		Mend: "it is emptied; the next start makes it from the log", mend: func() error { return empty(dir) },
	})
	return nil
}

// catchUps is how often it is tried to bring two indexes to the same sequence of a log that grows.
const catchUps = 10

// compare brings an index up to date and says what is wrong with it.
func (c *checker) compare(ctx context.Context, name, dir string) (problem string, err error) {
	db, err := eventdb.Open(dir, eventdb.Options{KeepDeleted: c.IgnoreDeletions})
	if err != nil {
		return "", err
	}
	defer db.Close()
	if why := db.Rebuilt(); why != nil {
		return fmt.Sprintf("its files are damaged: %v", why), nil
	}
	if err := eventdb.Bind(ctx, c.Bus.JS, db, discard); err != nil {
		return "", err
	}
	if db.Seq() == 0 { // Bind has dropped it, or it was empty
		c.Notes = append(c.Notes,
			name+" is empty, or of another log, version or setting: the next start makes it from the log")
		return "", nil
	}
	for try := 0; db.Seq() != c.truth.Seq(); try++ {
		if try == catchUps {
			c.Notes = append(c.Notes, name+" was not compared: the log grows too quickly")
			return "", nil
		}
		if err := errors.Join(c.follow(ctx, db, c.truth.Seq()), c.follow(ctx, c.truth, db.Seq())); err != nil {
			return "", err
		}
	}
	differs, err := db.Compare(ctx, c.truth)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return fmt.Sprintf("its files are damaged: %v", err), nil
	case differs > 0:
		return fmt.Sprintf("%d entries are not what the log says", differs), nil
	}
	return "", nil
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
