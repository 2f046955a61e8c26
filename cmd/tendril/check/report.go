package check

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// Parts of a check, in the order in which they are told.
const (
	PartLog        = "log"
	PartIndex      = "index"
	PartReferences = "references"
	PartObjects    = "objects"
	PartDisk       = "disk"
)

var parts = []string{PartLog, PartIndex, PartReferences, PartObjects, PartDisk}

// Finding is something that is not as it should be.
type Finding struct {
	Part    string `json:"part"`
	What    string `json:"what"` // a repository, a folder, an event
	Problem string `json:"problem"`
	// Mend says what --repair would do, or has done; empty: it cannot be mended from the log.
	Mend   string `json:"mend,omitempty"`
	Mended bool   `json:"mended"`
	// Failed is why it could not be mended.
	Failed string `json:"failed,omitempty"`

	mend func() error
}

// Report is what came of a check.
type Report struct {
	Events       int       `json:"events"` // of the log
	Indexes      int       `json:"indexes"`
	Repositories int       `json:"repositories"`
	Findings     []Finding `json:"findings"`
	Notes        []string  `json:"notes"` // what is no finding: what was not looked at, and why; what is kept

	repair bool
	mu     sync.Mutex
}

// NewReport makes an empty report. With repair what is found is mended, where it can be.
func NewReport(repair bool) *Report {
	return &Report{Findings: []Finding{}, Notes: []string{}, repair: repair}
}

// found notes findings, after mending them where that is wanted.
func (r *Report) found(findings ...Finding) {
	for _, f := range findings {
		if r.repair && f.mend != nil {
			err := f.mend()
			if f.Mended = err == nil; err != nil {
				f.Failed = err.Error()
			}
		}
		r.mu.Lock()
		r.Findings = append(r.Findings, f)
		r.mu.Unlock()
	}
}

func (r *Report) sort() {
	key := func(f Finding) string { return fmt.Sprint(slices.Index(parts, f.Part), f.What, f.Problem) }
	slices.SortFunc(r.Findings, func(a, b Finding) int { return strings.Compare(key(a), key(b)) })
}

// Clean reports whether nothing is left that is not as it should be.
func (r *Report) Clean() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return !f.Mended })
}

// Colours of [Paint].
const (
	Red    = 31
	Green  = 32
	Yellow = 33
)

// Paint colours a text, where colours are wanted.
func Paint(coloured bool, colour int, text string) string {
	if !coloured {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, text)
}

// Write tells it to people, in colours where they see them.
func (r *Report) Write(out io.Writer, coloured bool) {
	fmt.Fprintf(out, "%s in the log, %s, %s were looked at\n", Count(r.Events, "event", "events"),
		Count(r.Indexes, "index", "indexes"),
		Count(r.Repositories, "repository", "repositories"))
	for _, note := range r.Notes {
		fmt.Fprintf(out, "%s: %s\n", Paint(coloured, Yellow, "note"), note)
	}
	mended, mendable := 0, 0
	for _, f := range r.Findings {
		colour, mend := Red, ""
		switch {
		case f.Mended:
			mended++
			colour, mend = Green, " (mended: "+f.Mend+")"
		case f.Failed != "":
			mend = " (could not be mended: " + f.Failed + ")"
		case f.Mend != "":
			mendable++
			mend = " (--repair: " + f.Mend + ")"
		}
		fmt.Fprintf(out, "%s: %s: %s%s\n", Paint(coloured, colour, f.Part), f.What, f.Problem, mend)
	}
	n := len(r.Findings)
	if n == 0 {
		fmt.Fprintln(out, Paint(coloured, Green, "clean"))
		return
	}
	var of []string
	for _, c := range []struct {
		n    int
		what string
	}{{mended, "mended"}, {mendable, "can be mended by --repair"}, {n - mended - mendable, "only by hand"}} {
		if c.n > 0 {
			of = append(of, fmt.Sprint(c.n, " ", c.what))
		}
	}
	fmt.Fprintf(out, "%s: %s\n", Count(n, "finding", "findings"), strings.Join(of, ", "))
}

// Count is a number of things, in words: "1 event", "2 events".
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
