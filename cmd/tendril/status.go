package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"tendril.dev/cmd/tendril/status"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
)

// againAfter is how long `tendril status --watch` shows one report.
const againAfter = 2 * time.Second

// shows is `tendril status`. It needs the settings of the bus and no others.
type shows struct {
	JSON  bool          `name:"json" help:"Print JSON, with --watch one object a line."`
	Watch bool          `name:"watch" help:"Stay, and print again every two seconds."`
	Wait  time.Duration `name:"wait" default:"10s" help:"How long NATS may take to answer."`

	config.Bus `embed:"" group:"Bus"`
}

// Run implements the command.
func (s *shows) Run() error {
	b, err := reach(s.Bus, "status", "", s.Wait)
	if err != nil {
		return err
	}
	defer b.Close()
	ctx, stop := untilSignal()
	defer stop()
	if s.Watch {
		return s.stay(ctx, b, os.Stdout)
	}
	_, report, err := s.look(ctx, b, nil)
	if err != nil {
		return err
	}
	return s.print(os.Stdout, report)
}

// look makes a report with a reader; with a new one if there is none, or if NATS has been started
// anew since it was opened.
func (s *shows) look(ctx context.Context, b *bus.Bus, reader *status.Reader) (*status.Reader, status.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	for {
		var err error
		if reader == nil {
			if reader, err = status.Open(ctx, b); err != nil {
				return nil, status.Report{}, s.sentence(b, err)
			}
		}
		report, err := reader.Report(ctx)
		if errors.Is(err, status.ErrReplaced) {
			reader.Close()
			reader = nil
			continue
		}
		if err != nil {
			return nil, status.Report{}, s.sentence(b, err)
		}
		return reader, report, nil
	}
}

func (s *shows) sentence(b *bus.Bus, err error) error {
	at := bus.Redacted(b.Conn.ConnectedUrl())
	switch {
	case errors.Is(err, status.ErrNothing):
		return errNoStreams(b)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("NATS at %s did not answer within %s: %w", at, s.Wait, err)
	}
	return err
}

// stay prints a report every two seconds until ctx ends. What goes wrong meanwhile is printed too,
// and tried again.
func (s *shows) stay(ctx context.Context, b *bus.Bus, out io.Writer) error {
	var reader *status.Reader
	ticker := time.NewTicker(againAfter)
	defer ticker.Stop()
	for {
		var report status.Report
		var err error
		reader, report, err = s.look(ctx, b, reader)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "tendril: %v\n", err)
		} else {
			if !s.JSON && term.IsTerminal(int(os.Stdout.Fd())) {
				fmt.Fprint(out, "\x1b[H\x1b[2J")
			}
			if err := s.print(out, report); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *shows) print(out io.Writer, report status.Report) error {
	if !s.JSON {
		return report.WriteTable(out)
	}
	if s.Watch {
		return json.NewEncoder(out).Encode(report)
	}
	return printJSON(out, report)
}
