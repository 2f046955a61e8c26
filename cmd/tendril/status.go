package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/term"

	"tendril.dev/cmd/tendril/status"
	"tendril.dev/lib/bus"
)

// againAfter is the pause between two reports of `tendril status --watch`. A report takes 1.2 s.
const againAfter = 800 * time.Millisecond

// shows is `tendril status`.
type shows struct {
	JSON    bool `name:"json" help:"Print JSON, with --watch one object a line."`
	Watch   bool `help:"Stay, and print again every two seconds."`
	running `embed:""`
}

// Run implements the command.
func (s *shows) Run() error {
	b, err := s.reach("status", "")
	if err != nil {
		return err
	}
	defer b.Close()
	ctx, stop := untilSignal()
	defer stop()
	for {
		err := s.look(ctx, b)
		if !s.Watch {
			return err
		}
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "tendril: %v\n", err)
		}
		select {
		case <-time.After(againAfter):
		case <-ctx.Done():
			return nil
		}
	}
}

// look prints a report.
func (s *shows) look(ctx context.Context, b *bus.Bus) error {
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	report, err := status.Look(ctx, b)
	switch {
	case errors.Is(err, status.ErrNothing):
		return errNoStreams(b)
	case err != nil:
		return s.unanswered(err)
	case s.JSON && s.Watch:
		return json.NewEncoder(os.Stdout).Encode(report)
	case s.JSON:
		return printJSON(os.Stdout, report)
	case s.Watch && term.IsTerminal(int(os.Stdout.Fd())):
		fmt.Print("\x1b[H\x1b[2J")
	}
	return report.WriteTable(os.Stdout)
}
