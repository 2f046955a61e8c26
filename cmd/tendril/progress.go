package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress shows on a terminal how far a command is, and tells what came of it, on standard error.
type progress struct {
	quiet, terminal bool

	mu   sync.Mutex
	step string
	bar  *progressbar.ProgressBar
}

func newProgress(quiet bool) *progress {
	return &progress{quiet: quiet, terminal: !quiet && term.IsTerminal(int(os.Stderr.Fd()))}
}

// at shows how far a step is. of is negative where that is not known.
func (p *progress) at(step string, done, of int) {
	if !p.terminal {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar == nil || p.step != step || done == 0 {
		p.clear()
		p.step = step
		p.bar = progressbar.NewOptions(of,
			progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetDescription(step), progressbar.OptionEnableColorCodes(colours(os.Stderr)),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetPredictTime(true),
			progressbar.OptionThrottle(200*time.Millisecond), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetTheme(progressbar.Theme{Saucer: "[green]=[reset]", SaucerHead: "[green]>[reset]", SaucerPadding: " ", BarStart: "[", BarEnd: "]"}))
	}
	if of > p.bar.GetMax() {
		p.bar.ChangeMax(of)
	}
	_ = p.bar.Set(done) // what cannot be shown is not shown
}

func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}

// result tells what came of it.
func (p *progress) result(format string, args ...any) {
	p.end()
	if !p.quiet {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	}
}

// end takes the bar off the screen.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// colours reports whether a file is a terminal whose user wants colours.
func colours(f *os.File) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// untilSignal returns a context that ends with the first signal. A second one ends the process.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// printJSON prints a value for machines.
func printJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
