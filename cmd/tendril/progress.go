package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// progress shows on a terminal how far a command is, and tells what came of it, on standard error.
type progress struct {
	quiet, terminal bool

	mu   sync.Mutex
	step string
	told time.Time
}

func newProgress(quiet bool) *progress {
	return &progress{quiet: quiet, terminal: !quiet && term.IsTerminal(int(os.Stderr.Fd()))}
}

// at shows how far a step is. of is negative where that is not known.
func (p *progress) at(step string, done, of int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.terminal || p.step == step && time.Since(p.told) < 200*time.Millisecond {
		return
	}
	p.step, p.told = step, time.Now()
	line := fmt.Sprintf("%s: %d", step, done)
	if of > 0 {
		line += fmt.Sprintf(" of %d (%d%%)", of, done*100/of)
	}
	fmt.Fprint(os.Stderr, "\r\x1b[K"+line)
}

// result tells what came of it.
func (p *progress) result(format string, args ...any) {
	p.end()
	if !p.quiet {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	}
}

// end takes the line off the screen.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.step != "" {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
		p.step = ""
	}
}
