package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tendril.dev/cmd/tendril/check"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/node"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
)

// checkCommand is `tendril check`.
type checkCommand struct {
	Repair bool `help:"Mend what can be mended from the log. Only while no process works on the folders."`
	Fsck   bool `default:"true" negatable:"" help:"Let git look through all objects, which takes longest."`
	JSON   bool `name:"json" help:"Print JSON."`
	Quiet  bool `short:"q" help:"Print no progress."`

	config.Settings `embed:""`
}

// exitStatus is an error that has an exit status of its own. Without a cause nothing is printed.
type exitStatus struct {
	status int
	error
}

// Run implements the command. Its exit status is for scripts: 1: findings, 2: it could not check.
func (c *checkCommand) Run(src *config.Source) error {
	report := check.NewReport(c.Repair)
	err := c.check(src, report)
	switch {
	case err != nil && len(report.Findings) == 0:
	case c.JSON:
		err = errors.Join(err, printJSON(os.Stdout, report))
	default:
		report.Write(os.Stdout, colours(os.Stdout))
	}
	switch {
	case err != nil:
		return &exitStatus{2, fmt.Errorf("could not check: %w", err)}
	case !report.Clean():
		return &exitStatus{1, nil}
	}
	return nil
}

func (c *checkCommand) check(src *config.Source, report *check.Report) error {
	settings, err := c.Complete(src)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal()
	defer stop()
	folders, err := lockIndexes(settings)
	defer folders.unlock()
	if err != nil {
		return err
	}
	b, err := open(ctx, settings, folders)
	if err != nil {
		return err
	}
	defer b.Close()
	if c.Repair {
		if err := noWorkers(ctx, b, folders); err != nil {
			return err
		}
	}
	store, err := repository.NewStore(repository.Options{
		Root: settings.GitDataPath, Processes: settings.GitProcesses, LookOnly: !c.Repair,
	})
	if err != nil {
		return err
	}
	rules, err := settings.Hosting()
	if err != nil {
		return err
	}
	temp := settings.RelayDataPath // where files of indexes can be linked
	if _, err := os.Stat(temp); err != nil {
		temp = ""
	}
	for _, dir := range folders.used {
		report.Notes = append(report.Notes, filepath.Base(dir)+" is in use: it is compared only while its process is stopped")
	}
	shown := newProgress(c.Quiet)
	defer shown.end()
	err = check.Run(ctx, report, check.System{
		Bus: b, Rules: repository.Rules{Rules: rules, Store: store}, Store: store, Indexes: folders.locked,
		Running:         !c.Repair && (folders.inUse || settings.NATSURL != ""),
		IgnoreDeletions: settings.IgnoreDeletions, Temp: temp, WithoutFsck: !c.Fsck, Progress: shown.at,
	})
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// open connects to the NATS server, or starts the embedded one of a system that is stopped.
func open(ctx context.Context, s config.Settings, folders indexFolders) (*bus.Bus, error) {
	if s.NATSURL != "" || folders.inUse {
		return running{Wait: 10 * time.Second, Bus: s.Bus}.reach("")
	}
	dir := filepath.Join(s.RelayDataPath, "nats")
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("NGIT_RELAY_DATA_PATH is %q: there is no log in it (%w)", s.RelayDataPath, err)
	}
	return bus.Open(ctx, bus.Options{
		Name: "tendril check", Sizing: node.Sizing(s), Dir: dir, Listen: "none",
		NewLog: func() error { return errors.New("there is no log") }, // a check makes none
	})
}

// noWorkers returns an error while a process may be working on the folders.
func noWorkers(ctx context.Context, b *bus.Bus, folders indexFolders) error {
	if folders.inUse {
		return errors.New("--repair needs the system stopped: a process works on the folders")
	}
	r := &reader{Bus: b, ctx: ctx}
	for worker := range bucket[proto.Worker](r, proto.BucketWorkers, proto.ClaimKey(proto.GroupShards, ">")) {
		return fmt.Errorf("--repair needs the purgatory workers stopped: %s is at work, or was a moment ago", worker)
	}
	return r.err
}

// indexFolders are the indexes of NGIT_RELAY_DATA_PATH.
type indexFolders struct {
	locked  []string // by us: no process has them open
	used    []string // by a process
	inUse   bool     // `tendril up` runs on the folder
	unlocks []func() error
}

// lockIndexes locks the indexes that no process has open.
func lockIndexes(s config.Settings) (f indexFolders, err error) {
	alone := s.NATSURL == ""
	if s.DatabaseBackend == "memory" {
		f.inUse = alone
		return f, nil
	}
	dirs, err := filepath.Glob(filepath.Join(s.RelayDataPath, "index-*"))
	if err != nil {
		return f, err
	}
	// The lock of the index of `tendril up` keeps a second process off the embedded NATS. It may
	// have been removed.
	up := filepath.Join(s.RelayDataPath, "index-up")
	if _, err := os.Stat(filepath.Join(s.RelayDataPath, "nats")); err == nil && alone && !slices.Contains(dirs, up) {
		dirs = append(dirs, up)
	}
	for _, dir := range dirs {
		unlock, err := eventdb.Lock(dir)
		switch {
		case errors.Is(err, eventdb.ErrInUse):
			f.used = append(f.used, dir)
			f.inUse = f.inUse || alone && dir == up
		case err != nil:
			return f, err
		default:
			f.locked = append(f.locked, dir)
			f.unlocks = append(f.unlocks, unlock)
		}
	}
	return f, nil
}

func (f indexFolders) unlock() {
	for _, unlock := range f.unlocks {
		unlock()
	}
}
