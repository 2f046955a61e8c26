package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

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

// table writes a heading, whose columns are separated by |, and rows of cells below it. Without rows
// it writes nothing.
func table(out io.Writer, heading string, rows int, row func(i int) []any) error {
	if rows == 0 {
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.ReplaceAll(heading, "|", "\t"))
	for i := range rows {
		for n, cell := range row(i) {
			if n > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, cell)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

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
	return t.UTC().Format("2006-01-02 15:04:05")
}

// clip cuts a text short that is one of many in a table.
func clip(s string) string {
	const most = 100
	if letters := []rune(s); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return s
}
