package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"
	"golang.org/x/term"
)

// colours reports whether a file is a terminal whose user wants colours.
func colours(f *os.File) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// printJSON prints a value for machines.
func printJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// table writes a heading, whose columns are separated by |, and below it a row of cells for each
// thing in a list. Without any it writes nothing; without a heading it writes the rows alone.
func table[T any](out io.Writer, heading string, list []T, row func(T) []any) {
	if len(list) == 0 {
		return
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if heading != "" {
		fmt.Fprintln(t, strings.ReplaceAll(heading, "|", "\t"))
	}
	for _, thing := range list {
		var texts []string
		for _, cell := range row(thing) {
			text := fmt.Sprint(cell)
			if at, is := cell.(time.Time); is {
				text = clock(at)
			}
			texts = append(texts, printable(text))
		}
		fmt.Fprintln(t, strings.Join(texts, "\t"))
	}
	t.Flush()
}

// cells are a row that is written as it is.
func cells(row []any) []any { return row }

// size is a number of bytes.
type size int64

func (s size) String() string { return humanize.IBytes(uint64(max(s, 0))) }

// printable makes text from outside harmless on a terminal and in a table.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, s)
}

// ago is how long ago something was, in whole seconds; clocks may differ.
func ago(now, then time.Time) string {
	return max(now.Sub(then), 0).Truncate(time.Second).String()
}

// clock is a time for people.
func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.DateTime)
}

// clip cuts a text short that is one of many.
func clip(s string) string {
	const most = 100
	if letters := []rune(s); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return s
}

// progress shows on a terminal how far a command is, and tells what came of it, on standard error.
type progress struct {
	quiet, terminal bool

	mu   sync.Mutex
	told time.Time
}

func newProgress(quiet bool) *progress {
	return &progress{quiet: quiet, terminal: !quiet && term.IsTerminal(int(os.Stderr.Fd()))}
}

// at shows how far a step is. of is 0 where that is not known.
func (p *progress) at(step string, done, of int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.terminal || time.Since(p.told) < 200*time.Millisecond {
		return
	}
	p.told = time.Now()
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
	if p.terminal {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}
